"""Length-prefixed messages: compression flag, 4-byte length, message (gRPC over HTTP2,
"Delimited-Message").

A message that arrives in pieces is assembled in an aligned buffer, which the event loop can also fill
directly.
"""

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tpx.errors import Code, InvalidRequest
from tpx.protocol.compression import deflate, inflate, inflate_if_short
from tpx.protocol.tensors import Buffer, aligned

PREFIX_BYTES = 5
_LAND_FROM_BYTES = 16 << 10  # copying less than this costs less than a read of its own

pack_prefix = struct.Struct(">BI").pack
unpack_prefix = struct.Struct(">BI").unpack_from


def frame_message(message: Buffer, encoding: str = "") -> bytes:
    """Return a message with its prefix, compressed with `encoding` if that is not empty."""
    if not encoding:
        return pack_prefix(0, len(message)) + message
    packed = deflate(message, encoding)
    return pack_prefix(1, len(packed)) + packed


def whole_message(data: bytes, start: int, stop: int) -> bool:
    """Return True if DATA holds exactly one uncompressed message."""
    size = stop - start - PREFIX_BYTES
    return size >= 0 and unpack_prefix(data, start) == (0, size)


class Packed(NamedTuple):
    """Long compressed message, and the size limit of its contents."""

    data: Buffer
    encoding: str
    limit: int

    def unpack(self) -> bytes:
        """Decompress the message, which may take long. Raises InvalidRequest."""
        return inflate(*self)


class MessageReader:
    """Assembles the messages of one stream. Long compressed messages are returned as `Packed`."""

    def __init__(
        self, limit: int, encoding: str, tensor_offset: int = 0, reserve: Callable[[int], None] | None = None
    ) -> None:
        self._reserve = reserve
        """Called with a message's size before its buffer is allocated. May raise RequestError."""
        self._limit = limit
        self._encoding = encoding
        self._tensor_offset = tensor_offset  # expected offset of the first tensor, for alignment
        self._prefix = b""
        self._buffer: memoryview | None = None
        self._filled = 0
        self._compressed = False
        self._begun = 0
        self.at = 0
        """Offset, in the DATA being fed, of the end of the last message returned."""

    @property
    def between_messages(self) -> bool:
        return self._buffer is None and not self._prefix

    @property
    def missing(self) -> int:
        """Bytes to come of the message that is being assembled."""
        return len(self._buffer) - self._filled if self._buffer is not None else 0

    @property
    def progress(self) -> tuple[int, int, int]:
        """Value that changes with every byte of a message that arrives."""
        return self._begun, self._filled, len(self._prefix)

    def feed(self, data: bytes, start: int, stop: int) -> Iterator[Buffer | Packed]:
        """Consume DATA and yield the messages that it completes, including those before an error.

        Raises InvalidRequest: RESOURCE_EXHAUSTED for a message over the limit, INTERNAL for a bad
        prefix.
        """
        while start < stop:
            if self._buffer is None:
                need = PREFIX_BYTES - len(self._prefix)
                self._prefix += data[start : start + min(need, stop - start)]
                start += min(need, stop - start)
                if len(self._prefix) == PREFIX_BYTES:
                    size = self._begin_message()
                    if size > stop - start:
                        self._buffer = self._allocate_message(size)
                        continue
                    self.at = start = start + size
                    yield self._finish_message(data[start - size : start])
                continue
            count = min(len(self._buffer) - self._filled, stop - start)
            self._buffer[self._filled : self._filled + count] = memoryview(data)[start : start + count]
            self.at = start = start + count
            message = self.buffer_received(count)
            if message is not None:
                yield message

    def absorb(self, data: Buffer, start: int, stop: int) -> bool:
        """Consume DATA from the middle of a message. Returns False, consuming nothing, if it is
        anything else.
        """
        buffer, filled = self._buffer, self._filled
        end = filled + stop - start
        if buffer is None or end >= len(buffer):
            return False
        buffer[filled:end] = memoryview(data)[start:stop]
        self._filled = end
        return True

    def next_buffer(self, remaining: int) -> memoryview | None:
        """Return a buffer to read the next bytes of a large message into, or None."""
        if self._buffer is None:
            return None
        room = min(len(self._buffer) - self._filled, remaining)
        return self._buffer[self._filled : self._filled + room] if room >= _LAND_FROM_BYTES else None

    def buffer_received(self, count: int) -> Buffer | Packed | None:
        """Handle `count` bytes read into `next_buffer`. Returns the message if they complete it."""
        buffer = self._buffer
        self._filled += count
        if buffer is None or self._filled < len(buffer):
            return None
        self._buffer = None
        return self._finish_message(buffer)

    def _begin_message(self) -> int:
        flag, size = unpack_prefix(self._prefix)
        self._prefix = b""
        self._filled = 0
        self._begun += 1
        if flag > 1:
            raise InvalidRequest(f"invalid compression flag {flag} in a gRPC message", code=Code.INTERNAL)
        if flag and not self._encoding:
            raise InvalidRequest("compressed gRPC message without grpc-encoding", code=Code.INTERNAL)
        if size > self._limit:
            raise InvalidRequest(
                f"Received message larger than max ({size} vs. {self._limit})", code=Code.RESOURCE_EXHAUSTED
            )
        self._compressed = flag == 1
        return int(size)

    def _allocate_message(self, size: int) -> memoryview:
        if self._reserve is not None:
            self._reserve(size)
        try:
            return aligned(size, self._tensor_offset)
        except MemoryError:
            raise InvalidRequest(
                f"no memory for a message of {size} bytes", code=Code.RESOURCE_EXHAUSTED
            ) from None

    def _finish_message(self, message: Buffer) -> Buffer | Packed:
        if not self._compressed:
            return message
        short = inflate_if_short(message, self._encoding, self._limit)
        return Packed(message, self._encoding, self._limit) if short is None else short
