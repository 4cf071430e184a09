"""Our client against a server that speaks frame by frame, and so may misbehave."""

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from tests.protocol.grpc.service import CHAT, ECHO, HOLD, serving
from tests.protocol.http2.raw import Header, RawPeer
from tpx.errors import Code, ResponseError, WireError
from tpx.protocol.grpc.client import GrpcClientConnection, connect
from tpx.protocol.grpc.client_call import GrpcResponse
from tpx.protocol.grpc.framing import frame_message, pack_prefix
from tpx.protocol.grpc.status import Status
from tpx.protocol.http2 import frames
from tpx.protocol.http2.frames import ACK, DATA, END_HEADERS, END_STREAM, HEADERS, PREFACE, ErrorCode, Setting
from tpx.protocol.http2.hpack import encode_stateless

OK: list[Header] = [(b":status", b"200"), (b"content-type", b"application/grpc")]
TRAILERS: list[Header] = [(b"grpc-status", b"0")]


class RawServer(RawPeer):
    """The answering side."""

    async def request(self) -> int:
        """Wait for the next whole request; its stream."""
        while True:
            frame = await self.frame()
            if frame.kind in (DATA, HEADERS) and frame.flags & END_STREAM:
                return frame.stream_id

    async def reset_of(self, stream_id: int) -> int:
        """Wait for the client to reset a stream; the code."""
        while (code := self.answers[stream_id].reset) is None:
            await self.frame()
        return code

    def respond(self, stream_id: int, message: bytes, trailers: list[Header] = TRAILERS) -> None:
        self.send_headers(stream_id, OK)
        self.send_message(stream_id, message)
        self.send_headers(stream_id, trailers, end_stream=True)


Script = Callable[[RawServer], Awaitable[None]]


@asynccontextmanager
async def scripted(
    script: Script, settings: dict[Setting, int] | None = None
) -> AsyncIterator[GrpcClientConnection]:
    """A client whose server follows a script, then keeps reading until the client is gone."""
    failures: list[BaseException] = []

    async def follow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = RawServer(reader, writer)
        try:
            assert await reader.readexactly(len(PREFACE)) == PREFACE
            peer.send(frames.SETTINGS, payload=frames.settings_frame(settings or {})[9:])
            await script(peer)
            await peer.closed()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except BaseException as exc:
            failures.append(exc)
            raise
        finally:
            writer.close()

    server = await asyncio.start_server(follow, "127.0.0.1", 0, limit=1 << 22)
    async with server:
        connection = await connect("127.0.0.1", server.sockets[0].getsockname()[1])
        try:
            yield connection
        finally:
            connection.close()
            await asyncio.sleep(0.01)
    assert failures == []


@dataclass
class Calls:
    """The ends of calls, in order."""

    connection: GrpcClientConnection
    ends: list[GrpcResponse] = field(default_factory=list)

    def make(self, message: bytes = b"request", encoding: str = "") -> int:
        prepared = self.connection.prepare(ECHO, message, encoding=encoding)
        return self.connection.call(prepared, self.ends.append)

    async def ended(self, count: int = 1) -> GrpcResponse:
        async with asyncio.timeout(5):
            while len(self.ends) < count:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        return self.ends[count - 1]


async def test_a_response_of_several_frames_and_an_interim_head() -> None:
    async def script(peer: RawServer) -> None:
        stream_id = await peer.request()
        peer.send_headers(stream_id, [(b":status", b"103"), (b"grpc-encoding", b"gzip")])
        peer.send_headers(stream_id, [*OK, (b"x-initial", b"1")])
        framed = frame_message(b"0123456789" * 5000)
        peer.send(DATA, 0, stream_id, framed[:3])
        peer.send(DATA, 0, stream_id, framed[3:10_000])
        peer.send(DATA, 0, stream_id, framed[10_000:26_000])
        peer.send(DATA, 0, stream_id, framed[26_000:40_000])
        peer.send(DATA, 0, stream_id, framed[40_000:])
        peer.send_headers(stream_id, [*TRAILERS, (b"x-trailer", b"2")], end_stream=True)

    async with scripted(script) as connection:
        calls = Calls(connection)
        calls.make()
        response = await calls.ended()
        assert (response.status, bytes(response.data)) == (0, b"0123456789" * 5000)
        assert response.metadata["x-trailer"] == b"2"
        assert response.first_byte_ns > 0


