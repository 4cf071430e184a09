"""Connections without sockets: a server's protocol over a transport that keeps what is written."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Protocol, cast

from tpx.protocol.tensors import Buffer

READ_BYTES = 64 << 10


class Reader(Protocol):
    """The reading half of a connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...
    def data_received(self, data: bytes) -> None: ...
    def eof_received(self) -> bool | None: ...
    def connection_lost(self, exc: Exception | None) -> None: ...


class MemoryTransport(asyncio.Transport):
    """Takes everything at once."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.closed = False
        self.protocol: asyncio.BaseProtocol | None = None
        self._ended = False

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def feed(self, piece: bytes) -> None:
        """What the event loop does with what it has read."""
        at = 0
        while at < len(piece) and not self.closed:
            if isinstance(self.protocol, asyncio.BufferedProtocol):
                buffer = memoryview(self.protocol.get_buffer(-1))
                size = min(len(buffer), len(piece) - at)
                buffer[:size] = piece[at : at + size]
                self.protocol.buffer_updated(size)
            else:
                size = min(READ_BYTES, len(piece) - at)
                cast("Reader", self.protocol).data_received(piece[at : at + size])
            at += size

    def write(self, data: Buffer) -> None:
        if not (self.closed or self._ended):
            self.written += data

    def writelines(self, parts: Iterable[Buffer]) -> None:
        for part in parts:
            self.write(part)

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...
    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def is_closing(self) -> bool:
        return self.closed

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._ended = True

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True


class Loop:
    """An event loop that runs as long as there is something to do at once."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(self._complain)
        self._complaint: BaseException | None = None

    def _complain(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._complaint = context.get("exception") or RuntimeError(context["message"])

    def converse(self, make: Callable[[], Reader], pieces: Iterable[bytes]) -> bytes:
        """Feed a connection, end it, and return what it wrote. Raises what nobody caught."""
        return self._loop.run_until_complete(self._converse(make, pieces))

    async def _converse(self, make: Callable[[], Reader], pieces: Iterable[bytes]) -> bytes:
        transport = MemoryTransport()
        connection = make()
        transport.set_protocol(cast("asyncio.BaseProtocol", connection))
        connection.connection_made(transport)
        for piece in pieces:
            transport.feed(piece)
        await asyncio.sleep(0)
        if not transport.closed:
            connection.eof_received()
        await asyncio.sleep(0)
        connection.connection_lost(None)
        if self._complaint is not None:
            raise self._complaint
        return bytes(transport.written)
