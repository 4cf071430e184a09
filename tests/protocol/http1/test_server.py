"""The HTTP server, asked byte by byte."""

import asyncio
import json
import socket
import struct

import numpy as np
import pytest

from tests.protocol.http1.service import PLAIN, Bare, serving
from tpx.protocol.http1.head import MAX_HEAD_BYTES, MAX_HEADERS, MAX_TARGET_BYTES
from tpx.protocol.http1.server import HttpLimits


async def test_requests_on_one_connection_are_answered_one_after_the_other() -> None:
    async with serving() as server, await Bare.connect(server.port) as client:
        for number in range(3):
            client.post("/echo", b"body %d" % number)
            answer = await client.answer()
            assert (answer.status, answer.body) == (200, b"body %d" % number)
            assert "connection" not in answer.headers
        assert len(server.connections) == 1


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with serving() as server, await Bare.connect(server.port) as client:
        for number in range(300):
            client.post(("/echo", "/soon", "/hold")[number % 3] if number < 3 else "/echo", b"%d" % number)
        for number in range(2):
            assert (await client.answer()).body == b"%d" % number
        await asyncio.sleep(0.01)
        assert len(server.service.requests) == 3, "one request in flight holds back the next"
        server.service.release(b"2")
        for number in range(2, 300):
            assert (await client.answer()).body == b"%d" % number


async def test_thousands_of_pipelined_requests_in_one_packet_are_no_recursion() -> None:
    chunked = b"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    expecting = b"POST /soon HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"
    async with serving() as server, await Bare.connect(server.port) as client:
        client.send(chunked * 2000 + expecting * 2000)
        for _ in range(4000):
            assert (await client.answer()).status == 200


async def test_a_body_may_come_in_any_pieces() -> None:
    request = b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n0123456789"
    async with serving() as server, await Bare.connect(server.port) as client:
        client.writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for cut in range(1, len(request), 3):
            client.send(request[:cut])
            await asyncio.sleep(0.001)
            client.send(request[cut:])
            assert (await client.answer()).body == b"0123456789"


async def test_a_large_body_is_read_into_one_aligned_buffer() -> None:
    body = bytes(range(256)) * 2400
    async with serving() as server, await Bare.connect(server.port) as client:
        client.post("/echo", body, "Inference-Header-Content-Length: 37")
        assert (await client.answer()).body == body
        (request,) = server.service.requests
        assert isinstance(request.body, memoryview)
        address = np.frombuffer(request.body, np.uint8).__array_interface__["data"][0]
        assert (address + 37) % 64 == 0, "the tensors behind the JSON begin on a boundary"


@pytest.mark.slow
async def test_a_body_of_200_mb_goes_both_ways() -> None:
    body = bytes(200 << 20)
    limits = HttpLimits(max_body_bytes=1 << 30)
    async with serving(limits) as server, await Bare.connect(server.port) as client:
        client.post("/echo", body)
        assert (await client.answer()).body == body


async def test_a_response_in_many_pieces_comes_whole() -> None:
    async with serving() as server, await Bare.connect(server.port) as client:
        for size in (0, 1, 1 << 15, (1 << 15) + 1, 5 << 20):
            client.get(f"/big?{size}")
            assert (await client.answer()).body == bytes(size)


async def test_chunked_bodies_with_extensions_and_trailers_are_read() -> None:
    async with serving() as server, await Bare.connect(server.port) as client:
        client.get("/echo", "Transfer-Encoding: chunked", method="POST")
        client.send(b'4\r\nabcd\r\n1;name=value;other="x;y"\r\ne\r\n00\r\nX-Trailer: 1\r\n\r\n')
        assert (await client.answer()).body == b"abcde"
        client.post("/echo", b"next")
        assert (await client.answer()).body == b"next"


