"""Listening sockets and their accepted connections: limits, the clock of deadlines, and draining."""

import asyncio
import fcntl
import logging
import socket
import ssl
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

from tpx.protocol.handshakes import BACKLOG, Handshakes, begin_to_listen, client_of, listening_sockets
from tpx.protocol.memory_budget import MemoryBudget
from tpx.protocol.read_buffer import SHARE_S, Turns
from tpx.protocol.tensors import new_scratch
from tpx.protocol.write_buffer import WriteCoalescing

log = logging.getLogger(__name__)

LINGER_S = 3
"""Seconds that the peer has to close a connection that we have ended, as it may still read our last bytes."""

_TCP_ESTABLISHED = 1
_TCP_CLOSE = 7
_ACCEPTED_AT_ONCE = 64
_ANSWERED = 128
"""Number of connections over a limit that get an error response; more are only closed."""


class Connection(Protocol):
    """Interface of a connection to its listener."""

    def sweep(self, tick: int) -> None: ...
    def refuse(self, reason: str) -> None: ...
    def release(self) -> None:
        """Make the client reconnect for its next request, without failing any."""

    def drain(self) -> None:
        """Close once nothing is in flight."""

    def abort(self) -> None: ...


class WriteWatch:
    """Measures for how long a client has accepted none of the bytes sent to it."""

    def __init__(self) -> None:
        self.owing = False
        """True if some bytes were unacknowledged at the last check."""
        self._taken = -1
        self._since = 0

    def stalled_s(self, transport: asyncio.Transport, written: int, tick: int) -> int:
        """Return the seconds without progress; call once per second. `written`: total bytes ever written."""
        left = transport.get_write_buffer_size()
        if left or transport.get_extra_info("sslcontext") is not None:
            # bytes that the peer has not acknowledged tell a slow client from a dead one; a TLS transport
            # does not report the bytes below it, but the kernel's queue is not empty then
            import termios  # late: few clients are slow

            descriptor = _get_descriptor(transport)
            if descriptor >= 0:
                left += int.from_bytes(fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(4)), sys.byteorder)
        self.owing = left > 0
        taken = written - left
        if not left or taken != self._taken:
            self._since = tick
        self._taken = taken
        return tick - self._since


def _get_descriptor(transport: asyncio.Transport) -> int:
    """Return the socket's descriptor, or -1 if closed; TLS connections learn that one iteration late."""
    found = transport.get_extra_info("socket")
    return -1 if found is None else int(found.fileno())


def has_left(transport: asyncio.Transport) -> bool:
    """Return True if the peer has ended its half or closed the connection, even while reading is paused."""
    return _get_tcp_state(transport) != _TCP_ESTABLISHED


def was_reset(transport: asyncio.Transport) -> bool:
    """Return True if the peer receives nothing any more, even if reading has ended."""
    return _get_tcp_state(transport) == _TCP_CLOSE


def _get_tcp_state(transport: asyncio.Transport) -> int:
    if _get_descriptor(transport) < 0:
        return _TCP_CLOSE
    info: bytes = transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
    return info[0]


def address_of(transport: asyncio.BaseTransport) -> str:
    """Return the peer's address and port, or "-" if it has none."""
    name = transport.get_extra_info("peername")
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "-"


