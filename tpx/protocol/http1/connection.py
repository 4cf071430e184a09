"""Reading half of an HTTP/1.1 connection, shared by servers and clients.

Small messages are sliced from the bytes of one read. A body that arrives in pieces gets an aligned
buffer of its own, which the event loop fills directly if the body is large, so that a tensor is copied
at most once between socket and model. If one read brings exactly one message with the head and size of
the previous one, the head is not parsed again.
"""

import asyncio
import re
from abc import abstractmethod
from typing import cast

from tpx.protocol.http1.chunked import MAX_CHUNKS, ChunkedDecoder
from tpx.protocol.http1.head import MAX_HEAD_BYTES, HeadCache, HttpError, HttpHead, check_partial_head
from tpx.protocol.read_buffer import LARGE_BYTES, BufferedReader
from tpx.protocol.tensors import aligned

HEAD_END = b"\r\n\r\n"
_CR = ord("\r")
_EMPTY_LINES = re.compile(rb"(?:\r\n)+")
"""Skipped before a message: some clients send them after a body (RFC 9112 section 2.2)."""
_CHECK_ABOVE_BYTES = 256
_CHUNKS_AT_ONCE_BYTES = 16 << 10


class HttpConnection(BufferedReader):
    """Splits the byte stream into messages and passes each to `_handle_message`."""

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
        self._checked = 0  # checked bytes of an incomplete head
        self._head: HttpHead | None = None
        self._body: memoryview | None = None
        self._filled = 0
        self._chunks: ChunkedDecoder | None = None
        # head and size of the last message if one read brought exactly that message; else size 0
        self._last_head = HttpHead()
        self._last_bytes = 0

    @abstractmethod
    def _handle_message(self, head: HttpHead, body: bytes | memoryview) -> bool:
        """Handle a complete message. Returns False to hold back further ones until `_resume_pending`."""

    @abstractmethod
    def _handle_head(self, head: HttpHead) -> None:
        """Handle a head whose body is incomplete or needs an action first. May raise HttpError."""

    def _may_begin_body(self, size: int) -> bool:  # noqa: ARG002 (a server's concern)
        """Return True if there is memory for a body; otherwise reading resumes at its head once there is."""
        return True

    def _describe_large_body(self, size: int) -> str:
        if not self._is_request_reader:
            return f"response of {size} bytes is larger than {self._max_body_bytes} bytes"
        return (
            f"request body of {size} bytes exceeds the maximum allowed input size of {self._max_body_bytes} "
            "bytes. Use --http-max-input-size to increase the limit."
        )

    def _charge_body(self, size: int) -> None:
        """Charge `size` bytes of a body to the memory budget. May raise HttpError."""

    @abstractmethod
    def _reject_message(self, error: HttpError) -> None:
        """Handle invalid input: the stream cannot be read further."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._body is not None:
            self._fill_body(self._body, data)
            return
        if self._pending:
            data, self._pending = self._pending + data, b""
        # the hot path: same head and size as the previous message, so the head need not be found
        elif len(data) == self._last_bytes and data.startswith(self._last_head.raw):
            try:
                self._handle_message(self._last_head, data[len(self._last_head.raw) :])
            except HttpError as exc:
                self._reject_message(exc)
            return
        self._parse_input(data)

    @property
    def received(self) -> int:
        """Bytes received of the body being read."""
        return self._chunks.received if self._chunks is not None else self._filled

    def next_buffer(self) -> memoryview | None:
        return self._body[self._filled :] if self._body is not None else None

    def buffer_received(self, count: int) -> None:
        self._filled += count
        if self._body is not None and self._filled == len(self._body):
            self._finish_body(self._body, b"")

    def _parse_input(self, data: bytes) -> None:
        """Read `data`, which starts at a message, a chunk, or a piece of one."""
        self._last_bytes = 0
        try:
            while data:
                data = self._read_chunks(data) if self._chunks is not None else self._read_messages(data)
                if self._limited and data and self.turn_over:
                    self._pending = data
                    self._await_turn(self._transport)
                    return
        except HttpError as exc:
            self._reject_message(exc)

    def _read_messages(self, data: bytes) -> bytes:
        """Handle the complete messages with plain heads. Returns the bytes from the first that needs more."""
        at, end = 0, len(data)
        while at < end:
            if data[at] == _CR and (empty := _EMPTY_LINES.match(data, at)):
                at = empty.end()
                continue
            head_end = data.find(HEAD_END, at)
            if head_end < 0:
                self._hold_partial_head(data[at:])
                break
            raw = data[at : head_end + 4]
            head = self._find_head(raw) or self._add_head(raw)
            size = head.content_length
            body_end = head_end + 4 + size
            if body_end > end and size <= self._max_body_bytes and not self._may_begin_body(size):
                self._pending = data[at:]
                break
            at = head_end + 4
            if not head.plain or body_end > end or size > self._max_body_bytes:
                return self._begin_body(head, data[at:])
            body = data[at:body_end]
            at = body_end
            self._last_head, self._last_bytes = head, end if len(raw) + size == end else 0
            if not self._handle_message(head, body):
                self._pending = data[at:]
                break
            if self._limited and at < end and self.turn_over:
                return data[at:]
        return b""

    def _resume_pending(self) -> None:
        """Resume with the data held back."""
        data, self._pending = self._pending, b""
        if self._body is not None:
            self._fill_body(self._body, data)
        else:
            self._parse_input(data)

    def _hold_partial_head(self, rest: bytes) -> None:
        size = len(rest)
        # parse a long head that arrives slowly only when its size has doubled: linear cost in total
        dripping = _CHECK_ABOVE_BYTES < self._checked < size < 2 * self._checked
        if not dripping or size > MAX_HEAD_BYTES:
            check_partial_head(rest, request=self._is_request_reader)
            self._checked = size
        self._pending = rest

    _is_request_reader = True

    def _begin_body(self, head: HttpHead, first: bytes) -> bytes:
        """Start a body that is chunked, incomplete, announced by Expect, or ended by closing the
        connection.

        Returns the bytes left to read after it.
        """
        if head.content_length > self._max_body_bytes:
            raise HttpError(413, self._describe_large_body(head.content_length))
        self._head = head
        self._handle_head(head)
        if head.chunked:
            # a service may stream any number of tokens, a chunk each
            most = MAX_CHUNKS if self._is_request_reader else self._max_body_bytes
            self._chunks = ChunkedDecoder(self._max_body_bytes, most)
            return first
        if head.content_length <= len(first):
            # the body is complete: only the head needed an action
            return self._complete_message(first[: head.content_length], first[head.content_length :])
        try:
            self._body = aligned(head.content_length, head.tensor_offset)
        except MemoryError:
            raise HttpError(503, f"no memory for a body of {head.content_length} bytes") from None
        self._charge_body(head.content_length)
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
            self._charge_body(chunks.size - before)
            if rest is not None:
                self._chunks = None
                return self._complete_message(chunks.body(), rest + data[stop:])
            if self._limited and self.turn_over:
                return data[stop:]
        return b""

    def _fill_body(self, body: memoryview, data: bytes) -> None:
        """Copy a read that starts within a body, and may extend past its end."""
        left = len(body) - self._filled
        if len(data) < left:
            body[self._filled : self._filled + len(data)] = data
            self._filled += len(data)
        else:
            body[self._filled :] = data[:left]
            self._finish_body(body, data[left:])

    def _finish_body(self, body: memoryview, rest: bytes) -> None:
        """Complete a body that is followed by `rest`."""
        self._body = None
        try:
            rest = self._complete_message(body, rest)
        except HttpError as exc:
            self._reject_message(exc)
            return
        self._parse_input(rest)

    def _complete_message(self, body: bytes | memoryview, rest: bytes) -> bytes:
        """Pass on a message. Returns the bytes that may be read now."""
        head, self._head = self._head, None
        assert head is not None
        if self._handle_message(head, body):
            return rest
        self._pending = rest
        return b""
