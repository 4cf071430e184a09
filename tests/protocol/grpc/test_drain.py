"""Going away in order: nothing that was asked for is lost."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest

from tests.protocol.grpc.service import ECHO, FLOOD, HOLD, QUIT, WireServer, serving
from tests.protocol.http2.raw import RawPeer
from tests.protocol.turns import pause
from tests.waiting import until
from tpx.errors import WireError
from tpx.protocol.grpc.client import GrpcClientConnection, connect
from tpx.protocol.grpc.client_call import GrpcResponse
from tpx.protocol.grpc.limits import GrpcLimits, KeepaliveLimits
from tpx.protocol.http2 import frames
from tpx.protocol.http2.frames import ACK, ErrorCode


async def test_an_idle_connection_ends_at_once() -> None:
    async with serving() as server, await RawPeer.connect(server.port) as peer:
        peer.call(1, ECHO, b"x")
        await peer.answer(1)
        server.listener.stop_accepting()
        ping = await peer.next(frames.PING)
        peer.send(frames.PING, ACK, 0, ping.payload)
        assert (await peer.goaway()).code == ErrorCode.NO_ERROR
        assert await peer.closed()


async def test_a_released_connection_serves_what_its_client_had_sent_and_new_ones_are_released_too() -> None:
    async with serving() as server, await RawPeer.connect(server.port) as peer:
        await peer.sync()
        server.listener.release()
        peer.call(1, ECHO, b"before the client knows")
        ping = await peer.next(frames.PING)
        assert (await peer.answer(1)).message == b"before the client knows"
        peer.send(frames.PING, ACK, 0, ping.payload)
        assert (await peer.goaway()).code == ErrorCode.NO_ERROR
        assert await peer.closed()
        async with await RawPeer.connect(server.port) as later:
            later.call(1, ECHO, b"x")
            assert (await later.answer(1)).message == b"x"
            server.pass_seconds(1)
            ping = await later.next(frames.PING)
            later.send(frames.PING, ACK, 0, ping.payload)
            await later.goaway()
            assert await later.closed()


async def test_a_client_that_ignores_the_ping_does_not_hold_the_server() -> None:
    async with serving() as server, await RawPeer.connect(server.port) as peer:
        await peer.sync()
        server.listener.stop_accepting()
        server.pass_seconds(2)
        await peer.goaway()
        await peer.goaway()
        connection = server.connection
        server.pass_seconds(1)
        assert connection.transport.is_closing()
        await server.empty()


async def test_a_connection_without_a_preface_ends_at_once() -> None:
    async with serving() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        await reader.read(1)
        server.listener.stop_accepting()
        await asyncio.wait_for(reader.read(), 5)
        writer.close()
        await writer.wait_closed()


async def test_the_last_answer_of_a_draining_connection_arrives_whole() -> None:
    """It is large, flow control cuts it, and the client keeps talking while it comes."""
    async with serving() as server, await RawPeer.connect(server.port) as peer:
        peer.open(1, QUIT)
        peer.send_message(1, b"3000000")
        await peer.sync()
        server.listener.stop_accepting()
        ping = await peer.next(frames.PING)
        peer.send(frames.PING, ACK, 0, ping.payload)
        await peer.goaway()
        for _ in range(3000):
            peer.grant(0, 1000)
            peer.grant(1, 1000)
        answer = await peer.answer(1)
        assert (answer.status, len(answer.message)) == (0, 3_000_000)
        assert await peer.closed()


async def test_input_that_nobody_reads_any_more_does_not_take_the_last_words_with_it() -> None:
    """A socket that is closed with unread input resets the connection, and what was sent may be lost."""
    async with serving() as server, await RawPeer.connect(server.port) as peer:
        peer.call(1, HOLD, b"x")
        await peer.sync()
        for _ in range(20):
            peer.send(frames.DATA, 0, 99, bytes(16000))
            peer.writer.write(bytes(50_000))
        goaway = await peer.goaway()
        assert ErrorCode(goaway.code) is ErrorCode.PROTOCOL_ERROR
        assert server.service.gone == [1]


class Load:
    """Callers that keep one call in flight each, and move to a new connection when theirs takes no more."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.done = 0
        self.moves = 0
        self.failures: list[str] = []
        self.stopping = False
        self._connection: GrpcClientConnection | None = None

    async def caller(self, message: bytes) -> None:
        while not self.stopping:
            connection = await self._current()
            answer: asyncio.Future[GrpcResponse] = asyncio.get_running_loop().create_future()
            try:
                connection.call(connection.prepare(ECHO, message), answer.set_result)
            except WireError:
                continue
            response = await answer
            if response.status:
                self.failures.append(f"{response.status} {response.message}")
            elif bytes(response.data) != message:
                self.failures.append("another answer")
            self.done += 1

    async def _current(self) -> GrpcClientConnection:
        while self._connection is None or self._connection.closing:
            self.moves += 1
            fresh = await connect("127.0.0.1", self._port)
            if self._connection is None or self._connection.closing:
                self._connection = fresh
            else:
                fresh.close()
        return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