async def test_expect_is_answered_before_the_body_comes() -> None:
    async with serving() as server, await Bare.connect(server.port) as client:
        client.get("/echo", "Content-Length: 5", "Expect: 100-continue", method="POST")
        assert (await client.answer()).status == 100
        client.send(b"12345")
        assert (await client.answer()).body == b"12345"
        client.get("/echo", "Transfer-Encoding: chunked", "Expect: 100-Continue", method="POST")
        assert (await client.answer()).status == 100
        client.send(b"2\r\nab\r\n0\r\n\r\n")
        assert (await client.answer()).body == b"ab"


async def test_expect_of_a_body_that_is_too_large_is_refused_at_once() -> None:
    async with serving(HttpLimits(max_body_bytes=4)) as server, await Bare.connect(server.port) as client:
        client.get("/echo", "Content-Length: 5", "Expect: 100-continue", method="POST")
        assert (await client.answer()).status == 413
        assert await client.closed()


async def test_http_1_0_knows_no_expect() -> None:
    """RFC 9110 section 10.1.1."""
    async with serving() as server, await Bare.connect(server.port) as client:
        client.get("/echo", "Content-Length: 1", "Expect: 100-continue", method="POST", version="1.0")
        client.send(b"x")
        assert (await client.answer()).body == b"x"


async def test_head_is_answered_without_a_body() -> None:
    async with serving() as server, await Bare.connect(server.port) as client:
        client.get("/big?1000", method="HEAD")
        answer = await client.answer(bodiless=True)
        assert answer.headers["content-length"] == "1000"
        client.get("/big?10")
        assert (await client.answer()).body == bytes(10)


@pytest.mark.parametrize(
    ("version", "header", "kept"),
    [
        ("1.1", "", True),
        ("1.1", "Connection: close", False),
        ("1.1", "Connection: x-other, Close", False),
        ("1.1", "Connection: keep-alive", True),
        ("1.0", "", False),
        ("1.0", "Connection: keep-alive", True),
        ("1.0", "Connection: Keep-Alive, x", True),
        ("1.0", "Connection: keep-alive, close", False),
    ],
)
async def test_connections_are_kept_as_the_client_wants(version: str, header: str, kept: bool) -> None:
    async with serving() as server, await Bare.connect(server.port) as client:
        client.get("/echo", *filter(None, [header]), version=version)
        answer = await client.answer()
        if not kept:
            assert answer.headers["connection"] == "close"
            assert await client.closed()
        else:
            assert answer.headers.get("connection") == ("keep-alive" if version == "1.0" else None)
            client.get("/echo", version=version)
            assert (await client.answer()).status == 200


@pytest.mark.parametrize("target", ["http://test/echo?q=1", "HTTPS://test:8000/echo?q=1", "/echo?q=1"])
async def test_targets_in_absolute_form_are_taken(target: str) -> None:
    """RFC 9112 section 3.2.2."""
    async with serving() as server, await Bare.connect(server.port) as client:
        client.get(target)
        assert (await client.answer()).status == 200
        head = server.service.requests[0].head
        assert (head.path, head.query) == (b"/echo", b"q=1")


