"""Reading: as bytes while messages are small, into buffers from a connection's first large one on.

Reading bytes costs one call less per read, which counts where messages are small; reading into a given buffer
saves a copy of each byte, which counts where they are large. Clients tend to send requests of one kind, so a
connection changes over once, and stays.

The event loop reads a connection that always has more to give many times before it turns to others, and what
one read brings may be thousands of requests. A server's connection therefore works for at most a share of
time in one turn of the loop; then it pauses reading and continues in a later turn.
"""

import asyncio
import math
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable

LARGE_BYTES = 64 << 10
"""What is still to come of a message that is worth a buffer of its own, and a read after which the event loop
may read the same connection again in the same turn."""
UNLIMITED_BYTES = 1024
"""A read of no more is worked off at once: it holds one or a few requests."""
SHARE_S = 0.002


class Turns:
    """Shares the event loop among the connections that have more to do than fits into one turn of it.

    They wait here in the order in which they came. Each turn of the loop goes on with them for one share of
    time in all, so that however many they are, other connections are served in between.
    """

    __slots__ = ("_scheduled", "_waiting", "clock", "share_s")

    def __init__(self, share_s: float = SHARE_S, clock: Callable[[], float] = time.perf_counter) -> None:
        self.share_s = share_s
        self.clock = clock
        self._waiting: deque[Callable[[], None]] = deque()
        self._scheduled = False

    def wait(self, go_on: Callable[[], None]) -> None:
        """Call `go_on` in a later turn of the loop, after whatever waits already."""
        self._waiting.append(go_on)
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        self._scheduled = False
        ends = self.clock() + self.share_s
        try:
            for _ in range(len(self._waiting)):
                self._waiting.popleft()()
                if self.clock() > ends:
                    break
        finally:
            if self._waiting and not self._scheduled:
                self._scheduled = True
                asyncio.get_running_loop().call_soon(self._run)


class BufferedReader(asyncio.Protocol):
    """Base of connections, whatever their protocol: how they read, and share the event loop."""

    __slots__ = (
        "_awaits_turn",
        "_limited",
        "_read_large",
        "_reads_into_buffers",
        "_turn_ends",
        "_turns",
    )

    def __init__(self) -> None:
        self._reads_into_buffers = False
        # shares the loop with other connections; None on a client's own connections
        self._turns: Turns | None = None
        self._turn_ends = 0.0
        self._limited = False  # what is being worked on may be more than fits into one turn
        self._read_large = False
        self._awaits_turn = False  # reading is paused, and what was read waits for the connection's next turn

    def _begin_turn(self, turns: Turns, size: int = LARGE_BYTES - 1) -> None:
        """Begin to work on what was read. Behind a large read this may be the same turn of the loop, and what
        is left of the share counts."""
        self._limited = size > UNLIMITED_BYTES
        if not self._limited:
            self._turn_ends = math.inf
            return
        now = turns.clock()
        if not self._read_large or now > self._turn_ends:
            self._turn_ends = now + turns.share_s
        self._read_large = size >= LARGE_BYTES

    @property
    def turn_over(self) -> bool:
        """The connection has used its share of this turn of the loop."""
        return self._turns is not None and self._turns.clock() > self._turn_ends

    def _await_turn(self, transport: asyncio.Transport) -> None:
        """Pause reading, and have `_turn_came` called in a later turn of the loop."""
        if not self._awaits_turn and self._turns is not None:
            self._awaits_turn = True
            transport.pause_reading()
            self._turns.wait(self._turn_came)

    def _end_read(self, transport: asyncio.Transport) -> None:
        """Have others served before a large read that took long is followed by the next one."""
        if not self._limited:
            self._turn_ends = 0.0
        elif self._read_large and self.turn_over and not transport.is_closing():
            self._await_turn(transport)

    def _turn_came(self) -> None:
        """Go on with what was read, and then with reading."""

    @abstractmethod
    def data_received(self, data: bytes) -> None:
        """Return what one read brought, unless it went into the landing."""

    @abstractmethod
    def landing(self) -> memoryview | None:
        """Where the next bytes belong, if that is known already."""

    @abstractmethod
    def landed(self, count: int) -> None:
        """`count` bytes were read into the landing."""

    def read_into_buffers(self, transport: asyncio.Transport, scratch: memoryview) -> None:
        """Read what has a landing right there from now on, and all else through `scratch`."""
        if not self._reads_into_buffers:
            self._reads_into_buffers = True
            transport.set_protocol(_IntoBuffers(self, scratch))


class _IntoBuffers(asyncio.BufferedProtocol):
    """Stands before a connection whose messages are large."""

    def __init__(self, connection: BufferedReader, scratch: memoryview) -> None:
        self._connection = connection
        self._scratch = scratch
        self._landing: memoryview | None = None
        self.eof_received = connection.eof_received  # type: ignore[method-assign]
        self.connection_lost = connection.connection_lost  # type: ignore[method-assign]
        self.pause_writing = connection.pause_writing  # type: ignore[method-assign]
        self.resume_writing = connection.resume_writing  # type: ignore[method-assign]

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 (asyncio's signature)
        self._landing = landing = self._connection.landing()
        return self._scratch if landing is None else landing

    def buffer_updated(self, nbytes: int) -> None:
        if self._landing is None:
            self._connection.data_received(bytes(self._scratch[:nbytes]))
        else:
            self._connection.landed(nbytes)
