"""A transport whose writes leave together: one system call for all that a wake-up of the event loop
produced."""

import asyncio

from tpx.protocol.tensors import Buffer

_JOIN_BELOW_BYTES = 64 << 10
_HOLD_BELOW_BYTES = 256 << 10


class Outlet:
    """Stands before a transport. Between `hold` and `release` nothing leaves; a write outside of them leaves
    at the
    end of the loop's turn, after whatever else writes in it."""

    __slots__ = ("_ended", "_held", "_loop", "_parts", "_scheduled", "_size", "transport", "written")

    def __init__(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.written = 0
        """Bytes given to the transport since the beginning."""
        self._loop = asyncio.get_running_loop()
        self._parts: list[Buffer] = []
        self._size = 0
        self._held = False
        self._scheduled = False
        self._ended = False

    def hold(self) -> None:
        """A read begins: what it makes us write leaves when it is done with."""
        self._held = True

    def release(self, *, expecting: bool) -> None:
        """The read is done with. `expecting` tells that answers to it may follow in this turn of the loop:
        what was
        called soon because of it runs before we look for them."""
        self._held = False
        if self._parts:
            self.flush()
        elif expecting and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush_scheduled)

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
            self.transport.write(parts[0])
        elif size < _JOIN_BELOW_BYTES:
            self.transport.write(b"".join(parts))
        else:
            self.transport.writelines(parts)

    def get_write_buffer_size(self) -> int:
        """What the kernel has not taken yet."""
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
        self.transport.write_eof()

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

    def _wrote(self) -> None:
        if self._size > _HOLD_BELOW_BYTES:
            self.flush()
        elif not self._held and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush_scheduled)

    def _flush_scheduled(self) -> None:
        self._scheduled = False
        if self._parts:
            self.flush()
