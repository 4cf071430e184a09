"""Slow and crowding gRPC clients: requests that do not come to an end, and connections over a limit."""

import grpc
import pytest

from tests.protocol.grpc.service import CHAT, ECHO, HOLD, serving
from tests.protocol.http2.raw import RawPeer, grpc_headers
from tests.protocol.turns import pause
from tpx.protocol.grpc.framing import frame_message
from tpx.protocol.grpc.limits import GrpcLimits
from tpx.protocol.grpc.status import Status
from tpx.protocol.http2 import frames
from tpx.protocol.http2.frames import CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, ErrorCode
from tpx.protocol.http2.hpack import encode_stateless

HALF = frame_message(bytes(1000))[:500]


@pytest.mark.parametrize("begun", [b"", HALF[:3], HALF], ids=["nothing", "a prefix", "half"])
async def test_a_request_that_stops_is_ended_and_its_connection_serves_on(begun: bytes) -> None:
    async with serving(GrpcLimits(message_timeout_s=3)) as server, await RawPeer.connect(server.port) as peer:
        peer.open(1, ECHO)
        if begun:
            peer.send(DATA, 0, 1, begun)
        await peer.sync()
        server.pass_seconds(4)
        assert 1 in server.connection.streams
        server.pass_seconds(1)
        answer = await peer.answer(1)
        assert answer.status == Status.DEADLINE_EXCEEDED
        assert answer.blocks[-1][b"grpc-message"] == b"no byte of the request message for 3 s"
        peer.call(3, ECHO, b"next")
        assert (await peer.answer(3)).message == b"next"


async def test_a_request_that_comes_slowly_is_served() -> None:
    whole = frame_message(bytes(10))
    limits = GrpcLimits(message_timeout_s=3, min_receive_rate=0)
    async with serving(limits) as server, await RawPeer.connect(server.port) as peer:
        peer.open(1, ECHO)
        for at in range(len(whole)):
            peer.send(DATA, frames.END_STREAM if at == len(whole) - 1 else 0, 1, whole[at : at + 1])
            await peer.sync()
            server.pass_seconds(3)
        assert (await peer.answer(1)).message == bytes(10)


async def test_a_message_that_drips_ends_its_call() -> None:
    """Each byte puts off the limit of silence, but the average counts, too."""
    limits = GrpcLimits(message_timeout_s=3, min_receive_rate=10)
    async with serving(limits) as server, await RawPeer.connect(server.port) as peer:
        peer.open(1, ECHO)
        peer.send(DATA, 0, 1, HALF[:5])
        for _ in range(5):
            peer.send(DATA, 0, 1, bytes(21))
            await peer.sync()
            server.pass_seconds(2)
        assert 1 in server.connection.streams
        peer.send(DATA, 0, 1, b"x")
        await peer.sync()
        server.pass_seconds(3)
        answer = await peer.answer(1)
        assert answer.status == Status.DEADLINE_EXCEEDED
        assert b"at less than 10 bytes per second" in answer.blocks[-1][b"grpc-message"]


async def test_messages_that_come_together_share_the_rate_of_their_client() -> None:
    limits = GrpcLimits(message_timeout_s=3, min_receive_rate=10)
    async with serving(limits) as server, await RawPeer.connect(server.port) as peer:
        for stream_id in range(1, 21, 2):
            peer.open(stream_id, ECHO)
            peer.send(DATA, 0, stream_id, HALF[:5])
        for _ in range(10):
            for stream_id in range(1, 21, 2):
                peer.send(DATA, 0, stream_id, bytes(2))
            await peer.sync()
            server.pass_seconds(1)
        assert len(server.connection.streams) == 10


async def test_a_message_has_a_time_to_be_complete() -> None:
    async with serving(GrpcLimits(max_receive_s=100)) as server, await RawPeer.connect(server.port) as peer:
        peer.open(1, ECHO)
        peer.send(DATA, 0, 1, frame_message(bytes(10_000_000))[:5])
        for _ in range(10):
            peer.send(DATA, 0, 1, bytes(10_000))
            await peer.sync()
            server.pass_seconds(10)
        assert 1 in server.connection.streams
        server.pass_seconds(2)
        answer = await peer.answer(1)
        assert b"not complete within 100 s" in answer.blocks[-1][b"grpc-message"]


