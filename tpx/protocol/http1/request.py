"""One HTTP request at the server, and its response."""

from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING

from tpx.protocol.http1.head import HttpHead
from tpx.protocol.listener import address_of
from tpx.protocol.tensors import Buffer

if TYPE_CHECKING:
    from tpx.protocol.http1.server import HttpServerConnection

STATUS_LINES = {s.value: f"HTTP/1.1 {s.value} {s.phrase}\r\n".encode() for s in HTTPStatus}
JSON_TYPE = b"Content-Type: application/json\r\n"
GONE = 499
"""Pseudo status of a request whose client left before the response (as in nginx)."""

_JOIN_BELOW_BYTES = 32 << 10


class HttpRequest:
    """One request. Its response is sent on the event loop, now or later: with one `respond`, or with
    `begin`, any number of `send`, and `finish`. Responses are dropped once the client is gone.
    """

    __slots__ = (
        "_connection", "began_ns", "body", "head", "on_answered", "on_gone", "on_stall", "received_ns",
    )  # fmt: skip

    def __init__(self, connection: "HttpServerConnection", head: HttpHead, body: Buffer) -> None:
        self._connection = connection
        self.head = head
        self.body = body
        self.on_gone: Callable[[], None] | None = None
        """Called when the client leaves before the response."""
        self.on_stall: Callable[[bool], None] | None = None
        """Called with True when the client stops reading what was sent, with False when it resumes."""
        self.on_answered: Callable[[int], None] | None = None
        """Called with the status when the response begins, or with GONE if there will be none."""
        self.began_ns = self.received_ns = 0
        """Times at which the first and the last bytes arrived; set only if the listener has an observer."""

    @property
    def peer(self) -> str:
        """Address and port of the client."""
        return address_of(self._connection.out.transport)

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
        start = b"%b%b%bContent-Length: %d\r\n\r\n" % (STATUS_LINES[status], headers, lines, size)
        if head.method == b"HEAD":
            connection.out.answer(start, reading=connection.serving)
        elif size < _JOIN_BELOW_BYTES:  # copying is cheaper than passing several buffers to the kernel
            connection.out.answer(b"".join((start, *parts)), reading=connection.serving)
        else:
            connection.out.writelines([start, *parts])
            connection.out.flush()
        connection.answered(keep_alive=keep_alive)

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
        connection.out.write(b"%b%b%b\r\n" % (STATUS_LINES[status], headers, framing))

    def send(self, data: bytes) -> None:
        """Send a non-empty piece of a started response. Data that a slow client does not read is
        buffered: use `on_stall`.
        """
        connection = self._connection
        if connection.request is not self:
            return
        if self.head.takes_chunks:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        connection.streamed_bytes += len(data)
        connection.out.write(data)

    def finish(self) -> None:
        """End a started response."""
        connection, head = self._connection, self.head
        if connection.request is not self:
            return
        self._forget()
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
        self._forget()

    def _forget(self) -> None:
        self.on_gone = self.on_stall = self.on_answered = None  # they know the request: a cycle
