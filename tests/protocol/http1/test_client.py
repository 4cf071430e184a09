"""Our HTTP client against a server that says what the test tells it to."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from tests.protocol.http1.service import serving
from tests.protocol.turns import pause
from tpx.errors import WireError
from tpx.protocol.http1.client import (
    HttpClientConnection,
    HttpConnector,
    HttpResponse,
    encode_request,
    fetch,
)

REQUEST = encode_request("POST", "/v2/models/m/infer", "test", {"X-A": "b"}, [b"body", memoryview(b" parts")])


@asynccontextmanager
async def saying(*pieces: bytes, close: bool = False) -> AsyncIterator[HttpClientConnection]:
    """A connection to a server that answers the first request with `pieces`, one after the other."""

    over = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0.002)
            if not close:
                await reader.read()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            over.set()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        connection = await HttpConnector("127.0.0.1", server.sockets[0].getsockname()[1]).connect()
        try:
            yield connection
        finally:
            connection.close()
            await over.wait()


def test_a_request_is_a_head_and_its_body_uncopied() -> None:
    head, first, second = REQUEST
    assert bytes(head) == (
        b"POST /v2/models/m/infer HTTP/1.1\r\nHost: test\r\nX-A: b\r\nContent-Length: 10\r\n\r\n"
    )
    assert (first, second) == (b"body", b" parts")
    assert b"Content-Length" not in bytes(encode_request("GET", "/", "h", {})[0])
    assert b"Content-Length: 0" in bytes(encode_request("POST", "/", "h", {})[0])


LENGTH = b"HTTP/1.1 200 OK\r\nX-Header: v\r\nContent-Length: 10\r\n\r\n0123456789"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n0123\r\n6;x=y\r\n456789\r\n0\r\nT: 1\r\n\r\n"
)
UNTIL_CLOSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n0123456789"
OLD = b"HTTP/1.0 200 OK\r\n\r\n0123456789"


@pytest.mark.parametrize("response", [LENGTH, CHUNKED, UNTIL_CLOSE, OLD])
@pytest.mark.parametrize("step", [1, 7, 1000])
async def test_every_form_of_a_body_is_read_however_it_is_cut(response: bytes, step: int) -> None:
    if step == 1:
        response = response.replace(b"Content-Type: text/plain\r\n", b"")
    pieces = [response[at : at + step] for at in range(0, len(response), step)]
    async with saying(
        *pieces, close=response in (UNTIL_CLOSE, OLD) or b"Content" not in response
    ) as connection:
        got = await fetch(connection, REQUEST)
        assert (got.status, bytes(got.body)) == (200, b"0123456789")
        assert got.first_byte_ns > 0
        assert connection.closing is (response not in (LENGTH, CHUNKED))


async def test_a_large_body_until_the_end_of_the_connection() -> None:
    async with saying(b"HTTP/1.1 200 OK\r\n\r\n", *[bytes(100_000)] * 10, close=True) as connection:
        assert bytes((await fetch(connection, REQUEST)).body) == bytes(1_000_000)


async def test_interim_responses_are_passed_over() -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
    async with saying(interim * 1000 + LENGTH) as connection:
        assert bytes((await fetch(connection, REQUEST)).body) == b"0123456789"


async def test_interim_responses_alike_are_no_responses() -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\n"
    async with saying(interim, interim, interim, LENGTH) as connection:
        assert bytes((await fetch(connection, REQUEST)).body) == b"0123456789"


async def test_what_was_fetched_stays_as_it_was() -> None:
    async with serving() as server:
        connection = await HttpConnector("127.0.0.1", server.port).connect()
        answers = [
            await fetch(connection, encode_request("POST", "/echo", "test", {}, [body]))
            for body in (b"first", b"other", b"third")
        ]
        assert [bytes(answer.body) for answer in answers] == [b"first", b"other", b"third"]
        times = [answer.first_byte_ns for answer in answers]
        assert 0 < times[0] < times[1] < times[2]
        connection.close()


@pytest.mark.parametrize(
    "response",
    [
        b"HTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.1 304 Not Modified\r\nContent-Length: 99\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    ],
)
async def test_responses_without_a_body_are_complete(response: bytes) -> None:
    async with saying(response) as connection:
        assert bytes((await fetch(connection, REQUEST)).body) == b""
        assert not connection.closing


BROKEN: dict[str, tuple[Sequence[bytes], str]] = {
    "nothing": ([], "the server closed the connection"),
    "half a head": ([b"HTTP/1.1 200 OK\r\nContent-"], "the server closed the connection"),
    "half a body": ([LENGTH[:-3]], "the server closed the connection"),
    "half a large body": (
        [b"HTTP/1.1 200 OK\r\nContent-Length: 500000\r\n\r\n", bytes(100_000)],
        "the server closed the connection",
    ),
    "half a chunk": ([CHUNKED[:60]], "the server closed the connection"),
    "something else": ([b"220 mail.example ESMTP ready\r\n"], "malformed HTTP message"),
    "length and chunked": (
        [b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n"],
        "malformed HTTP message",
    ),
    "broken chunks": ([CHUNKED.replace(b"4\r\n0123", b"3\r\n0123")], "chunk does not end with CRLF"),
    "an unknown coding": (
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n"],
        "Transfer-Encoding",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_a_broken_response_is_an_error_that_says_why(name: str) -> None:
    pieces, words = BROKEN[name]
    async with saying(*pieces, close=True) as connection:
        with pytest.raises(WireError, match=words):
            await fetch(connection, REQUEST)
        assert connection.closing
        with pytest.raises(WireError, match="closing"):
            connection.send(REQUEST, lambda response: None)


async def test_a_response_nobody_asked_for_ends_the_connection() -> None:
    async with saying(LENGTH + LENGTH) as connection:
        lost: list[WireError] = []
        connection.on_lost = lost.append
        assert (await fetch(connection, REQUEST)).status == 200
        await pause(0.01)
        assert connection.closing


async def test_a_reset_in_the_middle_of_a_response_is_an_error() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(LENGTH[:-3])
        await writer.drain()
        writer.transport.abort()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        connection = await HttpConnector("127.0.0.1", server.sockets[0].getsockname()[1]).connect()
        with pytest.raises(WireError, match="connection"):
            await fetch(connection, REQUEST)


async def test_no_answer_in_time_closes_the_connection() -> None:
    async with saying(b"HTTP/1.1 200 OK\r\n") as connection:
        with pytest.raises(WireError, match=r"no response within 0\.05 s"):
            await fetch(connection, REQUEST, timeout_s=0.05)
        assert connection.closing


async def test_a_fetch_that_is_cancelled_closes_the_connection() -> None:
    async with saying(b"HTTP/1.1 200 OK\r\n") as connection:
        task = asyncio.ensure_future(fetch(connection, REQUEST))
        await pause(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert connection.closing


async def test_one_request_at_a_time() -> None:
    async with saying(LENGTH) as connection:
        connection.send(REQUEST, lambda response: None)
        assert connection.busy
        with pytest.raises(WireError, match="already in flight"):
            connection.send(REQUEST, lambda response: None)


async def test_a_callback_may_send_the_next_request_and_the_last_may_close() -> None:
    async with serving() as server:
        connection = await HttpConnector("127.0.0.1", server.port).connect()
        request = encode_request("POST", "/echo", "test", {}, [b"again"])
        done = asyncio.get_running_loop().create_future()
        count = 0

        def again(response: HttpResponse) -> None:
            nonlocal count
            count += 1
            assert bytes(response.body) == b"again"
            if count < 100:
                connection.send(request, again)
            else:
                connection.close()
                done.set_result(None)

        connection.send(request, again)
        await asyncio.wait_for(done, 5)
        await server.empty()
        assert len(server.service.requests) == 100


async def test_a_server_that_closes_between_requests_is_noticed() -> None:
    async with serving() as server:
        connection = await HttpConnector("127.0.0.1", server.port).connect()
        lost: list[WireError] = []
        connection.on_lost = lost.append
        await fetch(connection, encode_request("GET", "/echo", "test", {}))
        server.listener.stop_accepting()
        await server.empty()
        assert [error.message for error in lost] == ["the server closed the connection"]


async def test_connections_share_what_they_know_of_heads() -> None:
    async with serving() as server:
        connector = HttpConnector("127.0.0.1", server.port)
        first, second = await connector.connect(), await connector.connect()
        request = encode_request("POST", "/echo", "test", {}, [b"x" * 100_000])
        answers = await asyncio.gather(fetch(first, request), fetch(second, request))
        assert [bytes(answer.body) for answer in answers] == [b"x" * 100_000] * 2
        assert answers[0].headers is answers[1].headers
        first.close()
        second.close()


async def test_nobody_at_the_port_is_named() -> None:
    server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    with pytest.raises(WireError, match=f"cannot connect to 127.0.0.1:{port}"):
        await HttpConnector("127.0.0.1", port).connect()


async def test_after_close_no_callback_is_called_any_more() -> None:
    async with saying(LENGTH + LENGTH + b"garbage") as connection:
        lost: list[WireError] = []
        answers: list[int] = []

        def close(response: HttpResponse) -> None:
            answers.append(response.status)
            connection.close()

        connection.on_lost = lost.append
        connection.send(REQUEST, close)
        await pause(0.03)
        assert (answers, lost) == ([200], [])
