"""Listening sockets, their limits and their clock."""

import asyncio
import socket
import ssl
from contextlib import suppress
from typing import cast

import pytest

from tests.protocol.turns import pause
from tests.waiting import until
from tpx.protocol.listener import Listener, WriteWatch, has_left


class Plain(asyncio.Protocol):
    """A connection that counts what the listener asks of it."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self.swept: list[int] = []
        self.released = self.drained = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._listener.opened(self, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._listener.closed(self)

    def sweep(self, tick: int) -> None:
        self.swept.append(tick)
        if len(self.swept) == 2:
            raise RuntimeError("a connection with a defect")

    def release(self) -> None:
        self.released += 1

    def drain(self) -> None:
        self.drained += 1
        self.transport.close()

    def refuse(self, reason: str) -> None:
        self.transport.write(reason.encode())
        self.transport.close()

    def abort(self) -> None:
        self.transport.abort()


async def test_connections_that_wait_when_a_shared_port_is_closed_are_served() -> None:
    listener = Listener()
    made: list[Plain] = []

    def make() -> Plain:
        made.append(Plain(listener))
        return made[-1]

    port = await listener.start(make, "127.0.0.1", 0, reuse_port=True)
    waiting = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]  # no turn of the loop
    listener.release()
    try:
        await until(lambda: listener.connections == len(waiting))
        for connection in made:
            connection.transport.write(b"served")
        for sock in waiting:
            assert await asyncio.to_thread(sock.recv, 6) == b"served"
    finally:
        for sock in waiting:
            sock.close()
        listener.close()
        await until(lambda: not listener.connections)


async def test_one_connection_too_many_is_closed_and_room_is_made_by_the_next_to_leave() -> None:
    listener = Listener(max_connections=2)
    made: list[Plain] = []

    def make() -> Plain:
        made.append(Plain(listener))
        return made[-1]

    port = await listener.start(make, "127.0.0.1", 0)
    clients = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
    assert await clients[2][0].read() == b"the server has 2 connections, its limit"
    assert listener.connections == 2
    clients[0][1].close()
    await pause(0.02)
    clients.append(await asyncio.open_connection("127.0.0.1", port))
    await pause(0.02)
    assert listener.connections == 2
    listener.stop_accepting()
    assert [connection.drained for connection in made] == [0, 1, 0, 1]
    with pytest.raises(OSError, match=r"refused|Connect"):
        await asyncio.open_connection("127.0.0.1", port)
    listener.close()
    for _, writer in clients:
        writer.close()
    await pause(0.02)
    assert listener.connections == 0


async def test_clients_are_asked_to_connect_anew_while_the_port_stays_open_unless_it_is_shared() -> None:
    for shared in (False, True):
        listener = Listener()
        made: list[Plain] = []

        def make(listener: Listener = listener, made: list[Plain] = made) -> Plain:
            made.append(Plain(listener))
            return made[-1]

        port = await listener.start(make, "127.0.0.1", 0, reuse_port=shared)
        clients = [await asyncio.open_connection("127.0.0.1", port)]
        listener.release()
        assert [each.released for each in made] == [1]
        if shared:
            with pytest.raises(OSError, match=r"refused|Connect"):
                await asyncio.open_connection("127.0.0.1", port)
        else:
            clients.append(await asyncio.open_connection("127.0.0.1", port))
            await pause(0.02)
            listener.advance()
            assert [each.released for each in made] == [2, 1], "a later one is asked at the next tick"
        assert all(each.drained == 0 for each in made)
        listener.close()
        for _, writer in clients:
            writer.close()
        await pause(0.02)


async def test_many_connections_are_accepted_in_one_turn_of_the_loop() -> None:
    """uvloop accepts one in each turn: while something else takes long, clients would wait in the queue."""
    listener = Listener()
    port = await listener.start(lambda: Plain(listener), "127.0.0.1", 0)
    socks = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
    turns = 0
    while listener.connections < 100 and turns < 1000:
        await asyncio.sleep(0)
        turns += 1
    assert listener.connections == 100
    assert turns < 20
    listener.close()
    for sock in socks:
        sock.close()
    await pause(0.02)


async def test_time_goes_on_for_the_others_when_one_connection_has_a_defect() -> None:
    listener = Listener()
    port = await listener.start(lambda: Plain(listener), "127.0.0.1", 0)
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    await pause(0.02)
    listener.advance()
    with pytest.raises(RuntimeError, match="defect"):
        listener.advance()
    before = listener._ticker
    listener._tick()
    assert listener._ticker is not before
    assert listener.tick == 3
    listener.close()
    writer.close()


async def test_an_address_in_use_is_an_os_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listener = Listener()
        with pytest.raises(OSError, match="in use"):
            await listener.start(lambda: Plain(listener), "127.0.0.1", taken.getsockname()[1])
        listener.close()


async def test_a_name_that_no_address_can_have_is_an_os_error() -> None:
    with pytest.raises(socket.gaierror):
        await Listener().start(asyncio.Protocol, f"{'a' * 64}.example", 0)


async def test_what_the_client_takes_counts_and_what_it_leaves_does_not() -> None:
    server_side: asyncio.Future[asyncio.Transport] = asyncio.get_running_loop().create_future()

    class Other(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            server_side.set_result(cast("asyncio.Transport", transport))

    server = await asyncio.get_running_loop().create_server(Other, "127.0.0.1", 0)
    async with server:
        with socket.create_connection(server.sockets[0].getsockname()) as client:
            transport = await server_side
            watch = WriteWatch()
            assert watch.stalled_s(transport, 0, 7) == 0
            size = 20 << 20
            transport.write(bytes(size))
            await pause(0.05)
            assert [watch.stalled_s(transport, size, tick) for tick in (10, 11, 14)] == [0, 1, 4]
            client.recv(1 << 20)
            await pause(0.05)
            assert watch.stalled_s(transport, size, 20) == 0
            assert watch.stalled_s(transport, size, 21) == 1
            client.setblocking(False)

            def drained() -> bool:
                with suppress(BlockingIOError):
                    client.recv(1 << 20)
                return not transport.get_write_buffer_size()

            await until(drained)
            assert watch.stalled_s(transport, size, 60) == 0
            assert watch.stalled_s(transport, size, 99) == 0, "with nothing to send nothing stalls"
        transport.close()


async def test_a_connection_with_tls_that_was_lost_this_moment_owes_nothing() -> None:
    class Lost(asyncio.Transport):
        """As a transport with TLS is between the loss of what is below it and the word of it."""

        def get_write_buffer_size(self) -> int:
            return 0

        def get_extra_info(self, name: str, default: object = None) -> object:
            return ssl.create_default_context() if name == "sslcontext" else default

    watch = WriteWatch()
    assert [watch.stalled_s(Lost(), 100, tick) for tick in (1, 2, 90)] == [0, 0, 0]
    assert has_left(Lost())
