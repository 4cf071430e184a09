"""Write buffers: one system call per event loop wake-up and connection.

Writes to many local connections are also coalesced and flushed at the end of the loop's iteration: a
client that sleeps between two responses is woken for each, which may cost as much CPU as the rest of a
small response.

A client with many requests in flight on its only connection and the server take turns if all responses
leave together: each idles while the other works. Half of them are then flushed early, so that both work.
"""

import asyncio
import os
import sys
import time
from collections.abc import Callable

from tpx.protocol.tensors import Buffer

_JOIN_BELOW_BYTES = 64 << 10
_NEVER_PAUSES = (3, 12) <= sys.version_info < (3, 12, 9) or (3, 13) <= sys.version_info < (3, 13, 2)
"""True if `writelines` of asyncio's own sockets buffers without bound (CVE-2024-12254)."""
_ASYNCIOS_OWN = "asyncio.selector_events"
_HOLD_BELOW_BYTES = 256 << 10
_MANY = 16
"""Number of connections from which responses wait to be coalesced. With fewer, a client with one thread
per connection would idle meanwhile, and then the server would. Also the maximum number coalesced,
because the first waits for all.
"""
_FEWEST_SPLIT = 16
"""Number of writes in a round from which half of it is flushed early."""
_MOST_EARLY = 32
"""Maximum number of writes to one connection that wait for each other."""
_SPLIT_NS = 120_000
"""Duration of a round from which half of it is flushed early: the other half then takes longer than the peer
needs to wake up.
"""
_IDLE_NS = 50_000
"""Time without a read after which a connection's peer and this process have taken turns."""


def direct_write(transport: asyncio.Transport) -> Callable[[Buffer], None]:
    """Return a function that writes to the kernel immediately, whereas uvloop waits for the end of the
    iteration. Bytes that the kernel does not accept, and all TLS data, go to the transport.
    """
    if transport.get_extra_info("ssl_object") is not None:
        return transport.write
    descriptor = transport.get_extra_info("socket").fileno()

    def write(data: Buffer) -> None:
        sent = 0
        if not transport.get_write_buffer_size() and not transport.is_closing():
            try:
                sent = os.write(descriptor, data)
            except OSError:
                sent = 0  # the kernel's buffer is full; the transport detects anything worse
        if sent < len(data):
            transport.write(data[sent:])

    return write


class WriteCoalescing:
    """Write buffers that are flushed together at the end of a loop iteration."""

    __slots__ = ("_waiting", "connections", "last")

    def __init__(self) -> None:
        self.connections = 0
        """Number of connections that may have something to send at the same time."""
        self._waiting: list[WriteBuffer] = []
        self.last: WriteBuffer | None = None
        """The buffer that was flushed last, or is about to be."""

    def is_free(self, buffer: "WriteBuffer") -> bool:
        """Return True if a buffer may be flushed now: connections are few, or only it responds again."""
        alone = self.last is buffer and not self._waiting
        self.last = buffer
        return alone or self.connections < _MANY

    def add(self, buffer: "WriteBuffer") -> None:
        """Flush a buffer before the event loop waits again."""
        self._waiting.append(buffer)
        count = len(self._waiting)
        if count == 1:
            asyncio.get_running_loop().call_soon(self._flush_waiting)
        elif count == _MANY:
            self._flush_waiting()

    def _flush_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for buffer in waiting:
            buffer.scheduled = False
            buffer.flush()


