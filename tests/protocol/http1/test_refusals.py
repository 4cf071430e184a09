"""What the HTTP server does not take, and how it says so."""

import asyncio
import json
import socket

import pytest

from tests.protocol.http1.service import Bare, serving
from tests.protocol.turns import pause
from tpx.protocol.http1.head import MAX_HEAD_BYTES, MAX_HEADERS, MAX_TARGET_BYTES
from tpx.protocol.http1.server import HttpLimits

SMUGGLING = {
    "two lengths": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    "two equal lengths": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
    "a list of lengths": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3, 3\r\n\r\nabc",
    "length and chunked": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked and length": b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n"
    b"Content-Length: 3\r\n\r\n0\r\n\r\n",
    "chunked twice": b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked not last": b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
    "gzip and chunked": b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "xchunked": b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "chunked in HTTP/1.0": b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a negative length": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n",
    "a signed length": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +5\r\n\r\nabcde",
    "a length of letters": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: abc\r\n\r\n",
    "a length in hexadecimal": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0x5\r\n\r\nabcde",
    "a length of 10^30": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1" + b"0" * 30 + b"\r\n\r\n",
    "an empty length": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: \r\n\r\n",
    "a space before the colon": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length : 5\r\n\r\nabcde",
    "a folded header": b"GET / HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n",
    "a NUL in a value": b"GET / HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n",
    "a NUL in a name": b"GET / HTTP/1.1\r\nHost: a\r\nX\0: b\r\n\r\n",
    "a bare CR in a value": b"GET / HTTP/1.1\r\nHost: a\r\nX: a\rb\r\n\r\n",
    "a bare LF": b"GET / HTTP/1.1\nHost: a\n\n",
    "a bare LF in a head": b"GET / HTTP/1.1\r\nHost: a\nX: y\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "a header without a colon": b"GET / HTTP/1.1\r\nHost: a\r\nnonsense\r\n\r\n",
    "an empty header name": b"GET / HTTP/1.1\r\nHost: a\r\n: x\r\n\r\n",
    "a TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
    "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "garbage": bytes(range(256)),
    "a space in the target": b"GET /a b HTTP/1.1\r\nHost: a\r\n\r\n",
    "HTTP/0.9": b"GET /\r\n\r\n",
    "HTTP/2.0": b"GET / HTTP/2.0\r\nHost: a\r\n\r\n",
    "HTTP/1.2": b"GET / HTTP/1.2\r\nHost: a\r\n\r\n",
    "a chunk that is too long": b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3\r\nabcde\r\n0\r\n\r\n",
    "a chunk size with a sign": b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"+3\r\nabc\r\n0\r\n\r\n",
    "a chunk size that wraps": b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"10000000000000003\r\nabc\r\n0\r\n\r\n",
    "a chunk with a bare LF": b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3\nabc\r\n0\r\n\r\n",
    "a trailer with a bare LF": b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"0\r\nX: a\nY: b\r\n\r\n",
}


@pytest.mark.parametrize("name", SMUGGLING)
async def test_what_could_be_read_in_two_ways_is_refused_and_the_connection_ends(name: str) -> None:
    hidden = b"GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n"
    async with serving() as server, await Bare.connect(server.port) as client:
        client.send(SMUGGLING[name] + hidden)
        answer = await client.answer()
        assert answer.status in (400, 413, 501, 505)
        assert json.loads(answer.body)["error"]
        assert answer.headers["connection"] == "close"
        assert await client.closed()
        assert server.service.requests == []


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /" + b"a" * MAX_TARGET_BYTES + b" HTTP/1.1\r\nHost: a\r\n\r\n", 414),
        (b"GET /" + b"a" * (2 * MAX_HEAD_BYTES), 414),
        (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * MAX_HEADERS + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"y" * MAX_HEAD_BYTES + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"y" * (2 * MAX_HEAD_BYTES), 431),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1001\r\n\r\n" + bytes(1001), 413),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000\r\n\r\n", 413),
        (
            b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n"
            + bytes(1001)
            + b"\r\n0\r\n\r\n",
            413,
        ),
        (
            b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1;"
            + b"x" * 300
            + b"\r\na\r\n0\r\n\r\n",
            400,
        ),
        (
            b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
            + b"X: y\r\n" * 5000
            + b"\r\n",
            431,
        ),
    ],
    ids=[
        "target",
        "endless target",
        "headers",
        "head",
        "endless head",
        "body",
        "announced body",
        "chunks",
        "chunk extension",
        "trailers",
    ],
)
async def test_what_is_too_large_is_named(request_bytes: bytes, status: int, at_once: bool) -> None:
    limits = HttpLimits(max_body_bytes=1000)
    async with serving(limits) as server, await Bare.connect(server.port) as client:
        if at_once:
            client.send(request_bytes)
        else:
            for at in range(0, len(request_bytes), 3001):
                client.send(request_bytes[at : at + 3001])
                await asyncio.sleep(0)
        answer = await client.answer()
        assert answer.status == status
        assert await client.closed()
        assert server.service.requests == []


async def test_too_many_chunks_are_refused() -> None:
    async with serving() as server, await Bare.connect(server.port) as client:
        client.get("/echo", "Transfer-Encoding: chunked", method="POST")
        client.send(b"1\r\na\r\n" * 70_000)
        answer = await client.answer()
        assert answer.status == 400
        assert "65536 non-empty chunks" in json.loads(answer.body)["error"]


async def test_an_upgrade_is_an_offer_that_is_not_taken() -> None:
    async with serving() as server, await Bare.connect(server.port) as client:
        client.get("/echo", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk")
        assert (await client.answer()).status == 200
        client.get("/echo")
        assert (await client.answer()).status == 200


async def test_a_refusal_reaches_a_client_that_is_still_sending() -> None:
    """Closing with unread input would reset the connection under the answer."""
    async with serving(HttpLimits(max_body_bytes=1000)) as server, await Bare.connect(server.port) as client:
        client.get("/echo", "Content-Length: 50000000", method="POST")
        for _ in range(100):
            client.send(bytes(100_000))
        assert (await client.answer()).status == 413


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"max_connections": 2}, "the server has 2 connections, its limit"),
        ({"max_per_client": 2}, "127.0.0.1 has 2 connections, its limit"),
    ],
)
async def test_a_connection_too_many_is_told_so_and_closed(limits: dict[str, int], message: str) -> None:
    async with (
        serving(**limits) as server,  # type: ignore[arg-type]
        await Bare.connect(server.port) as first,
        await Bare.connect(server.port) as second,
    ):
        await pause(0.01)
        async with await Bare.connect(server.port) as third:
            third.get("/echo")
            answer = await third.answer()
            assert (answer.status, json.loads(answer.body)["error"]) == (503, message)
            assert await third.closed()
        assert server.service.requests == []
        first.get("/echo")
        assert (await first.answer()).status == 200
        second.writer.close()
        await pause(0.02)
        async with await Bare.connect(server.port) as fourth:
            fourth.get("/echo")
            assert (await fourth.answer()).status == 200


async def test_of_very_many_connections_too_many_most_are_only_closed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(max_connections=1) as server, await Bare.connect(server.port) as first:
        crowd = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(160)]
        await pause(0.1)
        assert server.listener.connections <= 1 + 128
        assert caplog.text.count("refusing connections") == 1
        await server.pass_seconds(5)
        await pause(0.05)
        assert server.listener.connections == 1
        first.get("/echo")
        assert (await first.answer()).status == 200
        for client in crowd:
            client.close()
