"""Write buffers: one system call for all that a wake-up of the event loop wrote to a connection.

Writes to many local connections are coalesced, too, and flushed at the end of the loop's turn: a client that
sleeps between two answers is woken for each, which may cost as much CPU as the rest of a small answer.
"""

import asyncio
import os
import sys
from collections.abc import Callable

from tpx.protocol.tensors import Buffer

_JOIN_BELOW_BYTES = 64 << 10
_NEVER_PAUSES = (3, 12) <= sys.version_info < (3, 12, 9) or (3, 13) <= sys.version_info < (3, 13, 2)
"""What `writelines` of asyncio's own sockets is given there has no bound (CVE-2024-12254)."""
_ASYNCIOS_OWN = "asyncio.selector_events"
_HOLD_BELOW_BYTES = 256 << 10
_MANY = 16
"""With fewer connections an answer does not wait for others: a client with a thread for each would be idle
meanwhile, and then so would we. No more answers are coalesced than these: the first would wait too long."""


def direct_write(transport: asyncio.Transport) -> Callable[[Buffer], None]:
    """Return a write that reaches the kernel before it returns, where uvloop's own waits for the end of the
    loop's turn; what the kernel does not take, and all of a TLS connection, is left to the transport."""
    if transport.get_extra_info("ssl_object") is not None:
        return transport.write
    descriptor = transport.get_extra_info("socket").fileno()

    def write(data: Buffer) -> None:
        sent = 0
        if not transport.get_write_buffer_size() and not transport.is_closing():
            try:
                sent = os.write(descriptor, data)
            except OSError:
                sent = 0  # the kernel's buffer is full; the transport finds out where it is worse
        if sent < len(data):
            transport.write(data[sent:])

    return write


class WriteCoalescing:
    """Write buffers that are flushed together at the end of the loop's turn."""

    __slots__ = ("_last", "_waiting", "connections")

    def __init__(self) -> None:
        self.connections = 0
        """How many may have something to send at the same time."""
        self._waiting: list[WriteBuffer] = []
        self._last: WriteBuffer | None = None

    def is_free(self, buffer: "WriteBuffer") -> bool:
        """Return True if a buffer may be flushed at once: with few connections, or if it alone answers, as it
        did last."""
        alone = self._last is buffer and not self._waiting
        self._last = buffer
        return alone or self.connections < _MANY

    def add(self, buffer: "WriteBuffer") -> None:
        """Flush a buffer before the loop waits again."""
        self._waiting.append(buffer)
        count = len(self._waiting)
        if count == 1:
            asyncio.get_running_loop().call_soon(self._leave)
        elif count == _MANY:
            self._leave()

    def _leave(self) -> None:
        waiting, self._waiting = self._waiting, []
        for buffer in waiting:
            buffer.leave()


class WriteBuffer:
    """Buffers the writes of one connection. Between `hold` and `release` nothing is flushed; other writes
    are flushed at the end of the loop's turn."""

    __slots__ = (
        "_coalescing", "_ended", "_held", "_hold_below", "_parts", "_scheduled", "_send", "_size",
        "transport", "written",
    )  # fmt: skip

    def __init__(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.written = 0
        """Bytes given to the transport since the beginning."""
        self._coalescing = WriteCoalescing()
        self._parts: list[Buffer] = []
        self._size = 0
        self._send: Callable[[Buffer], None] = transport.write
        self._hold_below = _HOLD_BELOW_BYTES
        self._held = False
        self._scheduled = False
        self._ended = False

    def coalesce_with(self, coalescing: WriteCoalescing) -> None:
        """Share flushes with other connections; until then there are none."""
        self._coalescing = coalescing

    def write_at_once(self) -> None:
        """Let every write reach the kernel before it returns."""
        self._send = direct_write(self.transport)
        self._hold_below = 0

    def hold(self) -> None:
        """Begin a read: what is written during it is flushed behind it."""
        self._held = True

    def release(self, *, expecting: bool) -> None:
        """End a read. `expecting`: answers to it may follow in this turn of the loop, from callbacks that run
        before its end."""
        self._held = False
        if self._parts:
            if self._coalescing.is_free(self):
                self.flush()
            else:
                self._schedule()
        elif expecting:
            self._schedule()

    def answer(self, data: Buffer, *, reading: bool) -> None:
        """Write the one answer that the peer waits for. `reading`: its request is being read, so that
        others may be read and answered in this turn of the loop."""
        self._parts.append(data)
        self._size += len(data)
        if reading and not self._coalescing.is_free(self):
            self._wrote()
        else:
            self.flush()

    def write(self, data: Buffer) -> None:
        self._parts.append(data)
        self._size += len(data)
        self._wrote()

    def writelines(self, parts: list[Buffer]) -> None:
        self._parts += parts
        for part in parts:
            self._size += len(part)
        self._wrote()

    def flush(self) -> None:
        """Give everything to the transport now."""
        parts, self._parts = self._parts, []
        size, self._size = self._size, 0
        if not parts or self._ended or self.transport.is_closing():
            return
        self.written += size
        if len(parts) == 1:
            self._send(parts[0])
        elif size < _JOIN_BELOW_BYTES or (_NEVER_PAUSES and type(self.transport).__module__ == _ASYNCIOS_OWN):
            self._send(b"".join(parts))
        else:
            self.transport.writelines(parts)

    def get_write_buffer_size(self) -> int:
        """Return what the kernel has not taken yet."""
        return self.transport.get_write_buffer_size() + self._size

    def set_write_buffer_limits(self, high: int) -> None:
        self.transport.set_write_buffer_limits(high=high)

    def pause_reading(self) -> None:
        self.transport.pause_reading()

    def resume_reading(self) -> None:
        self.transport.resume_reading()

    def can_write_eof(self) -> bool:
        return self.transport.can_write_eof()

    def write_eof(self) -> None:
        """End our half after everything that was written; what is written later is dropped."""
        self.flush()
        self._ended = True
        try:
            self.transport.write_eof()
        except OSError:  # with asyncio's own loop, where the other side has reset the connection
            self.transport.abort()

    def end(self) -> None:
        """End our half, or close where the transport cannot.

        Closing with unread input would reset the connection, and the last answer could be lost: the caller
        ignores what still comes, and closes later.
        """
        if self.can_write_eof():
            self.write_eof()
        else:
            self.close()

    def close(self) -> None:
        """Close after everything that was written."""
        self.flush()
        self.transport.close()

    def abort(self) -> None:
        """Close now, whatever was written."""
        self._parts.clear()
        self._size = 0
        self.transport.abort()

    def is_closing(self) -> bool:
        return self.transport.is_closing()

    def leave(self) -> None:
        """Flush at the end of the loop's turn."""
        self._scheduled = False
        if self._parts:
            self.flush()

    def _wrote(self) -> None:
        if self._size > self._hold_below:
            self.flush()
        elif not self._held:
            self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._coalescing.add(self)
