"""Chunked bodies (RFC 9112 section 7.1), decoded strictly: ambiguous framing is an error, not a guess."""

import re

from tpx.protocol.http1.head import MAX_HEADERS, HttpError

MAX_CHUNKS = 65536
MAX_SIZE_LINE_BYTES = 16 + 2 + 256
MAX_TRAILER_BYTES = 16 << 10
MAX_PLAIN_DIGITS = 8
"""Digits of the size of a chunk that is taken whole."""

_TRAILER = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*")
_HEX = frozenset(b"0123456789abcdefABCDEF")


class ChunkedDecoder:
    """Decoder of the body of one message, fed with pieces of the stream."""

    def __init__(self, limit: int, most_chunks: int = MAX_CHUNKS) -> None:
        self._limit = limit
        self._most_chunks = most_chunks
        self._buffer = b""
        self._body = bytearray()
        self.size = 0
        """Bytes of the body announced so far, including the rest of the current chunk."""
        self._chunks = 0
        self._remaining = -1  # bytes left of the current chunk, including CRLF; -1: at a size line
        self._in_trailers = False
        self._trailer_bytes = 0

    def feed(self, data: bytes) -> bytes | None:
        """Decode the next bytes of the stream. Returns the bytes after the body once it is complete,
        else None.

        Raises HttpError: 400 for invalid framing or too many chunks, 413 over the limit, 431 for large
        trailers.
        """
        if self.take_whole(data) is not None:
            return None
        data = self._buffer + data
        at = 0
        while True:
            if self._remaining >= 0:
                at = self._read_chunk(data, at)
                if self._remaining >= 0:
                    return None
                continue
            end = data.find(b"\r\n", at)
            if end < 0:
                self._keep_partial_line(data[at:])
                return None
            line, at = data[at:end], end + 2
            if self._in_trailers:
                if not line:
                    return data[at:]
                self._trailer_bytes += len(line) + 2
                if self._trailer_bytes > min(MAX_TRAILER_BYTES, MAX_HEADERS * 256):
                    raise HttpError(431, "trailers too large")
                if _TRAILER.fullmatch(line) is None:
                    raise HttpError(400, "malformed trailer")
            else:
                self._start_chunk(line)

    def take_whole(self, data: bytes) -> bytes | None:
        """Take a read that is exactly one chunk and return its content; None if it is not, or not surely.

        The tokens of a stream come so, a chunk each: this costs a third of the general way.
        """
        end = data.find(b"\r\n", 1, MAX_PLAIN_DIGITS + 2)
        if end < 0 or self._remaining >= 0 or self._in_trailers or self._buffer:
            return None
        digits = data[:end]
        size = int(digits, 16) if _HEX.issuperset(digits) else 0
        if not size or len(data) != end + size + 4 or not data.endswith(b"\r\n"):
            return None
        self._count_chunk(size)
        content = data[end + 2 : -2]
        self._body += content
        return content

    @property
    def received(self) -> int:
        """Bytes of the body received so far."""
        return len(self._body)

    def body(self) -> memoryview:
        return memoryview(self._body)

    def since(self, start: int) -> bytes:
        """Return the bytes of the body received so far, from `start` on."""
        return bytes(memoryview(self._body)[start:])

    def _keep_partial_line(self, rest: bytes) -> None:
        if len(rest) > (MAX_TRAILER_BYTES if self._in_trailers else MAX_SIZE_LINE_BYTES):
            raise HttpError(400, "chunk size line too long")
        # a proxy that ends lines at a bare LF would see other chunks than we do: request smuggling
        if b"\n" in rest:
            raise HttpError(400, "bare LF in chunked body")
        self._buffer = rest

    def _start_chunk(self, line: bytes) -> None:
        digits, _, extension = line.partition(b";")
        if len(extension) > 256:
            raise HttpError(400, "chunk extension longer than 256 bytes")
        digits = digits.rstrip(b" \t") if extension else digits
        if not digits or len(digits) > 16 or not _HEX.issuperset(digits) or b"\n" in line or b"\r" in line:
            raise HttpError(400, "malformed chunk size")
        size = int(digits, 16)
        self._buffer = b""
        if size == 0:
            self._in_trailers = True
            return
        self._count_chunk(size)
        self._remaining = size + 2

    def _count_chunk(self, size: int) -> None:
        self._chunks += 1
        self.size += size
        if self._chunks > self._most_chunks:
            raise HttpError(
                400,
                f"Chunked request body exceeds maximum of {self._most_chunks} non-empty chunks. "
                "Send fewer or larger HTTP chunks.",
            )
        if self.size > self._limit:
            raise HttpError(
                413, f"request body exceeds the maximum allowed input size of {self._limit} bytes"
            )

    def _read_chunk(self, data: bytes, at: int) -> int:
        """Consume the available part of the current chunk; its last two bytes must be CRLF."""
        available = min(self._remaining, len(data) - at)
        payload = min(available, max(0, self._remaining - 2))
        if payload:
            self._body += memoryview(data)[at : at + payload]
        tail = data[at + payload : at + available]
        expected = b"\r\n"[2 - min(2, self._remaining - payload) :]
        if not expected.startswith(tail):
            raise HttpError(400, "chunk does not end with CRLF")
        self._remaining = self._remaining - available or -1
        self._buffer = b""
        return at + available