@pytest.mark.parametrize(("encoding", "pack"), [(b"gzip", gzip.compress), (b"deflate", zlib.compress)])
async def test_compression_in_both_directions(encoding: bytes, pack: Callable[[bytes], bytes]) -> None:
    async def script(peer: RawServer) -> None:
        stream_id = await peer.request()
        assert peer.answers[stream_id].blocks[0][b"grpc-encoding"] == encoding
        data = peer.answers[stream_id].data
        assert data[0] == 1
        assert (gzip.decompress if encoding == b"gzip" else zlib.decompress)(data[5:]) == b"abc" * 100
        peer.send_headers(stream_id, [*OK, (b"grpc-encoding", encoding)])
        packed = pack(b"xyz" * 1000)
        peer.send(DATA, 0, stream_id, pack_prefix(1, len(packed)) + packed)
        peer.send_headers(stream_id, TRAILERS, end_stream=True)

    async with scripted(script) as connection:
        calls = Calls(connection)
        calls.make(b"abc" * 100, encoding=encoding.decode())
        assert bytes((await calls.ended()).data) == b"xyz" * 1000


async def test_a_deadline_and_metadata_travel_with_the_call() -> None:
    async def script(peer: RawServer) -> None:
        stream_id = await peer.request()
        head = peer.answers[stream_id].blocks[0]
        assert head[b"grpc-timeout"] == b"500m"
        assert head[b"x-text"] == b"hello"
        assert head[b"x-raw-bin"] == b"AP8"
        peer.respond(stream_id, b"seen")

    async with scripted(script) as connection:
        calls = Calls(connection)
        prepared = connection.prepare(ECHO, b"", {"X-Text": "hello", "x-raw-bin": b"\0\xff"}, timeout="500m")
        connection.call(prepared, calls.ends.append)
        assert bytes((await calls.ended()).data) == b"seen"


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
        peer.reset(await peer.request(), code)

    async with scripted(script) as connection:
        calls = Calls(connection)
        calls.make()
        assert (await calls.ended()).status == status
        assert connection.in_flight == 0


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


async def test_calls_over_the_limit_of_the_server_wait_for_their_turn() -> None:
    most = 0

    async def script(peer: RawServer) -> None:
        nonlocal most
        open_streams: set[int] = set()
        for _ in range(10):
            open_streams.add(await peer.request())
            most = max(most, len(open_streams))
            if len(open_streams) == 2 or len(peer.answers) >= 10:
                stream_id = open_streams.pop()
                peer.respond(stream_id, b"%d" % stream_id)
        for stream_id in open_streams:
            peer.respond(stream_id, b"%d" % stream_id)

    async with scripted(script, {Setting.MAX_CONCURRENT_STREAMS: 2}) as connection:
        calls = Calls(connection)
        while connection.max_concurrent_streams != 2:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        ids = [calls.make() for _ in range(10)]
        assert ids == [1, 3, *[0] * 8]
        assert connection.in_flight == 10
        with pytest.raises(WireError, match="no more than 2 calls"):
            connection.open(CHAT, calls.ends.append, calls.ends.append)  # type: ignore[arg-type]
        await calls.ended(10)
        assert {response.status for response in calls.ends} == {0}
        assert most == 2


async def test_a_call_that_gave_up_waiting_is_never_made() -> None:
    requests: list[int] = []

    async def script(peer: RawServer) -> None:
        requests.append(await peer.request())
        await asyncio.sleep(0.1)
        peer.respond(requests[0], b"late")
        requests.append(await peer.request())
        peer.respond(requests[1], b"second")

    async with scripted(script, {Setting.MAX_CONCURRENT_STREAMS: 1}) as connection:
        while connection.max_concurrent_streams != 1:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        first = asyncio.ensure_future(connection.unary(ECHO, b"first"))
        await asyncio.sleep(0)
        with pytest.raises(WireError, match="no response within"):
            await connection.unary(ECHO, b"waits", timeout_s=0.01)
        assert connection.in_flight == 1
        assert await first == b"late"
        assert await connection.unary(ECHO, b"second") == b"second"
        assert requests == [1, 3]


async def test_an_unary_call_that_is_cancelled_is_reset() -> None:
    seen = asyncio.Event()

    async def script(peer: RawServer) -> None:
        stream_id = await peer.request()
        assert await peer.reset_of(stream_id) == ErrorCode.CANCEL
        seen.set()

    async with scripted(script) as connection:
        task = asyncio.ensure_future(connection.unary(ECHO, b"x"))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert connection.in_flight == 0
        await asyncio.wait_for(seen.wait(), 5)


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
        while connection.max_concurrent_streams != 2:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        for _ in range(3):
            calls.make()
        await calls.ended(3)
        refused, waiting, served = calls.ends
        assert (refused.status, waiting.status) == (Status.UNAVAILABLE, Status.UNAVAILABLE)
        assert "maintenance" in refused.message
        assert bytes(served.data) == b"served"
        with pytest.raises(WireError, match="maintenance"):
            calls.make()
        async with asyncio.timeout(5):
            while not lost:  # noqa: ASYNC110
                await asyncio.sleep(0.001)


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

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data if "HTTP/2" in words else frames.settings_frame({}) + data)
        await reader.read()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        connection = await connect("127.0.0.1", server.sockets[0].getsockname()[1])
        calls = Calls(connection)
        calls.make()
        response = await calls.ended()
        assert response.status == Status.UNAVAILABLE
        assert words.lower() in response.message.lower()