class Listener:
    """One endpoint: accepts, limits and finally drains connections.

    `tick` counts seconds, so that connections can record times on the hot path without reading a clock.
    """

    def __init__(
        self,
        *,
        max_connections: int = 10_000,
        max_per_client: int = 0,
        share_s: float = SHARE_S,
        memory: MemoryBudget | None = None,
    ) -> None:
        self.scratch = new_scratch()
        self.turns = Turns(share_s)
        self.memory = memory or MemoryBudget()
        self._coalescing = WriteCoalescing()
        self.tick = 0
        self.releasing = False
        """True while clients are being made to reconnect."""
        self.draining = False
        """True while connections close as soon as nothing is in flight."""
        self.shares_port = False
        """True if other servers may accept on the same port."""
        self.observer: Callable[[Any], None] | None = None
        """Called with every request that begins; while set, requests record their start times."""
        self._max_connections = max_connections
        self._max_per_client = max_per_client
        self._connections: set[Connection] = set()
        self._clients: dict[Connection, str] = {}
        self._per_client: Counter[str] = Counter()
        self._warned = -1
        self._factory: Callable[[], asyncio.BaseProtocol] = asyncio.Protocol
        self._servers: list[asyncio.Server] = []
        self._listening: list[socket.socket] = []
        self._accepting: set[asyncio.Task[None]] = set()
        self._handshakes: Handshakes | None = None
        self._ticker: asyncio.TimerHandle | None = None

    async def start(
        self,
        factory: Callable[[], asyncio.BaseProtocol],
        address: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        reuse_port: bool = False,
        bound: Sequence[socket.socket] = (),
    ) -> int:
        """Listen on `bound` sockets, or on the address if there are none. Returns the port, chosen by
        the system for port 0. Raises OSError.
        """
        loop = asyncio.get_running_loop()
        self.shares_port = reuse_port
        if bound:
            listening = begin_to_listen(bound)
        else:
            listening = await listening_sockets(address, port, reuse_port=reuse_port)
        port = int(listening[0].getsockname()[1])
        self._ticker = loop.call_later(1, self._tick)
        if tls is not None:
            self._handshakes = Handshakes(factory, tls, self._can_admit)
            self._handshakes.accept_from(listening)
            return port
        self._factory = factory
        self._listening = listening
        for sock in listening:
            self._servers.append(await loop.create_server(factory, sock=sock, backlog=BACKLOG))
        return port

    @property
    def connections(self) -> int:
        return len(self._connections)

    def coalescing_of(self, transport: asyncio.BaseTransport) -> WriteCoalescing:
        """Return the connections whose writes are coalesced with this one's. Remote peers are excluded: their
        wake-up costs us nothing."""
        local, peer = transport.get_extra_info("sockname"), transport.get_extra_info("peername")
        remote = isinstance(local, tuple) and isinstance(peer, tuple) and local[0] != peer[0]
        return WriteCoalescing() if remote else self._coalescing

    def opened(self, connection: Connection, transport: asyncio.BaseTransport) -> None:
        """Register a connection; refuse it if it is over a limit."""
        self._connections.add(connection)
        self._coalescing.connections = len(self._connections)
        # uvloop accepts only one connection per loop iteration, so clients that reconnect constantly could
        # fill the backlog and lock others out
        self._accept_waiting()
        excess, reason = len(self._connections) - self._max_connections, ""
        if excess > 0:
            reason = f"the server has {self._max_connections} connections, its limit"
        elif self._max_per_client:
            client = self._clients[connection] = client_of(transport.get_extra_info("peername"))
            self._per_client[client] += 1
            excess = self._per_client[client] - self._max_per_client
            if excess > 0:
                reason = f"{client} has {self._max_per_client} connections, its limit"
        if not reason:
            return
        if self._warned != self.tick:  # at most once per second
            self._warned = self.tick
            log.warning("refusing connections: %s", reason)
        if excess > _ANSWERED:
            connection.abort()
        else:
            connection.refuse(reason)

    def _accept_waiting(self) -> None:
        """Accept the connections that wait in the backlog, up to a limit."""
        loop = asyncio.get_running_loop()
        for listening in self._listening:
            while len(self._accepting) < _ACCEPTED_AT_ONCE:
                try:
                    accepted, _ = listening.accept()
                except OSError:  # none waits, it has been closed again, or no descriptor is left
                    break
                accepted.setblocking(False)
                task = loop.create_task(self._connect(accepted))
                self._accepting.add(task)
                task.add_done_callback(self._accepting.discard)

    async def _connect(self, accepted: socket.socket) -> None:
        with suppress(OSError):
            await asyncio.get_running_loop().connect_accepted_socket(self._factory, accepted)

    def _can_admit(self, client: str) -> bool:
        """Return True if another handshake may begin. The limit includes connections to be refused."""
        shaking = self._handshakes
        if shaking is None or len(self._connections) + shaking.count >= self._max_connections + _ANSWERED:
            return False
        of_client = self._per_client[client] + shaking.clients[client]
        return not self._max_per_client or of_client < self._max_per_client + _ANSWERED

    def closed(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._coalescing.connections = len(self._connections)
        client = self._clients.pop(connection, None)
        if client is not None:
            self._per_client[client] -= 1
            if not self._per_client[client]:
                del self._per_client[client]

    def release(self) -> None:
        """Make clients reconnect, including those that connect later; every request is still served.

        A port shared with other servers is closed, so that they get the new connections.
        """
        self.releasing = True
        if self.shares_port:
            self._accept_waiting()  # closing the port would reset them
            self._close_port()
        for connection in list(self._connections):
            connection.release()

    def stop_accepting(self) -> None:
        """Close the listening sockets and idle connections; requests in flight continue."""
        self.draining = True
        self._close_port()
        for connection in list(self._connections):
            connection.drain()

    def _close_port(self) -> None:
        for server in self._servers:
            server.close()
        self._listening.clear()
        if self._handshakes is not None:
            self._handshakes.stop_accepting()

    def close(self) -> None:
        """Stop accepting, and abort all connections."""
        self.stop_accepting()
        for connection in list(self._connections):
            connection.abort()
        if self._ticker is not None:
            self._ticker.cancel()

    def advance(self) -> None:
        """Advance the clock by one second, and let every connection check its deadlines."""
        self.tick += 1
        for connection in list(self._connections):
            connection.sweep(self.tick)
            if self.releasing:
                connection.release()

    def _tick(self) -> None:
        # schedule the next tick first: an error in one connection must not stop the deadlines of the others
        self._ticker = asyncio.get_running_loop().call_later(1, self._tick)
        self.advance()