BLOCK = encode_stateless(grpc_headers(ECHO))
DRIPS = {
    "a HEADERS frame": frames.frame(HEADERS, END_HEADERS, 1, BLOCK),
    "CONTINUATION frames": b"".join(
        frames.frame(CONTINUATION if at else HEADERS, 0, 1, BLOCK[at : at + 5]) for at in range(0, 50, 5)
    ),
    "PING": frames.frame(frames.PING, 0, 0, bytes(8)) * 2,
}


@pytest.mark.parametrize("what", DRIPS)
async def test_a_header_block_that_drips_ends_its_connection(what: str) -> None:
    limits = GrpcLimits(header_timeout_s=5)
    async with serving(limits) as server, await RawPeer.connect(server.port) as peer:
        await peer.sync()
        for byte in DRIPS[what][:12]:
            peer.writer.write(bytes([byte]))
        for byte in DRIPS[what][12:17]:
            peer.writer.write(bytes([byte]))
            await pause(0.01)
            server.pass_seconds(1)
        assert server.listener.connections == 1
        peer.writer.write(DRIPS[what][17:20])
        await pause(0.01)
        server.pass_seconds(6)
        assert server.listener.connections == (what == "PING")


async def test_header_blocks_that_come_in_pieces_again_and_again_are_served() -> None:
    async with serving(GrpcLimits(header_timeout_s=2)) as server, await RawPeer.connect(server.port) as peer:
        await peer.sync()
        left = b""
        for number in range(6):
            block = frames.frame(HEADERS, END_HEADERS, 2 * number + 1, BLOCK)
            end = frames.frame(DATA, END_STREAM, 2 * number + 1, frame_message(b"x"))
            peer.writer.write(left + block[:20])
            left = block[20:] + end
            await pause(0.01)
            server.pass_seconds(1)
        peer.writer.write(left)
        assert (await peer.answer(11)).message == b"x"


async def test_who_waits_for_its_answer_and_a_stream_between_messages_may_be_silent() -> None:
    async with serving(GrpcLimits(message_timeout_s=3)) as server, await RawPeer.connect(server.port) as peer:
        peer.call(1, HOLD, b"x")
        peer.open(3, CHAT)
        peer.send_message(3, b"first")
        await peer.sync()
        server.pass_seconds(50)
        server.service.release()
        peer.send_message(3, b"second", end_stream=True)
        assert (await peer.answer(1)).message == b"done"
        assert bytes((await peer.answer(3)).data) == frame_message(b"first") + frame_message(b"second")


async def test_a_stream_that_stops_in_a_message_is_ended_and_its_owner_told() -> None:
    async with serving(GrpcLimits(message_timeout_s=3)) as server, await RawPeer.connect(server.port) as peer:
        peer.open(1, CHAT)
        peer.send(DATA, 0, 1, HALF)
        await peer.sync()
        server.pass_seconds(5)
        assert (await peer.answer(1)).status == Status.DEADLINE_EXCEEDED
        assert server.service.gone == [1]


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"max_connections": 1}, "the server has 1 connections, its limit"),
        ({"max_per_client": 1}, "127.0.0.1 has 1 connections, its limit"),
    ],
)
async def test_a_connection_too_many_is_told_so(limits: dict[str, int], message: str) -> None:
    async with serving(**limits) as server, await RawPeer.connect(server.port) as first:  # type: ignore[arg-type]
        await first.sync()
        async with await RawPeer.connect(server.port) as second:
            goaway = await second.goaway()
            assert (ErrorCode(goaway.code), goaway.reason) == (ErrorCode.ENHANCE_YOUR_CALM, message)
            assert await second.closed()
        first.call(1, ECHO, b"still served")
        assert (await first.answer(1)).message == b"still served"


@pytest.mark.slow
async def test_grpcio_learns_that_it_is_one_too_many() -> None:
    async with serving(max_connections=1) as server, await RawPeer.connect(server.port) as first:
        await first.sync()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            call = channel.unary_unary(ECHO)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(b"x", timeout=1)
            assert caught.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


async def test_very_many_requests_that_stop_are_ended_over_several_seconds() -> None:
    limits = GrpcLimits(message_timeout_s=3)
    async with serving(limits) as server, await RawPeer.connect(server.port) as peer:
        for number in range(700):
            peer.open(2 * number + 1, ECHO)
        await peer.sync()
        server.pass_seconds(5)
        assert len(server.connection.streams) == 200
        server.pass_seconds(1)
        assert (await peer.answer(1399)).status == Status.DEADLINE_EXCEEDED
