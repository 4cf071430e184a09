"""HTTP/1.1 client connection: prebuilt requests, one callback per response."""

import asyncio
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Protocol

from tpx.errors import WireError
from tpx.protocol.http1.connection import HttpConnection
from tpx.protocol.http1.head import HeadCache, HttpError, HttpHead, parse_response_head
from tpx.protocol.read_buffer import dial
from tpx.protocol.tensors import Buffer, new_scratch
from tpx.protocol.write_buffer import direct_write

MAX_RESPONSE_BYTES = 8 << 30

_ONE_PIECE = (bytes, bytearray, memoryview)
_clock = time.perf_counter_ns


class HttpResponse:
    """Last response of a connection. Header names are lower case; times are on the clock of
    time.perf_counter_ns.

    Small responses with the same head and size as the previous one reuse its object, because creating
    one costs more than reading the response: copy what must outlive the callback.
    """

    __slots__ = ("_body", "_head_bytes", "end_ns", "first_byte_ns", "headers", "message", "status")

    def __init__(self, head: HttpHead, body: Buffer, first_byte_ns: int) -> None:
        self.status = head.status
        self.headers: Mapping[bytes, bytes] = head.headers
        self.first_byte_ns = first_byte_ns
        self.end_ns = _clock()
        """Time at which the read that completed the response was handled."""
        self.message = b""
        """Complete bytes of a later response with the same head; empty for the first."""
        self._head_bytes = len(head.raw)
        self._body = body

    @property
    def body(self) -> Buffer:
        """Body without transfer coding."""
        return self.message[self._head_bytes :] if self.message else self._body


def encode_request(
    method: str, path: str, host: str, headers: Mapping[str, str], body: Sequence[Buffer] = ()
) -> list[Buffer]:
    """Encode a request. Returns its head followed by the body parts, which are not copied."""
    size = sum(len(part) for part in body)
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", *(f"{k}: {v}" for k, v in headers.items())]
    if size or method in ("POST", "PUT"):
        lines.append(f"Content-Length: {size}")
    return [("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"), *body]


class HttpCarrier(Protocol):
    """A connection as its user sees it; see HttpClientConnection."""

    closing: bool
    unanswered: bool
    on_lost: Callable[[WireError], None] | None

    def send(
        self, request: Buffer | Sequence[Buffer], on_response: Callable[[HttpResponse], None]
    ) -> None: ...
    def limit_response(self, size: int) -> None: ...
    def close(self) -> None: ...


