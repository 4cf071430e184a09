"""Reading from sockets: as bytes while messages are small, into buffers from a connection's first large
one on.

Reading bytes costs one call less per read, which matters for small messages; reading into a given
buffer saves a copy, which matters for large ones. Clients tend to send requests of one kind, so a
connection switches once and never back.

The event loop reads a busy connection many times before it serves others, and one read may bring
thousands of requests. A server's connection therefore works for at most one time share per iteration of
the loop (its turn); then it pauses reading and continues in a later iteration.
"""

import asyncio
import ssl
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable

from tpx.errors import WireError

LARGE_BYTES = 64 << 10
"""Remaining bytes that make a message worth a buffer of its own; also the size of a read after which
the event loop may read the same connection again in the same iteration.
"""
UNLIMITED_BYTES = 1024
"""Reads up to this size skip the time share: they hold one or a few requests."""
SHARE_S = 0.002
_BEGINNING_BYTES = 4 << 10
"""Size of reads that may begin a large message: what they bring of it is copied again."""


class Turns:
    """Shares the event loop among connections with more work than fits into one turn.

    They wait here in order of arrival. Each iteration of the loop resumes them for one time share in
    total, so that other connections are served in between however many wait.
    """

    __slots__ = ("_scheduled", "_waiting", "clock", "share_s")

    def __init__(self, share_s: float = SHARE_S, clock: Callable[[], float] = time.perf_counter) -> None:
        self.share_s = share_s
        self.clock = clock
        self._waiting: deque[Callable[[], None]] = deque()
        self._scheduled = False

    def wait(self, go_on: Callable[[], None]) -> None:
        """Call `go_on` in a later iteration of the event loop, after the callbacks already waiting."""
        self._waiting.append(go_on)
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        self._scheduled = False
        ends = self.clock() + self.share_s
        try:
            # those that wait again while this runs have their turn in a later iteration
            for _ in range(len(self._waiting)):
                self._waiting.popleft()()
                if self.clock() > ends:
                    break
        finally:
            if self._waiting and not self._scheduled:
                self._scheduled = True
                asyncio.get_running_loop().call_soon(self._run)


class BufferedReader(asyncio.Protocol):
    """Base of connections of any protocol: how they read, and how they share the event loop."""

    __slots__ = ("_awaits_turn", "_limited", "_read_large", "_reads_into_buffers", "_turn_ends", "_turns")

    def __init__(self) -> None:
        self._reads_into_buffers = False
        # the server's turns; None on a client's own connections
        self._turns: Turns | None = None
        self._turn_ends = 0.0  # infinity while a small read is processed
        self._limited = False  # the data being processed may exceed one turn
        self._read_large = False
        self._awaits_turn = False  # reading is paused, and the data read waits for the next turn

    def _begin_turn(self, size: int = LARGE_BYTES - 1) -> None:
        """Start working on a read of over UNLIMITED_BYTES. After a large read this may be the same loop
        iteration, so the rest of its share is used.
        """
        turns = self._turns
        assert turns is not None
        self._limited = True
        now = turns.clock()
        if not self._read_large or now > self._turn_ends:
            self._turn_ends = now + turns.share_s
        self._read_large = size >= LARGE_BYTES

    @property
    def turn_over(self) -> bool:
        """True if the connection has used up its share of this loop iteration."""
        return self._turns is not None and self._turns.clock() > self._turn_ends

    def _await_turn(self, transport: asyncio.Transport) -> None:
        """Pause reading, and schedule `_take_turn` for a later loop iteration."""
        if not self._awaits_turn and self._turns is not None:
            self._awaits_turn = True
            transport.pause_reading()
            self._turns.wait(self._take_turn)

    def _end_read(self, transport: asyncio.Transport) -> None:
        """Let other connections run before the next read if a large read used up its share."""
        if self._read_large and self.turn_over and not transport.is_closing():
            self._await_turn(transport)

    def _take_turn(self) -> None:
        """Resume with the data left over, then with reading."""

    @abstractmethod
    def data_received(self, data: bytes) -> None:
        """Handle the bytes of a read that did not go into a `next_buffer`."""

    @property
    def continues(self) -> bool:
        """True if the next bytes continue a message, False if one may begin with them."""
        return False

    def scratch_received(self, data: memoryview) -> None:
        """Handle the bytes of a read, which are overwritten by the next read of any connection."""
        self.data_received(bytes(data))

    @abstractmethod
    def next_buffer(self) -> memoryview | None:
        """Return the buffer for the next bytes, or None if their destination is unknown."""

    @abstractmethod
    def buffer_received(self, count: int) -> None:
        """Handle `count` bytes read into the `next_buffer`."""

    def read_into_buffers(self, transport: asyncio.Transport, scratch: memoryview) -> None:
        """From now on, read into the `next_buffer`, or through `scratch` when there is none."""
        if not self._reads_into_buffers:
            self._reads_into_buffers = True
            transport.set_protocol(_IntoBuffers(self, scratch))


class _IntoBuffers(asyncio.BufferedProtocol):
    """Protocol that reads into buffers on behalf of a connection with large messages."""

    def __init__(self, connection: BufferedReader, scratch: memoryview) -> None:
        self._connection = connection
        self._scratch = scratch
        self._beginning = scratch[:_BEGINNING_BYTES]
        self._buffer: memoryview | None = None
        # bound directly, which saves a call per event
        self.eof_received = connection.eof_received  # type: ignore[method-assign]
        self.connection_lost = connection.connection_lost  # type: ignore[method-assign]
        self.pause_writing = connection.pause_writing  # type: ignore[method-assign]
        self.resume_writing = connection.resume_writing  # type: ignore[method-assign]

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 (asyncio's signature)
        self._buffer = buffer = self._connection.next_buffer()
        if buffer is not None:
            return buffer
        return self._scratch if self._connection.continues else self._beginning

    def buffer_updated(self, nbytes: int) -> None:
        if self._buffer is None:
            self._connection.scratch_received(self._scratch[:nbytes])
        else:
            self._connection.buffer_received(nbytes)


async def dial(
    protocol: Callable[[], BufferedReader],
    host: str,
    port: int,
    *,
    tls: ssl.SSLContext | None,
    timeout_s: float,
) -> None:
    """Open a client's connection. Raises WireError naming the address."""
    try:
        async with asyncio.timeout(timeout_s):
            await asyncio.get_running_loop().create_connection(protocol, host, port, ssl=tls)
    except (OSError, TimeoutError) as exc:
        reason = f"no answer within {timeout_s} s" if isinstance(exc, TimeoutError) else str(exc)
        raise WireError(f"cannot connect to {host}:{port}: {reason}") from exc
