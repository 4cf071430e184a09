"""Our client against a server that speaks frame by frame, and so may misbehave."""

import asyncio
import gzip
import zlib
from collections.abc import Callable

import pytest

from tests.protocol.grpc.scripted import OK, TRAILERS, Calls, RawServer, scripted
from tests.protocol.grpc.service import CHAT, ECHO, HOLD, serving
from tests.protocol.turns import pause
from tests.waiting import until
from tpx.errors import WireError
from tpx.protocol.grpc.client import connect
from tpx.protocol.grpc.client_call import GrpcResponse
from tpx.protocol.grpc.framing import frame_message, pack_prefix
from tpx.protocol.grpc.status import Status
from tpx.protocol.http2 import frames
from tpx.protocol.http2.frames import ACK, CONTINUATION, DATA, HEADERS, ErrorCode, GlitchBudget, Setting


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
        await until(lambda: connection.max_concurrent_streams == 2)
        ids = [calls.make() for _ in range(10)]
        assert ids == [1, 3, *[0] * 8]
        assert connection.in_flight == 10
        with pytest.raises(WireError, match="at most 2 calls"):
            connection.open(CHAT, calls.ends.append, calls.ends.append)  # type: ignore[arg-type]
        await calls.ended(10)
        assert {response.status for response in calls.ends} == {0}
        assert most == 2


async def test_a_call_that_gave_up_waiting_is_never_made() -> None:
    requests: list[int] = []

    async def script(peer: RawServer) -> None:
        requests.append(await peer.request())
        await pause(0.1)
        peer.respond(requests[0], b"late")
        requests.append(await peer.request())
        peer.respond(requests[1], b"second")

    async with scripted(script, {Setting.MAX_CONCURRENT_STREAMS: 1}) as connection:
        await until(lambda: connection.max_concurrent_streams == 1)
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
        await pause(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert connection.in_flight == 0
        await asyncio.wait_for(seen.wait(), 5)


@pytest.mark.slow
async def test_a_busy_server_may_ping_and_reset_for_a_long_time() -> None:
    """The budget of a peer is filled by time; the client of a long run lives on."""

    async def script(peer: RawServer) -> None:
        stream_id = await peer.request()
        for _ in range(4):
            for _ in range(1500):
                peer.send(frames.PING, payload=bytes(8))
            await peer.sync()
        peer.respond(stream_id, b"alive")

    async with scripted(script) as connection:
        connection.http2.control.glitches = GlitchBudget(
            per_s=10**9
        )  # full at once, as far as this peer can tell
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
        await pause(0.02)
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


@pytest.mark.parametrize("body", [10, 50_000])
async def test_metadata_larger_than_a_frame_travels_in_continuations(body: int) -> None:
    async def script(peer: RawServer) -> None:
        stream_id = await peer.request()
        sizes = [len(f.payload) for f in peer.seen if f.kind in (HEADERS, CONTINUATION)]
        assert sizes[:2] == [16384, 16384]
        assert max(len(f.payload) for f in peer.seen) == 16384
        assert peer.answers[stream_id].blocks[0][b"x-4"] == b"v" * 9000
        peer.respond(stream_id, b"seen")

    async with scripted(script) as connection:
        calls = Calls(connection)
        metadata: dict[str, str | bytes] = {f"x-{n}": "v" * 9000 for n in range(5)}
        connection.call(connection.prepare(ECHO, bytes(body), metadata), calls.ends.append)
        assert bytes((await calls.ended()).data) == b"seen"


async def test_much_metadata_reaches_our_own_server() -> None:
    async with serving() as server:
        connection = await connect("127.0.0.1", server.port)
        metadata: dict[str, str | bytes] = {f"x-{n}": "v" * 5000 for n in range(3)}
        ends: asyncio.Future[GrpcResponse] = asyncio.get_running_loop().create_future()
        connection.call(connection.prepare(HOLD, b"", metadata), ends.set_result)
        await until(lambda: server.service.held)
        assert server.service.held[0].head.metadata == {"user-agent": "tpx", **metadata}
        server.service.release()
        assert (await asyncio.wait_for(ends, 5)).status == 0
        connection.close()