async def test_an_empty_line_before_a_request_is_ignored() -> None:
    async with serving(HttpLimits(head_timeout_s=2)) as server, await Bare.connect(server.port) as client:
        client.post("/echo", b"x")
        client.send(b"\r\n")
        assert (await client.answer()).body == b"x"
        await server.pass_seconds(5)
        client.send(b"\r\nGET /echo HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (await client.answer()).status == 200


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
    "only empty lines": b"\r\n\r\n",
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


async def test_a_slow_head_is_answered_408_however_it_drips() -> None:
    async with serving(HttpLimits(head_timeout_s=3)) as server, await Bare.connect(server.port) as client:
        client.send(b"GET / HT")
        for _ in range(3):
            await server.pass_seconds(1)
            client.send(b"T")
        await server.pass_seconds(1)
        assert (await client.answer()).status in (400, 408)
        assert await client.closed()


async def test_a_head_that_stops_is_answered_408() -> None:
    async with serving(HttpLimits(head_timeout_s=3)) as server, await Bare.connect(server.port) as client:
        client.send(b"GET / HTTP/1.1\r\nHost:")
        await server.pass_seconds(3)
        assert server.listener.connections == 1
        await server.pass_seconds(1)
        assert (await client.answer()).status == 408


@pytest.mark.parametrize(
    "framing", ["Content-Length: 100", "Content-Length: 100000", "Transfer-Encoding: chunked"]
)
async def test_a_body_that_stops_is_answered_408(framing: str) -> None:
    async with serving(HttpLimits(body_timeout_s=3)) as server, await Bare.connect(server.port) as client:
        client.get("/echo", framing, method="POST")
        for _ in range(4):
            await server.pass_seconds(2)
            client.send(b"1\r\n" if "chunked" in framing else b"x")
            if "chunked" in framing:
                client.send(b"a\r\n")
        await server.pass_seconds(4)
        assert (await client.answer()).status == 408
        assert await client.closed()


async def test_an_idle_connection_is_closed_and_a_busy_one_is_not() -> None:
    async with (
        serving(HttpLimits(idle_timeout_s=3)) as server,
        await Bare.connect(server.port) as idle,
        await Bare.connect(server.port) as busy,
    ):
        busy.get("/hold")
        idle.get("/echo")
        await idle.answer()
        await server.pass_seconds(3)
        assert server.listener.connections == 2
        await server.pass_seconds(1)
        assert await idle.closed()
        await server.pass_seconds(100)
        server.service.release()
        assert (await busy.answer()).body == b"released"


async def test_a_client_that_ends_its_half_still_gets_every_answer() -> None:
    async with serving() as server, await Bare.connect(server.port) as client:
        for path, body in (
            ("/hold", b"1"),
            ("/echo", b"2"),
            ("/soon", b"3"),
            ("/echo", b"4"),
            ("/soon", b"5"),
        ):
            client.post(path, body)
        client.writer.write_eof()
        await asyncio.sleep(0.02)
        server.service.release(b"1")
        assert [(await client.answer()).body for _ in range(5)] == [b"1", b"2", b"3", b"4", b"5"]
        assert await client.closed()


async def test_half_a_request_behind_the_last_answer_ends_with_it() -> None:
    async with serving() as server, await Bare.connect(server.port) as client:
        client.get("/hold")
        client.send(b"GET /never")
        client.writer.write_eof()
        await asyncio.sleep(0.02)
        server.service.release()
        assert (await client.answer()).body == b"released"
        assert await client.closed()


@pytest.mark.parametrize(
    "framing", ["Content-Length: 100", "Content-Length: 100000", "Transfer-Encoding: chunked"]
)
async def test_a_body_that_ends_too_early_is_answered_400(framing: str) -> None:
    async with serving() as server, await Bare.connect(server.port) as client:
        client.get("/echo", framing, method="POST")
        client.send(b"3\r\nab")
        client.writer.write_eof()
        assert (await client.answer()).status == 400
        assert await client.closed()
        await server.empty()


async def test_a_client_that_goes_away_is_told_to_whoever_works_for_it() -> None:
    async with serving() as server:
        async with await Bare.connect(server.port) as client:
            client.get("/hold")
            await asyncio.sleep(0.02)
            # a reset; an orderly end of the client's half alone may come from one that still reads
            linger = struct.pack("ii", 1, 0)
            client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        await server.empty()
        assert server.service.gone == [b"/hold"]
        server.service.release()  # into the void


async def test_a_refusal_reaches_a_client_that_is_still_sending() -> None:
    """Closing with unread input would reset the connection under the answer."""
    async with serving(HttpLimits(max_body_bytes=1000)) as server, await Bare.connect(server.port) as client:
        client.get("/echo", "Content-Length: 50000000", method="POST")
        for _ in range(100):
            client.send(bytes(100_000))
        assert (await client.answer()).status == 413


async def test_the_last_answer_reaches_a_client_that_has_sent_more() -> None:
    async with serving() as server, await Bare.connect(server.port) as client:
        client.get("/big?3000000", "Connection: close")
        client.send(bytes(500_000))
        assert len((await client.answer()).body) == 3_000_000
        assert await client.closed()


async def test_a_draining_server_answers_what_it_has_taken_and_closes() -> None:
    async with serving() as server:
        async with (
            await Bare.connect(server.port) as idle,
            await Bare.connect(server.port) as busy,
            await Bare.connect(server.port) as sending,
        ):
            busy.get("/hold")
            sending.get("/echo", "Content-Length: 4", method="POST")
            sending.send(b"12")
            idle.get("/echo")
            await idle.answer()
            await asyncio.sleep(0.02)
            server.listener.stop_accepting()
            assert await idle.closed()
            sending.send(b"34")
            server.service.release()
            for client in (busy, sending):
                assert (await client.answer()).headers["connection"] == "close"
                assert await client.closed()
        await server.empty()


async def test_a_connection_too_many_is_closed() -> None:
    async with (
        serving(max_connections=2) as server,
        await Bare.connect(server.port) as first,
        await Bare.connect(server.port),
    ):
        await asyncio.sleep(0.01)
        async with await Bare.connect(server.port) as third:
            assert await third.closed()
        first.get("/echo")
        assert (await first.answer()).status == 200


class Deaf:
    """A client on a bare socket that reads only when told."""

    def __init__(self, port: int) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._socket.setblocking(False)
        self._port = port

    async def __aenter__(self) -> "Deaf":
        await asyncio.get_running_loop().sock_connect(self._socket, ("127.0.0.1", self._port))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._socket.close()

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._socket, data)

    async def read(self, size: int) -> int:
        return len(await asyncio.wait_for(asyncio.get_running_loop().sock_recv(self._socket, size), 5))