async def test_a_busy_server_may_ping_and_reset_for_a_long_time() -> None:
    """The budget of a peer is filled by time; the client of a long run lives on."""

    async def script(peer: RawServer) -> None:
        stream_id = await peer.request()
        for _ in range(4):
            for _ in range(1500):
                peer.send(frames.PING, payload=bytes(8))
            await peer.sync()
            client[0]._forgiven_ns -= 15 * 10**9
        peer.respond(stream_id, b"alive")

    client: list[GrpcClientConnection] = []
    async with scripted(script) as connection:
        client.append(connection)
        calls = Calls(connection)
        calls.make()
        assert bytes((await calls.ended()).data) == b"alive"


async def test_a_server_with_a_smaller_header_table_is_told_that_ours_is_empty() -> None:
    async def script(peer: RawServer) -> None:
        for number in range(2):
            stream_id = await peer.request()
            block = [f for f in peer.seen if f.kind == HEADERS][-1].payload
            assert (block[:1] == b"\x20") is (number == 0)
            peer.respond(stream_id, b"ok")

    async with scripted(script, {Setting.HEADER_TABLE_SIZE: 0}) as connection:
        calls = Calls(connection)
        await asyncio.sleep(0.02)
        for number in range(2):
            calls.make()
            assert bytes((await calls.ended(number + 1)).data) == b"ok"


async def test_a_callback_may_make_the_next_call_and_the_last_may_close() -> None:
    async with serving() as server:
        connection = await connect("127.0.0.1", server.port)
        prepared = connection.prepare(ECHO, b"again")
        closed = asyncio.get_running_loop().create_future()
        ends: list[int] = []
        count = 0

        def again(response: GrpcResponse) -> None:
            nonlocal count
            if response.status:
                ends.append(response.status)
                return
            count += 1
            if count < 100:
                connection.call(prepared, again)
            elif count == 100:
                connection.close()
                closed.set_result(None)

        for _ in range(5):
            connection.call(prepared, again)
        await asyncio.wait_for(closed, 5)
        await server.empty()
        assert count == 100, "after close no callback comes with a response"
        assert ends == [Status.UNAVAILABLE] * 4


async def test_closing_in_a_callback_ends_the_other_calls_as_unavailable() -> None:
    async with serving() as server:
        connection = await connect("127.0.0.1", server.port)
        ends: list[int] = []
        connection.call(connection.prepare(HOLD, b"x"), lambda r: ends.append(r.status))
        connection.call(connection.prepare(ECHO, b"x"), lambda r: connection.close())
        await server.empty()
        await asyncio.sleep(0.01)
        assert ends == [Status.UNAVAILABLE]
        assert server.service.gone == [1]


async def test_cancel_reaches_the_server_and_the_callback() -> None:
    async with serving() as server:
        connection = await connect("127.0.0.1", server.port)
        ends: list[GrpcResponse] = []
        stream_id = connection.call(connection.prepare(HOLD, b"x"), ends.append)
        await asyncio.sleep(0.01)
        connection.cancel(stream_id)
        connection.cancel(stream_id)
        assert [end.status for end in ends] == [Status.CANCELLED]
        assert await connection.unary(ECHO, b"next") == b"next"
        assert server.service.gone == [1]
        connection.close()


async def test_a_stream_of_messages_both_ways() -> None:
    async with serving() as server:
        connection = await connect("127.0.0.1", server.port)
        got: list[bytes] = []
        ended: asyncio.Future[GrpcResponse] = asyncio.get_running_loop().create_future()
        call = connection.open(CHAT, lambda message: got.append(bytes(message)), ended.set_result)
        sent = [b"", b"a", bytes(70_000), b"z" * 3_000_000]
        for message in sent:
            call.send(message)
        call.half_close()
        call.half_close()
        call.send(b"after the end: dropped")
        response = await asyncio.wait_for(ended, 5)
        assert response.status == 0
        assert got == sent
        assert connection.in_flight == 0
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
        assert connection.sender.idle
        assert await connection.unary(ECHO, b"next") == b"next"
        connection.close()


async def test_nobody_at_the_port_is_named() -> None:
    server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    with pytest.raises(WireError, match=f"cannot connect to 127.0.0.1:{port}"):
        await connect("127.0.0.1", port)


async def test_the_settings_of_the_server_are_acknowledged() -> None:
    acknowledged = asyncio.Event()

    async def script(peer: RawServer) -> None:
        while (frame := await peer.next(frames.SETTINGS)).flags != ACK:
            assert dict(frames.parse_settings(frame.payload))[Setting.ENABLE_PUSH] == 0
        acknowledged.set()

    async with scripted(script):
        await asyncio.wait_for(acknowledged.wait(), 5)
