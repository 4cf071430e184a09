"""Listening sockets and the connections they accepted: limits, the clock of their deadlines, and draining."""

import asyncio
import fcntl
import logging
import socket
import ssl
import sys
import termios
from collections.abc import Callable
from typing import Protocol

from tpx.protocol.buffers import new_scratch

log = logging.getLogger(__name__)

BACKLOG = 1024
LINGER_S = 3
"""How long a connection that we have ended may take to end on the other side."""

_TLS_HANDSHAKE_S = 10


class Connection(Protocol):
    """What a listener needs of a connection it accepted."""

    def sweep(self, tick: int) -> None: ...
    def drain(self) -> None: ...
    def abort(self) -> None: ...


class WriteWatch:
    """Tells for how long a client has not taken a single byte of what we owe it."""

    __slots__ = ("_since", "_taken", "owing")

    def __init__(self) -> None:
        self.owing = False
        """At the last look, not everything had been taken."""
        self._taken = -1
        self._since = 0

    def stalled_s(self, transport: asyncio.Transport, written: int, tick: int) -> int:
        """Seconds without progress, given all that was ever written to the transport; called once a
        second."""
        left = transport.get_write_buffer_size()
        if left or transport.get_extra_info("sslcontext") is not None:
            # a TLS transport does not tell what waits below it, but the kernel's queue is not empty then
            left += _in_kernel(transport)
        self.owing = left > 0
        taken = written - left
        if not left or taken != self._taken:
            self._since = tick
        self._taken = taken
        return tick - self._since


def _in_kernel(transport: asyncio.Transport) -> int:
    """Bytes that the kernel has taken and the other side not yet: they tell a slow client from a deaf one."""
    size = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
    return int.from_bytes(size, sys.byteorder)


class Listener:
    """One endpoint: accepts, counts and, at the end, drains connections.

    `tick` counts seconds, so that a connection notes times on its hot path without asking a clock.
    """

    def __init__(self, *, max_connections: int = 10_000) -> None:
        self.scratch = new_scratch()
        self.tick = 0
        self.draining = False
        self._max_connections = max_connections
        self._connections: set[Connection] = set()
        self._server: asyncio.Server | None = None
        self._ticker: asyncio.TimerHandle | None = None

    async def start(
        self,
        factory: Callable[[], asyncio.BaseProtocol],
        address: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        reuse_port: bool = False,
    ) -> int:
        """Listen; returns the port, which the system chooses for port 0. Raises OSError."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            factory,
            address,
            port,
            ssl=tls,
            ssl_handshake_timeout=_TLS_HANDSHAKE_S if tls else None,
            backlog=BACKLOG,
            reuse_port=reuse_port or None,
        )
        self._ticker = loop.call_later(1, self._tick)
        for sock in self._server.sockets:
            if sock.family in (socket.AF_INET, socket.AF_INET6):
                return int(sock.getsockname()[1])
        return port

    @property
    def connections(self) -> int:
        return len(self._connections)

    def opened(self, connection: Connection) -> None:
        """A connection reports itself; one too many is closed at once."""
        self._connections.add(connection)
        if len(self._connections) > self._max_connections:
            log.warning("more than %d connections: closing the newest", self._max_connections)
            connection.abort()

    def closed(self, connection: Connection) -> None:
        self._connections.discard(connection)

    def stop_accepting(self) -> None:
        """Close the listening socket and let idle connections go; what is in flight goes on."""
        self.draining = True
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.drain()

    def close(self) -> None:
        """End every connection."""
        self.stop_accepting()
        for connection in list(self._connections):
            connection.abort()
        if self._ticker is not None:
            self._ticker.cancel()

    def advance(self) -> None:
        """A second has passed: every connection looks at its deadlines."""
        self.tick += 1
        for connection in list(self._connections):
            connection.sweep(self.tick)

    def _tick(self) -> None:
        # the next tick is set first: whatever one connection does, the deadlines of the others go on
        self._ticker = asyncio.get_running_loop().call_later(1, self._tick)
        self.advance()