async def test_a_client_that_takes_no_answers_gets_no_more_of_them() -> None:
    request = b"GET /big?1000000 HTTP/1.1\r\nHost: a\r\n\r\n"
    async with serving(HttpLimits(write_timeout_s=5)) as server, Deaf(server.port) as deaf:
        await deaf.send(request * 1000)
        await asyncio.sleep(0.1)
        assert len(server.service.requests) < 20
        await server.pass_seconds(5)
        assert server.listener.connections == 1
        await server.pass_seconds(2)
        await server.empty()


async def test_answers_go_on_when_a_slow_client_has_caught_up() -> None:
    request = b"GET /big?1000000 HTTP/1.1\r\nHost: a\r\n\r\n"
    limits = HttpLimits(write_timeout_s=2, idle_timeout_s=3)
    async with serving(limits) as server, Deaf(server.port) as slow:
        await slow.send(request * 20)
        got = seconds = 0
        while got < 20_000_000:
            got += await slow.read(1 << 18)
            await asyncio.sleep(0)
            if got // 300_000 > seconds:
                seconds += 1
                server.listener.advance()
        assert len(server.service.requests) == 20
        assert server.listener.connections == 1


@pytest.mark.parametrize("ending", ["refused", "answered"])
async def test_a_connection_that_we_ended_does_not_stay_because_its_client_is_deaf(ending: str) -> None:
    async with serving(HttpLimits(write_timeout_s=5)) as server, Deaf(server.port) as deaf:
        last = b"Connection: close\r\n" if ending == "answered" else b""
        await deaf.send(b"GET /big?9000000 HTTP/1.1\r\nHost: a\r\n" + last + b"\r\n")
        await asyncio.sleep(0.05)
        if ending == "refused":
            server.listener.stop_accepting()
        await server.pass_seconds(8)
        await server.empty()


async def test_an_answer_of_another_length_than_the_request_wanted_is_still_framed() -> None:
    async with serving() as server, await Bare.connect(server.port) as client:
        client.get("/hold")
        await asyncio.sleep(0.02)
        (request,) = server.service.held
        request.respond(404, PLAIN, [b"a", memoryview(b"bc"), bytearray(b"def")])
        request.respond(200, PLAIN, [b"twice"])
        answer = await client.answer()
        assert (answer.status, answer.body) == (404, b"abcdef")
        client.get("/echo")
        assert (await client.answer()).status == 200
