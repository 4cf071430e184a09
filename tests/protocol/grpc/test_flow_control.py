"""Large messages both ways: windows, full pipes, and memory."""

import asyncio
import gzip
import os
import socket

import pytest

from tests.protocol.grpc.scripted import OK, Calls, RawServer, scripted
from tests.protocol.grpc.service import CHAT, ECHO, FLOOD, HOLD, serving
from tests.protocol.http2.raw import RawPeer
from tests.protocol.turns import pause
from tests.waiting import until
from tpx.protocol.grpc.client import GrpcClientConnection, connect
from tpx.protocol.grpc.client_call import GrpcResponse
from tpx.protocol.grpc.framing import frame_message, pack_prefix
from tpx.protocol.grpc.status import Status
from tpx.protocol.http2 import frames
from tpx.protocol.http2.frames import DATA, Setting
from tpx.protocol.http2.sender import STREAM_WINDOW


async def calls_at_once(connection: GrpcClientConnection, count: int, size: int) -> None:
    """Make `count` calls with messages of `size` bytes and see every answer."""
    ends: list[GrpcResponse] = []
    done = asyncio.Event()
    message = bytes(range(256)) * (size // 256)
    prepared = connection.prepare(ECHO, message)

    def ended(response: GrpcResponse) -> None:
        ends.append(response)
        if len(ends) == count:
            done.set()

    for _ in range(count):
        connection.call(prepared, ended)
    await asyncio.wait_for(done.wait(), 25)
    assert {end.status for end in ends} == {0}
    assert all(bytes(end.data) == message for end in ends)


@pytest.mark.parametrize(("count", "size"), [(40, 600 << 10), (6, 5 << 20)])
async def test_large_messages_go_both_ways_at_once(count: int, size: int) -> None:
    async with serving() as server:
        connection = await connect("127.0.0.1", server.port)
        await calls_at_once(connection, count, size)
        assert not connection.http2.sender.queued
        assert not server.connection.sender.queued
        assert server.connection.streams == {}
        connection.close()


async def test_two_full_pipes_do_not_wait_for_each_other() -> None:
    """Both ends have more to write than the sockets hold: someone must go on reading."""
    async with serving() as server:
        connection = await connect("127.0.0.1", server.port)
        for buffer in (connection.http2.transport, server.connection.transport):
            small = buffer.transport.get_extra_info("socket")
            small.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
            small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        await calls_at_once(connection, 6, 3 << 20)
        connection.close()


@pytest.mark.slow
async def test_a_message_of_50_mb_goes_both_ways() -> None:
    async with serving() as server:
        connection = await connect("127.0.0.1", server.port)
        message = bytes(50 << 20)
        assert await connection.unary(ECHO, message) == message
        connection.close()


@pytest.mark.parametrize("window", [1, 100, 16384])
async def test_a_small_window_is_respected_to_the_byte(window: int) -> None:
    size = 40 * window
    settings = {Setting.INITIAL_WINDOW_SIZE: window}
    async with serving() as server, await RawPeer.connect(server.port, settings=settings) as peer:
        peer.grant(0, 1 << 24)
        peer.call(1, ECHO, bytes(size))
        got = 0
        while got < size + 5:
            frame = await peer.next(DATA)
            got += len(frame.payload)
            assert len(frame.payload) <= window
            peer.grant(1, len(frame.payload))
        assert (await peer.answer(1)).status == 0


async def test_the_window_of_the_connection_holds_for_all_streams_together() -> None:
    settings = {Setting.INITIAL_WINDOW_SIZE: 1 << 20}
    async with serving() as server, await RawPeer.connect(server.port, settings=settings) as peer:
        for stream_id in (1, 3, 5):
            peer.open(stream_id, FLOOD)
            peer.send_message(stream_id, b"1 50000")
        await peer.sync()
        sent = [frame for frame in peer.seen if frame.kind == DATA]
        assert sum(len(frame.payload) for frame in sent) == 65535
        peer.grant(0, 1 << 20)
        for stream_id in (1, 3, 5):
            assert len((await peer.answer(stream_id)).message) == 50_000


async def test_a_window_made_smaller_while_a_response_is_sent_holds() -> None:
    async with serving() as server, await RawPeer.connect(server.port) as peer:
        peer.open(1, FLOOD)
        peer.send_message(1, b"1 200000")
        await peer.sync()
        assert len(peer.answers[1].data) == 65535
        peer.send(frames.SETTINGS, payload=frames.settings_frame({Setting.INITIAL_WINDOW_SIZE: 0})[9:])
        peer._unacknowledged += 1
        peer.grant(0, 1 << 20)
        peer.grant(1, 65535)
        await peer.sync()
        assert len(peer.answers[1].data) == 65535, "the grant only fills what the setting took"
        peer.grant(1, 1000)
        await peer.sync()
        assert len(peer.answers[1].data) == 66535


async def test_what_we_receive_is_given_back_before_it_runs_out() -> None:
    async with serving() as server, await RawPeer.connect(server.port) as peer:
        peer.open(1, CHAT)
        peer.grant(0, 1 << 28)
        peer.grant(1, 1 << 28)
        window = STREAM_WINDOW
        for _ in range(12):
            framed = frame_message(bytes(1 << 20))
            for at in range(0, len(framed), 16384):
                piece = framed[at : at + 16384]
                while window < len(piece):
                    update = await peer.next(frames.WINDOW_UPDATE)
                    if update.stream_id == 1:
                        window += int.from_bytes(update.payload, "big")
                window -= len(piece)
                peer.send(DATA, 0, 1, piece)
            await peer.writer.drain()
        peer.send(DATA, frames.END_STREAM, 1)
        answer = await peer.answer(1, 20)
        assert answer.status == 0
        assert len(answer.data) == 12 * ((1 << 20) + 5)


async def test_a_large_compressed_message_is_inflated_and_a_broken_one_is_refused() -> None:
    """Both are read straight into their buffers."""
    good = gzip.compress(os.urandom(300_000))
    for packed, status in ((good, Status.OK), (bytes(300_000), Status.INVALID_ARGUMENT)):
        async with serving() as server, await RawPeer.connect(server.port) as peer:
            peer.open(1, HOLD, (b"grpc-encoding", b"gzip"))
            peer.send(DATA, frames.END_STREAM, 1, pack_prefix(1, len(packed)) + packed)
            if status is Status.OK:
                await until(lambda: server.service.held)
                server.service.release(b"inflated")
                assert server.service.messages == [gzip.decompress(good)]
            assert (await peer.answer(1)).status == status


async def test_a_large_broken_response_ends_its_call() -> None:
    async def script(peer: RawServer) -> None:
        stream_id = await peer.request()
        peer.send_headers(stream_id, [*OK, (b"grpc-encoding", b"gzip")])
        peer.send(DATA, 0, stream_id, pack_prefix(1, 300_000) + bytes(300_000))
        assert await peer.reset_of(stream_id) == frames.ErrorCode.CANCEL

    async with scripted(script) as connection:
        calls = Calls(connection)
        calls.make()
        assert (await calls.ended()).status == Status.INTERNAL
        await pause(0.02)
