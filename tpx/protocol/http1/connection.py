"""The reading half of an HTTP/1.1 connection, the same for servers and clients.

Small messages are cut out of what one read brought. A body that comes in pieces has its own aligned buffer,
which the event loop fills itself where the body is large, so that a tensor is copied at most once between the
socket and the model. A message that one read brings, with the head and the size of the one before, is known
at a glance.
"""

import asyncio
from abc import abstractmethod
from typing import cast

from tpx.protocol.buffers import aligned
from tpx.protocol.http1.chunked import ChunkedDecoder
from tpx.protocol.http1.head import MAX_HEAD_BYTES, HeadCache, HttpError, HttpHead, check_partial_head
from tpx.protocol.read_buffer import LARGE_BYTES, BufferedReader

HEAD_END = b"\r\n\r\n"
_CHECK_ABOVE_BYTES = 256
_CHUNKS_AT_ONCE_BYTES = 16 << 10


class HttpConnection(BufferedReader):
    """Cuts the byte stream into messages and hands each to `_message`."""

    __slots__ = (
        "_add_head",
        "_body",
        "_checked",
        "_chunks",
        "_filled",
        "_find_head",
        "_head",
        "_last_bytes",
        "_last_head",
        "_max_body_bytes",
        "_pending",
        "_scratch",
        "_transport",
    )

    def __init__(self, heads: HeadCache, scratch: memoryview, max_body_bytes: int) -> None:
        super().__init__()
        self._find_head = heads.get
        self._add_head = heads.add
        self._scratch = scratch
        self._max_body_bytes = max_body_bytes
        self._transport: asyncio.Transport = cast("asyncio.Transport", None)
        # the message being read
        self._pending = b""
        self._checked = 0  # of a head that is still incomplete
        self._head: HttpHead | None = None
        self._body: memoryview | None = None
        self._filled = 0
        self._chunks: ChunkedDecoder | None = None
        # the last message, if the last read brought all of it and nothing else; else its size is 0
        self._last_head = HttpHead()
        self._last_bytes = 0

    @abstractmethod
    def _message(self, head: HttpHead, body: bytes | memoryview) -> bool:
        """Take one complete message; False holds further ones back until `_resume`."""

    @abstractmethod
    def _head_seen(self, head: HttpHead) -> None:
        """A head whose body is still to come, or that needs something first. May raise HttpError."""

    def _may_begin(self, size: int) -> bool:  # noqa: ARG002 (a server's concern)
        """Return whether there is memory for a body; if not, the connection goes on with its head when there
        is."""
        return True

    def _hold(self, size: int) -> None:
        """So much of a body will be held. May raise HttpError."""

    @abstractmethod
    def _bad_message(self, error: HttpError) -> None:
        """The stream cannot be read on."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._body is not None:
            self._fill(self._body, data)
            return
        if self._pending:
            data, self._pending = self._pending + data, b""
        elif len(data) == self._last_bytes and data.startswith(self._last_head.raw):
            try:
                self._message(self._last_head, data[len(self._last_head.raw) :])
            except HttpError as exc:
                self._bad_message(exc)
            return
        self._read(data)

    @property
    def received(self) -> int:
        """Bytes that have come of the body which is being read."""
        return self._chunks.received if self._chunks is not None else self._filled

    def landing(self) -> memoryview | None:
        return self._body[self._filled :] if self._body is not None else None

    def landed(self, count: int) -> None:
        self._filled += count
        if self._body is not None and self._filled == len(self._body):
            self._finish(self._body, b"")

    def _read(self, data: bytes) -> None:
        """Cut `data`, which begins where the last message or piece of one ended."""
        self._last_bytes = 0
        try:
            while data:
                data = self._read_chunks(data) if self._chunks is not None else self._read_messages(data)
                if self._limited and data and self.turn_over:
                    self._pending = data
                    self._await_turn(self._transport)
                    return
        except HttpError as exc:
            self._bad_message(exc)

    def _read_messages(self, data: bytes) -> bytes:
        """Take the messages that are plain and complete; returns what is left to read behind another one."""
        at, end = 0, len(data)
        while at < end:
            head_end = data.find(HEAD_END, at)
            if head_end < 0:
                self._hold_partial_head(data[at:])
                break
            raw = data[at : head_end + 4]
            head = self._find_head(raw) or self._add_head(raw)
            size = head.content_length
            body_end = head_end + 4 + size
            if body_end > end and size <= self._max_body_bytes and not self._may_begin(size):
                self._pending = data[at:]
                break
            at = head_end + 4
            if not head.plain or body_end > end or size > self._max_body_bytes:
                return self._begin_body(head, data[at:])
            body = data[at:body_end]
            at = body_end
            self._last_head, self._last_bytes = head, end if len(raw) + size == end else 0
            if not self._message(head, body):
                self._pending = data[at:]
                break
            if self._limited and at < end and self.turn_over:
                return data[at:]
        return b""

    def _resume(self) -> None:
        """Go on with what was held back."""
        data, self._pending = self._pending, b""
        if self._body is not None:
            self._fill(self._body, data)
        else:
            self._read(data)

    def _hold_partial_head(self, rest: bytes) -> None:
        if rest == b"\r\n":
            return  # some clients end a body with it (RFC 9112 section 2.2)
        size = len(rest)
        # a long head that drips in is not parsed from its beginning for each drop
        dripping = _CHECK_ABOVE_BYTES < self._checked < size < 2 * self._checked
        if not dripping or size > MAX_HEAD_BYTES:
            check_partial_head(rest, request=self._is_request_reader)
            self._checked = size
        self._pending = rest

    _is_request_reader = True

    def _begin_body(self, head: HttpHead, first: bytes) -> bytes:
        """A body that is chunked, incomplete, announced by Expect, or ended by the connection.

        Returns what is left to read behind it.
        """
        if head.content_length > self._max_body_bytes:
            raise HttpError(
                413,
                f"request body of {head.content_length} bytes exceeds the maximum allowed input size of "
                f"{self._max_body_bytes} bytes. Use --http-max-input-size to increase the limit.",
            )
        self._head = head
        self._head_seen(head)
        if head.chunked:
            self._chunks = ChunkedDecoder(self._max_body_bytes)
            return first
        if head.content_length <= len(first):
            # complete after all: only the head needed attention
            return self._complete(first[: head.content_length], first[head.content_length :])
        try:
            self._body = aligned(head.content_length, head.tensor_offset)
        except MemoryError:
            raise HttpError(503, f"no memory for a body of {head.content_length} bytes") from None
        self._hold(head.content_length)
        self._body[: len(first)] = first
        self._filled = len(first)
        if head.content_length - len(first) >= LARGE_BYTES:
            self.read_into_buffers(self._transport, self._scratch)
        return b""

    def _read_chunks(self, data: bytes) -> bytes:
        chunks = cast("ChunkedDecoder", self._chunks)
        for at in range(0, len(data), _CHUNKS_AT_ONCE_BYTES):
            stop = at + _CHUNKS_AT_ONCE_BYTES
            before = chunks.size
            rest = chunks.feed(data[at:stop])
            self._hold(chunks.size - before)
            if rest is not None:
                self._chunks = None
                return self._complete(chunks.body(), rest + data[stop:])
            if self._limited and self.turn_over:
                return data[stop:]
        return b""

    def _fill(self, body: memoryview, data: bytes) -> None:
        """A read that begins within a body, and may end behind it."""
        left = len(body) - self._filled
        if len(data) < left:
            body[self._filled : self._filled + len(data)] = data
            self._filled += len(data)
        else:
            body[self._filled :] = data[:left]
            self._finish(body, data[left:])

    def _finish(self, body: memoryview, rest: bytes) -> None:
        """A body is complete, and `rest` came behind it."""
        self._body = None
        try:
            rest = self._complete(body, rest)
        except HttpError as exc:
            self._bad_message(exc)
            return
        self._read(rest)

    def _complete(self, body: bytes | memoryview, rest: bytes) -> bytes:
        """Hand over a message; returns what may be read behind it now."""
        head, self._head = cast("HttpHead", self._head), None
        if self._message(head, body):
            return rest
        self._pending = rest
        return b""
