"""How calls of our client end when the server ends them: well, badly, or not at all."""

import asyncio

import pytest

from tests.protocol.grpc.scripted import OK, TRAILERS, Calls, RawServer, scripted
from tests.protocol.grpc.service import ECHO, HOLD, serving
from tests.protocol.http2.raw import Header
from tests.protocol.turns import pause
from tests.waiting import until
from tpx.errors import Code, ResponseError, WireError
from tpx.protocol.grpc.client import connect
from tpx.protocol.grpc.client_call import GrpcResponse
from tpx.protocol.grpc.framing import frame_message, pack_prefix
from tpx.protocol.grpc.status import Status
from tpx.protocol.http2 import frames
from tpx.protocol.http2.frames import DATA, END_HEADERS, END_STREAM, HEADERS, ErrorCode, Setting
from tpx.protocol.http2.hpack import encode_stateless

BAD_ENDS: dict[str, tuple[list[Header], Status, str]] = {
    "an error with words": (
        [*OK, (b"grpc-status", b"5"), (b"grpc-message", b"no %E2%82%AC here")],
        Status.NOT_FOUND,
        "no € here",
    ),
    "a status that does not exist": ([*OK, (b"grpc-status", b"99")], Status(0), ""),
    "a status that is no number": ([*OK, (b"grpc-status", b"abc")], Status.UNKNOWN, ""),
    "HTTP 401": ([(b":status", b"401")], Status.UNAUTHENTICATED, "HTTP status 401"),
    "HTTP 404": ([(b":status", b"404")], Status.UNIMPLEMENTED, "HTTP status 404"),
    "HTTP 503": ([(b":status", b"503")], Status.UNAVAILABLE, "HTTP status 503"),
    "HTTP 418": ([(b":status", b"418")], Status.UNKNOWN, "HTTP status 418"),
    "no status at all": (OK, Status.UNKNOWN, "no grpc-status"),
}


@pytest.mark.parametrize("name", BAD_ENDS)
async def test_an_end_without_a_message_is_understood(name: str) -> None:
    headers, status, words = BAD_ENDS[name]

    async def script(peer: RawServer) -> None:
        peer.send_headers(await peer.request(), headers, end_stream=True)

    async with scripted(script) as connection:
        calls = Calls(connection)
        calls.make()
        response = await calls.ended()
        assert response.status == (99 if "exist" in name else status)
        assert words in response.message


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ErrorCode.REFUSED_STREAM, Status.UNAVAILABLE),
        (ErrorCode.CANCEL, Status.CANCELLED),
        (ErrorCode.ENHANCE_YOUR_CALM, Status.RESOURCE_EXHAUSTED),
        (ErrorCode.INADEQUATE_SECURITY, Status.PERMISSION_DENIED),
        (ErrorCode.INTERNAL_ERROR, Status.INTERNAL),
        (ErrorCode.NO_ERROR, Status.INTERNAL),
    ],
)
async def test_a_reset_ends_the_call_with_the_status_of_its_code(code: ErrorCode, status: Status) -> None:
    async def script(peer: RawServer) -> None:
        for _ in range(6):
            peer.reset(await peer.request(), code)

    async with scripted(script) as connection:
        calls = Calls(connection)
        calls.make()
        assert (await calls.ended()).status == status
        assert connection.in_flight == 0


async def test_a_refused_call_is_made_again_when_another_has_ended() -> None:
    """It did not run. A server at its limit of streams may refuse what came a moment too early."""

    async def script(peer: RawServer) -> None:
        first, second = await peer.request(), await peer.request()
        peer.reset(second, ErrorCode.REFUSED_STREAM)
        await peer.sync()
        assert len(peer.answers) == 2, "not while the first is still there"
        peer.respond(first, b"first")
        peer.respond(await peer.request(), b"second")

    async with scripted(script) as connection:
        calls = Calls(connection)
        calls.make()
        calls.make()
        await calls.ended(2)
        assert [bytes(end.data) for end in calls.ends] == [b"first", b"second"]


@pytest.mark.parametrize("size", [10, 400_000])
async def test_a_response_that_ends_without_trailers_is_an_error(size: int) -> None:
    async def script(peer: RawServer) -> None:
        stream_id = await peer.request()
        peer.send_headers(stream_id, OK)
        peer.send(DATA, END_STREAM, stream_id, frame_message(bytes(size)))

    async with scripted(script) as connection:
        calls = Calls(connection)
        calls.make()
        response = await calls.ended()
        assert (response.status, response.message) == (2, "the response ended without trailers")


async def test_trailers_in_the_middle_of_a_message_are_an_error() -> None:
    async def script(peer: RawServer) -> None:
        stream_id = await peer.request()
        peer.send_headers(stream_id, OK)
        peer.send(DATA, 0, stream_id, pack_prefix(0, 100) + b"half")
        peer.send_headers(stream_id, TRAILERS, end_stream=True)

    async with scripted(script) as connection:
        calls = Calls(connection)
        calls.make()
        assert (await calls.ended()).status == Status.INTERNAL


@pytest.mark.parametrize(
    "data", [pack_prefix(1, 4) + b"abcd", pack_prefix(9, 0), pack_prefix(0, 2**32 - 1)], ids=str
)
async def test_a_broken_message_ends_its_call_only(data: bytes) -> None:
    async def script(peer: RawServer) -> None:
        first = await peer.request()
        peer.send_headers(first, OK)
        peer.send(DATA, 0, first, data)
        second = await peer.request()
        assert await peer.reset_of(first) == ErrorCode.CANCEL
        peer.respond(second, b"fine")

    async with scripted(script) as connection:
        calls = Calls(connection)
        calls.make()
        assert (await calls.ended()).status == Status.INTERNAL
        calls.make()
        assert bytes((await calls.ended(2)).data) == b"fine"