class HttpClientConnection(HttpConnection):
    """Connection with one request in flight at a time.

    The callback of `send` runs inside the read that completed the response, and may send the next
    request immediately. `on_lost` is called once if the connection breaks or the server closes it; a
    request in flight then gets no response.
    """

    def __init__(self, heads: HeadCache, scratch: memoryview) -> None:
        super().__init__(heads, scratch, MAX_RESPONSE_BYTES)
        self.on_lost: Callable[[WireError], None] | None = None
        self._on_response: Callable[[HttpResponse], None] | None = None
        self._response = HttpResponse(self._last_head, b"", 0)
        self._first_byte_ns = 0
        self._until_close: bytearray | None = None
        self._write: Callable[[Buffer], None] | None = None
        """Writes a request directly to the kernel; None uses the transport."""
        self._lost = False
        self.closing = False
        """True once the server will not respond to another request on this connection."""
        self._used = False
        self.unanswered = False
        """True if it had answered before, and was lost without a byte in answer to the last request."""

    _is_request_reader = False

    def send(self, request: Buffer | Sequence[Buffer], on_response: Callable[[HttpResponse], None]) -> None:
        """Send a request made by `encode_request`. Raises WireError if one is in flight, or when closing."""
        if self._on_response is not None or self.closing:
            raise WireError("the connection is closing" if self.closing else "a request is already in flight")
        self._on_response = on_response
        self._first_byte_ns = 0
        if isinstance(request, _ONE_PIECE):
            (self._write or self._transport.write)(request)
        else:
            self._transport.writelines(request)

    def write_at_once(self) -> None:
        """Write single-part requests directly to the kernel, before `send` returns."""
        self._write = direct_write(self._transport)

    def limit_response(self, size: int) -> None:
        """Refuse responses with larger bodies, which break the connection."""
        self._max_body_bytes = size

    @property
    def busy(self) -> bool:
        return self._on_response is not None

    def close(self) -> None:
        """Close the connection immediately; no callback is called afterwards."""
        self._lost = self.closing = True
        self._on_response = None
        self._transport.abort()

    def body_so_far(self, start: int) -> bytes:
        """Return what was received so far, from `start` on, of a body of unknown length."""
        if self._until_close is not None:
            return bytes(memoryview(self._until_close)[start:])
        return self._chunks.since(start) if self._chunks is not None else b""

    def data_received(self, data: bytes) -> None:
        read_ns = _clock()
        # the hot path: same head and size as the previous response, so reuse its object
        if len(data) == self._last_bytes and data.startswith(self._last_head.raw):
            on_response, self._on_response = self._on_response, None
            if on_response is not None:
                response = self._response
                response.message, response.first_byte_ns, response.end_ns = data, read_ns, read_ns
                on_response(response)
                return
        if not self._first_byte_ns:
            self._first_byte_ns = read_ns
        if self._until_close is not None:
            self._until_close += data
            if len(self._until_close) > self._max_body_bytes:
                self._reject_message(HttpError(413, f"response larger than {self._max_body_bytes} bytes"))
            return
        super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._until_close is not None and exc is None and not self._lost:
            self._complete_message(memoryview(self._until_close), b"")
        self._fail(f"connection lost: {exc}" if exc else "the server closed the connection")

    def _handle_message(self, head: HttpHead, body: Buffer) -> bool:
        if head.status < 200:
            return True
        on_response, self._on_response = self._on_response, None
        if self._lost:
            return False
        if on_response is None:
            raise HttpError(400, "response without a request")
        first_byte_ns, self._first_byte_ns = self._first_byte_ns, 0
        if not head.keep_alive:
            self.closing = True
            self._transport.close()
        self._used = True
        self._response = response = HttpResponse(head, body, first_byte_ns)
        on_response(response)
        return True

    def _begin_body(self, head: HttpHead, first: bytes) -> bytes:
        if head.content_length < 0:
            self._head, self._until_close = head, bytearray(first)
            return b""
        return super()._begin_body(head, first)

    def _handle_head(self, head: HttpHead) -> None:
        pass

    def _reject_message(self, error: HttpError) -> None:
        self._fail(error.message)
        self._transport.abort()

    def _fail(self, message: str) -> None:
        if self._lost:
            return
        self._lost = self.closing = True
        self.unanswered = self.busy and self._used and not self._first_byte_ns
        self._on_response = None
        if self.on_lost is not None:
            self.on_lost(WireError(message))


@dataclass(eq=False)
class HttpConnector:
    """Opens connections to one server; they share the cache of heads and the scratch buffer for reads."""

    host: str
    port: int
    tls: ssl.SSLContext | None = field(default=None, kw_only=True)
    kind: type[HttpClientConnection] = field(default=HttpClientConnection, kw_only=True)
    at_once: bool = field(default=False, kw_only=True)
    """True if requests reach the kernel before `send` returns."""

    def __post_init__(self) -> None:
        self._heads = HeadCache(parse_response_head)
        self._scratch = new_scratch()

    async def connect(self, timeout_s: float = 10.0) -> HttpClientConnection:
        """Open a connection. Raises WireError naming the address."""
        connection = self.kind(self._heads, self._scratch)
        await dial(lambda: connection, self.host, self.port, tls=self.tls, timeout_s=timeout_s)
        if self.at_once:
            connection.write_at_once()
        return connection


async def fetch(connection: HttpCarrier, request: Sequence[Buffer], timeout_s: float = 30.0) -> HttpResponse:
    """Send one request and return its response. Raises WireError if the connection breaks or is too slow."""
    answer: asyncio.Future[HttpResponse] = asyncio.get_running_loop().create_future()

    def lost(error: WireError) -> None:
        if not answer.done():
            answer.set_exception(error)

    def received(response: HttpResponse) -> None:
        if not answer.done():
            answer.set_result(copy(response))

    previous, connection.on_lost = connection.on_lost, lost
    try:
        connection.send(request, received)
        async with asyncio.timeout(timeout_s):
            return await answer
    except TimeoutError as exc:
        connection.close()
        raise WireError(f"no response within {timeout_s} s") from exc
    except asyncio.CancelledError:
        # the response may still arrive, so this connection cannot be reused
        connection.close()
        raise
    finally:
        connection.on_lost = previous
