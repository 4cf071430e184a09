"""A request on a server's connection, and how its response is written."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Protocol

from tpx.protocol.http1.head import HttpHead
from tpx.protocol.listener import address_of
from tpx.protocol.tensors import Buffer
from tpx.protocol.write_buffer import WriteBuffer

STATUS_LINES = {s.value: f"HTTP/1.1 {s.value} {s.phrase}\r\n".encode() for s in HTTPStatus}
JSON_TYPE = b"Content-Type: application/json\r\n"
GONE = 499
"""Pseudo status of a request whose client left before the response (as in nginx)."""

_JOIN_BELOW_BYTES = 32 << 10
_REPEATED_BYTES = 2048
"""Maximum start of a request that a connection remembers."""

RepeatAnswer = Callable[[memoryview], bytes | None]
"""Takes the body of a repeated request from its tensors on. Returns the whole response, or None to handle
the request like any other; raises nothing.
"""


class RespondingConnection(Protocol):
    """The connection of a request, as the request uses it."""

    out: WriteBuffer
    request: "HttpRequest | None"
    """The request in flight."""
    serving: bool
    """True while a request is passed on: its response may be written with others of the same read."""
    repeats: tuple[bytes, int, RepeatAnswer]
    """Start and size of the requests that `repeat_with` refers to, and what answers them."""
    answer_bytes: int
    """Size of the last response, or of its part that is charged."""
    streamed_bytes: int
    """Bytes of streamed responses, which tell a slow client from one that has stopped reading."""

    def last_answer(self) -> bool:
        """Return True if no request will follow the one in flight."""

    def answered(self, *, keep_alive: bool) -> None:
        """Continue after a response: read on, or end the connection."""


@dataclass(slots=True, eq=False, repr=False)
class HttpRequest:
    """One request. Its response is sent on the event loop, now or later: with one `respond`, or with
    `begin`, any number of `send`, and `finish`. Responses are dropped once the client is gone.
    """

    _connection: RespondingConnection
    head: HttpHead
    body: Buffer
    on_gone: Callable[[], None] | None = field(init=False, default=None)
    """Called when the client leaves before the response."""
    on_stall: Callable[[bool], None] | None = field(init=False, default=None)
    """Called with True when the client stops reading what was sent, with False when it resumes."""
    on_answered: Callable[[int], None] | None = field(init=False, default=None)
    """Called with the status when the response begins, or with GONE if there will be none."""
    began_ns: int = field(init=False, default=0)
    received_ns: int = field(init=False, default=0)
    """Times at which the first and the last bytes arrived; set only if the listener has an observer."""

    @property
    def peer(self) -> str:
        """Address and port of the client."""
        return address_of(self._connection.out.transport)

    @property
    def over(self) -> bool:
        """True if the client is gone or has its response: further ones are dropped."""
        return self._connection.request is not self

    def unsent(self) -> int:
        """Return the bytes of responses that the kernel has not accepted yet."""
        out = self._connection.out
        return 0 if out.is_closing() else out.get_write_buffer_size()

    def respond(self, status: int, headers: bytes, parts: Sequence[Buffer] = ()) -> None:
        """Send a response. `headers` are complete lines, without Content-Length and Connection. Large
        parts are not copied and must not change until they are sent.
        """
        connection, head = self._connection, self.head
        if connection.request is not self:
            return
        if self.on_answered is not None:
            self.on_answered(status)
        self.on_gone = self.on_stall = self.on_answered = None  # they know the request: a cycle
        size = 0
        for part in parts:
            size += len(part)
        connection.answer_bytes = size
        keep_alive = head.keep_alive and not connection.last_answer()
        lines = head.connection if keep_alive else b"Connection: close\r\n"
        start = b"%b%b%b%bContent-Length: %d\r\n\r\n" % (
            STATUS_LINES[status], headers, head.answer_headers, lines, size,
        )  # fmt: skip
        if head.method == b"HEAD":
            connection.out.answer(start, reading=connection.serving)
        elif size < _JOIN_BELOW_BYTES:  # copying is cheaper than passing several buffers to the kernel
            connection.out.answer(b"".join((start, *parts)), reading=connection.serving)
        else:
            connection.out.writelines([start, *parts])
            connection.out.flush()
        connection.answered(keep_alive=keep_alive)

    def start_of_response(self, headers: bytes, size: int) -> bytes:
        """Return the start of successful responses to requests with this head, for `respond_whole`."""
        head = self.head
        return b"%b%b%b%bContent-Length: %d\r\n\r\n" % (
            STATUS_LINES[200], headers, head.answer_headers, head.connection, size,
        )  # fmt: skip

    def respond_whole(self, response: bytes) -> bool:
        """Send a successful response that leaves the connection open. Returns False and sends nothing if
        the connection must end after it.
        """
        connection = self._connection
        if connection.request is not self:
            return True
        if not self.head.keep_alive or connection.last_answer():
            return False
        if self.on_answered is not None:
            self.on_answered(200)
        self.on_gone = self.on_stall = self.on_answered = None  # they know the request: a cycle
        connection.answer_bytes = len(response)
        connection.out.answer(response, reading=connection.serving)
        connection.answered(keep_alive=True)
        return True

    def repeat_with(self, answer: RepeatAnswer, start: int) -> None:
        """Let `answer` respond to the next requests on this connection that are as long as this one and
        differ only from byte `start` of the body on.
        """
        head, body = self.head.raw, self.body
        if self.head.plain and len(head) + start <= _REPEATED_BYTES:
            self._connection.repeats = head + bytes(body[:start]), len(head) + len(body), answer

    def begin(self, status: int, headers: bytes) -> None:
        """Start a response of unknown length."""
        connection, head = self._connection, self.head
        if connection.request is not self:
            return
        if self.on_answered is not None:
            self.on_answered(status)
        framing = b"Transfer-Encoding: chunked\r\n" if head.takes_chunks else b""
        if not framing or not head.keep_alive or connection.last_answer():
            framing += b"Connection: close\r\n"
        lines = headers + head.answer_headers + framing
        connection.out.write(b"%b%b\r\n" % (STATUS_LINES[status], lines))

    def send(self, data: bytes) -> None:
        """Send a non-empty piece of a started response. Unread data is buffered: use `on_stall`."""
        connection = self._connection
        if connection.request is not self:
            return
        if not self.head.connection:  # takes_chunks, once per token of a stream
            data = b"%x\r\n%b\r\n" % (len(data), data)
        connection.streamed_bytes += len(data)
        connection.out.write(data)

    def finish(self) -> None:
        """End a started response."""
        connection, head = self._connection, self.head
        if connection.request is not self:
            return
        self._clear_callbacks()
        if head.takes_chunks:
            connection.out.write(b"0\r\n\r\n")
        connection.answered(keep_alive=head.takes_chunks and head.keep_alive and not connection.last_answer())

    def withdraw(self) -> None:
        """Notify the handler, once, that the client is gone."""
        if self.on_gone is not None:
            on_gone, self.on_gone = self.on_gone, None
            on_gone()

    def lose(self) -> None:
        """Handle loss of the connection: there will be no response."""
        self.withdraw()
        if self.on_answered is not None:
            self.on_answered(GONE)
        self._clear_callbacks()

    def _clear_callbacks(self) -> None:
        self.on_gone = self.on_stall = self.on_answered = None  # they know the request: a cycle