async def test_goaway_ends_what_will_not_be_served_and_lets_the_rest_finish() -> None:
    async def script(peer: RawServer) -> None:
        for _ in range(2):
            await peer.request()
        peer.send(frames.GOAWAY, payload=(1).to_bytes(4, "big") + bytes(4) + b"maintenance")
        peer.respond(1, b"served")

    async with scripted(script, {Setting.MAX_CONCURRENT_STREAMS: 2}) as connection:
        lost: list[WireError] = []
        connection.on_lost = lost.append
        calls = Calls(connection)
        await until(lambda: connection.max_concurrent_streams == 2)
        for _ in range(3):
            calls.make()
        await calls.ended(3)
        refused, waiting, served = calls.ends
        assert (refused.status, waiting.status) == (Status.UNAVAILABLE, Status.UNAVAILABLE)
        assert "maintenance" in refused.message
        assert bytes(served.data) == b"served"
        with pytest.raises(WireError, match="maintenance"):
            calls.make()
        await until(lambda: lost)


async def test_a_connection_that_breaks_ends_every_call() -> None:
    async def script(peer: RawServer) -> None:
        await peer.request()
        peer.writer.transport.abort()

    async with scripted(script) as connection:
        lost: list[WireError] = []
        connection.on_lost = lost.append
        calls = Calls(connection)
        for _ in range(3):
            calls.make()
        await calls.ended(3)
        assert {response.status for response in calls.ends} == {Status.UNAVAILABLE}
        assert len(lost) == 1
        with pytest.raises(WireError, match="connection"):
            calls.make()


BROKEN_SERVERS: dict[str, tuple[bytes, str]] = {
    "HTTP/1.1": (b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", "does not speak HTTP/2"),
    "something else": (b"220 mail.example ESMTP ready\r\n", "does not speak HTTP/2"),
    "a response nobody asked for": (
        frames.frame(HEADERS, END_HEADERS, 7, encode_stateless(OK)),
        "idle stream 7",
    ),
    "data on a stream of its own": (frames.frame(DATA, 0, 2, b"x"), "idle stream 2"),
    "a push": (frames.frame(frames.PUSH_PROMISE, END_HEADERS, 1, bytes(4)), "PUSH_PROMISE"),
    "broken headers": (frames.frame(HEADERS, END_HEADERS, 1, b"\xff\xff"), "integer"),
    "a frame over our limit": (frames.frame_header(DATA, 0, 1, 1 << 23), "frame of 8388608 bytes"),
}


@pytest.mark.parametrize("name", BROKEN_SERVERS)
async def test_a_server_that_breaks_the_rules_is_named_in_the_error(name: str) -> None:
    data, words = BROKEN_SERVERS[name]
    answered = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data if "HTTP/2" in words else frames.settings_frame({}) + data)
        await reader.read()
        writer.close()
        answered.set()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        connection = await connect("127.0.0.1", server.sockets[0].getsockname()[1])
        calls = Calls(connection)
        calls.make()
        response = await calls.ended()
        assert response.status == Status.UNAVAILABLE
        assert words.lower() in response.message.lower()
        await answered.wait()  # a handler that the loop cancels at its end is a complaint of asyncio


async def test_closing_in_a_callback_ends_the_other_calls_as_unavailable() -> None:
    async with serving() as server:
        connection = await connect("127.0.0.1", server.port)
        ends: list[int] = []
        connection.call(connection.prepare(HOLD, b"x"), lambda r: ends.append(r.status))
        connection.call(connection.prepare(ECHO, b"x"), lambda r: connection.close())
        await server.empty()
        await pause(0.01)
        assert ends == [Status.UNAVAILABLE]
        assert server.service.gone == [1]


async def test_cancel_reaches_the_server_and_the_callback() -> None:
    async with serving() as server:
        connection = await connect("127.0.0.1", server.port)
        ends: list[GrpcResponse] = []
        stream_id = connection.call(connection.prepare(HOLD, b"x"), ends.append)
        await pause(0.01)
        connection.cancel(stream_id)
        connection.cancel(stream_id)
        assert [end.status for end in ends] == [Status.CANCELLED]
        assert await connection.unary(ECHO, b"next") == b"next"
        assert server.service.gone == [1]
        connection.close()


async def test_errors_of_the_server_become_exceptions_with_its_code() -> None:
    async with serving() as server:
        connection = await connect("127.0.0.1", server.port)
        with pytest.raises(ResponseError, match="unknown method") as caught:
            await connection.unary("/no/Method", b"")
        assert caught.value.code is Code.UNSUPPORTED
        connection.close()


async def test_an_answer_before_the_request_is_sent_ends_the_sending() -> None:
    """The server refuses at once; a client that still has megabytes to send must stop."""
    async with serving() as server:
        connection = await connect("127.0.0.1", server.port)
        with pytest.raises(ResponseError, match="unknown method"):
            await connection.unary("/no/Method", bytes(64 << 20))
        assert not connection.http2.sender.queued
        assert await connection.unary(ECHO, b"next") == b"next"
        connection.close()