class WriteBuffer:
    """Buffers the writes of one connection. Nothing is flushed between `hold` and `release`; other
    writes are flushed at the end of the loop's iteration.
    """

    def __init__(self, transport: asyncio.Transport, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self.transport = transport
        self._clock = clock
        self.written = 0
        """Total bytes passed to the transport."""
        self._coalescing = WriteCoalescing()
        self._parts: list[Buffer] = []
        self._size = 0
        self._send: Callable[[Buffer], None] = transport.write
        self._hold_below = _HOLD_BELOW_BYTES
        self._held = False
        self._early = _MOST_EARLY
        """Number of buffered parts that are flushed although more may follow."""
        self._round = 0
        """Number of parts flushed since the peer last let this process idle."""
        self._began_ns = self._flushed_ns = 0
        """Start of that round, and time of the last flush."""
        self.scheduled = False
        """True while a flush at the end of the loop's iteration is due."""
        self._ended = False

    def coalesce_with(self, coalescing: WriteCoalescing) -> None:
        """Take turns with other connections; until called, each connection is on its own."""
        self._coalescing = coalescing

    def write_at_once(self) -> None:
        """Write directly to the kernel from now on."""
        self._send = direct_write(self.transport)
        self._hold_below = 0

    def hold(self) -> None:
        """Start handling a read: writes are buffered until `release`, or flushed early if they are many."""
        self._held = True
        if self._coalescing.last is not self:  # this process has other peers to work for
            self._early, self._round = _MOST_EARLY, 0
        elif self._round >= _FEWEST_SPLIT:
            now_ns = self._clock()
            if now_ns - self._flushed_ns > _IDLE_NS:
                splits = self._flushed_ns - self._began_ns > _SPLIT_NS
                self._early = min(self._round // 2, _MOST_EARLY) if splits else _MOST_EARLY
                self._round, self._began_ns = 0, now_ns

    def release(self, *, expecting: bool) -> None:
        """End handling a read. `expecting`: callbacks may write responses later in this loop iteration."""
        self._held = False
        if self._parts:
            if self._coalescing.is_free(self):
                self.flush()
            else:
                self._schedule_flush()
        elif expecting:
            self._schedule_flush()

    def answer(self, data: Buffer, *, reading: bool) -> None:
        """Write the only response that the peer waits for. `reading`: called while its request is being
        read, so that more requests may be read and served in this loop iteration.
        """
        if reading and not self._coalescing.is_free(self):
            self.write(data)
        elif self._parts:
            self._parts.append(data)
            self._size += len(data)
            self.flush()
        elif not (self._ended or self.transport.is_closing()):
            self.written += len(data)
            self._send(data)

    def write(self, data: Buffer) -> None:
        self._parts.append(data)
        self._size += len(data)
        if self._size > self._hold_below or len(self._parts) >= self._early:
            self.flush()
        elif not (self._held or self.scheduled):
            self._schedule_flush()

    def writelines(self, parts: list[Buffer]) -> None:
        if parts:
            self._parts += parts[:-1]
            self._size += sum(len(part) for part in parts[:-1])
            self.write(parts[-1])

    def flush(self) -> None:
        """Pass everything to the transport now."""
        parts, self._parts = self._parts, []
        size, self._size = self._size, 0
        if not parts or self._ended or self.transport.is_closing():
            return
        self.written += size
        self._round += len(parts)
        self._flushed_ns = self._clock()
        self._coalescing.last = self
        if len(parts) == 1:
            self._send(parts[0])
        elif size < _JOIN_BELOW_BYTES or (_NEVER_PAUSES and type(self.transport).__module__ == _ASYNCIOS_OWN):
            self._send(b"".join(parts))
        else:
            self.transport.writelines(parts)

    def get_write_buffer_size(self) -> int:
        """Return the bytes that the kernel has not accepted yet."""
        return self.transport.get_write_buffer_size() + self._size

    def write_eof(self) -> None:
        """End our half after all previous writes; later writes are dropped."""
        self.flush()
        self._ended = True
        try:
            self.transport.write_eof()
        except OSError:  # asyncio's own loop, after a reset by the peer
            self.transport.abort()

    def end(self) -> None:
        """End our half, or close if the transport cannot (TLS).

        Closing with unread input would reset the connection and could lose the last response: the
        caller ignores further input and closes later.
        """
        if self.transport.can_write_eof():
            self.write_eof()
        else:
            self.close()

    def close(self) -> None:
        """Close after all previous writes."""
        self.flush()
        self.transport.close()

    def abort(self) -> None:
        """Close immediately, dropping unsent data."""
        self._parts.clear()
        self._size = 0
        self.transport.abort()

    def is_closing(self) -> bool:
        return self.transport.is_closing()

    def _schedule_flush(self) -> None:
        if not self.scheduled:
            self.scheduled = True
            self._coalescing.add(self)