@asynccontextmanager
async def two_servers() -> AsyncIterator[tuple[WireServer, WireServer]]:
    """Both on one port, so that clients of the first find the second."""
    async with serving(reuse_port=True) as first, serving(port=first.port) as second:
        yield first, second


@pytest.mark.slow
@pytest.mark.parametrize("size", [10, 100_000])
async def test_no_call_fails_when_a_server_drains_under_load(size: int) -> None:
    async with two_servers() as (first, second):
        load = Load(first.port)
        async with asyncio.TaskGroup() as group:
            for _ in range(16):
                group.create_task(load.caller(b"m" * size))
            await pause(0.1)
            first.listener.stop_accepting()
            await first.empty()
            before = load.done
            await pause(0.1)
            load.stopping = True
        load.close()
        assert load.failures == []
        assert load.done > before > 0
        assert second.connections


async def test_no_call_fails_when_connections_grow_old_under_load() -> None:
    limits = GrpcLimits(keepalive=KeepaliveLimits(max_connection_age_s=1))
    async with serving(limits) as server:
        load = Load(server.port)
        async with asyncio.TaskGroup() as group:
            for _ in range(8):
                group.create_task(load.caller(b"message"))
            for _ in range(20):
                # a second passes, as it were, only after everyone has come round: also on a busy machine
                await until(lambda enough=load.done + 30: load.done >= enough)  # type: ignore[misc]
                server.pass_seconds(1)
            load.stopping = True
        load.close()
        assert load.failures == []
        assert len(server.connections) > 3
        assert load.done > 100


def test_no_call_of_grpcio_fails_when_a_server_drains_under_load() -> None:
    """The other client that everyone has: it moves on by itself."""

    async def scenario() -> None:
        async with two_servers() as (first, second):
            failures: list[str] = []
            done = 0
            stopping = False
            async with grpc.aio.insecure_channel(f"127.0.0.1:{first.port}") as channel:
                echo = channel.unary_unary(ECHO)

                async def caller() -> None:
                    nonlocal done
                    while not stopping:
                        try:
                            assert await echo(b"hello", timeout=10) == b"hello"
                        except grpc.RpcError as error:
                            failures.append(str(error))
                        done += 1

                async with asyncio.TaskGroup() as group:
                    for _ in range(8):
                        group.create_task(caller())
                    await until(lambda: done >= 50)
                    draining, staying = (first, second) if first.connections else (second, first)
                    draining.listener.stop_accepting()
                    await draining.empty()
                    before = done
                    await until(lambda: done >= before + 50)
                    stopping = True
            assert failures == []
            assert staying.connections

    asyncio.run(asyncio.wait_for(scenario(), 20))


async def test_the_messages_of_a_stream_all_come_while_the_server_drains() -> None:
    async with serving() as server:
        connection = await connect("127.0.0.1", server.port)
        ended: asyncio.Future[GrpcResponse] = asyncio.get_running_loop().create_future()
        sizes: list[int] = []
        call = connection.open(FLOOD, lambda message: sizes.append(len(message)), ended.set_result)
        call.send(b"50 300000")
        await pause(0.01)
        server.listener.stop_accepting()
        response = await asyncio.wait_for(ended, 5)
        assert (response.status, sizes) == (0, [300_000] * 50)
        await server.empty()
