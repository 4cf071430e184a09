"""Heads of HTTP/1.1 messages: parsed strictly by httptools, checked against limits, and cached.

A client on a kept-alive connection repeats its head, so parsed heads are looked up by their bytes. The
cache is bounded, and a parsed head depends only on its bytes.
"""

import re
from collections.abc import Callable
from typing import Any

import httptools
import msgspec

from tpx.errors import WireError

MAX_HEAD_BYTES = 64 << 10
MAX_TARGET_BYTES = 8 << 10
MAX_HEADERS = 100

_ORIGIN = re.compile(rb"https?://[^/?]*", re.IGNORECASE)
"""Scheme and authority of a target in absolute form, which servers must accept too."""

_CACHED_HEADS = 1024
_CACHED_HEAD_BYTES = 2 << 10


class HttpError(WireError):
    """The peer violated HTTP/1.1 or a limit; a server responds with `status` and closes the connection."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class HttpHead(msgspec.Struct, eq=False):
    """Parsed head. Header names are lower case; values of repeated headers are joined by ", "."""

    method: bytes = b""
    path: bytes = b""
    query: bytes = b""
    status: int = 0
    headers: dict[bytes, bytes] = msgspec.field(default_factory=dict)
    content_length: int = 0
    chunked: bool = False
    keep_alive: bool = True
    connection: bytes = b""
    """Connection header of a response that keeps the connection open; only HTTP/1.0 needs one."""
    expects_continue: bool = False
    plain: bool = True
    """True on the hot path: the body has a known length, and no response is due before it."""
    tensor_offset: int = 0
    """Offset of binary tensors in the body (Inference-Header-Content-Length), for alignment."""
    raw: bytes = b""
    """Bytes of the head as received."""
    answer_headers: bytes = b""
    """Header lines that the connection's owner adds to every response."""
    memo: Any = None
    """Cache slot for the connection's owner: what it derived from this head."""

    @property
    def takes_chunks(self) -> bool:
        """True if a streamed response is chunked; for HTTP/1.0 it ends by closing the connection."""
        return not self.connection


class _Collector:
    """Receiver of httptools' callbacks for one head."""

    def __init__(self) -> None:
        self.target = b""
        self.pairs: list[tuple[bytes, bytes]] = []

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        # the parser leaves a tab after a value, which must be stripped (RFC 9110 section 5.5)
        self.pairs.append((name.lower(), value.strip(b" \t")))


class HeadCache:
    """Bounded cache of parsed heads, keyed by their bytes."""

    def __init__(self, parse: Callable[[bytes], HttpHead]) -> None:
        self._parse = parse
        self._known: dict[bytes, HttpHead] = {}
        self.get = self._known.get

    def add(self, raw: bytes) -> HttpHead:
        """Parse a head and cache it if it is small. Raises HttpError."""
        head = self._parse(raw)
        if len(raw) <= _CACHED_HEAD_BYTES:
            if len(self._known) >= _CACHED_HEADS:
                self._known.clear()
            self._known[raw] = head
        return head


def parse_request_head(raw: bytes) -> HttpHead:
    """Parse a request's head, including the empty line. Raises HttpError with the status to respond with."""
    if len(raw) > MAX_HEAD_BYTES:
        _refuse_long_head(raw)
    collector = _Collector()
    parser = httptools.HttpRequestParser(collector)
    _feed_parser(parser, raw)
    if not collector.target:
        raise HttpError(400, "malformed HTTP message: no request line")
    head = HttpHead(raw=raw, method=parser.get_method())
    if not raw.startswith(head.method + b" " + collector.target + b" HTTP/"):
        raise HttpError(400, "malformed HTTP message: one space each separates method, target and version")
    if len(collector.target) > MAX_TARGET_BYTES:
        raise HttpError(414, f"request target longer than {MAX_TARGET_BYTES} bytes")
    target = _ORIGIN.sub(b"", collector.target, count=1)
    head.path, _, head.query = target.partition(b"?")
    version = parser.get_http_version()
    if version not in ("1.0", "1.1"):
        raise HttpError(505, f"HTTP version {version} is not supported")
    _add_headers(head, collector.pairs)
    if version == "1.1" and b"host" not in head.headers:
        raise HttpError(400, "missing Host header")
    # an HTTP/1.0 proxy may forward the field without knowing it (RFC 9112 section 6.1)
    if version == "1.0" and head.chunked:
        raise HttpError(400, "Transfer-Encoding in an HTTP/1.0 request")
    # a proxy could route by one and we answer by the other (RFC 9112 section 3.2)
    if sum(name == b"host" for name, _ in collector.pairs) > 1:
        raise HttpError(400, "more than one Host header")
    tokens = _split_tokens(head.headers.get(b"connection", b""))
    if version == "1.0":
        head.keep_alive = b"keep-alive" in tokens and b"close" not in tokens
        head.connection = b"Connection: keep-alive\r\n"
    else:
        head.keep_alive = b"close" not in tokens
        head.expects_continue = head.headers.get(b"expect", b"").lower() == b"100-continue"
    head.tensor_offset = _parse_tensor_offset(head.headers.get(b"inference-header-content-length", b""))
    head.plain = not head.chunked and not head.expects_continue
    return head


def parse_response_head(raw: bytes) -> HttpHead:
    """Parse a response's head. `content_length` is -1 if the body ends by closing the connection."""
    collector = _Collector()
    parser = httptools.HttpResponseParser(collector)
    _feed_parser(parser, raw)
    head = HttpHead(raw=raw, status=parser.get_status_code())
    _add_headers(head, collector.pairs)
    tokens = _split_tokens(head.headers.get(b"connection", b""))
    head.keep_alive = b"close" not in tokens and (
        parser.get_http_version() == "1.1" or b"keep-alive" in tokens
    )
    if head.status < 200 or head.status in (204, 304):
        head.content_length, head.chunked = 0, False
    elif not head.chunked and b"content-length" not in head.headers:
        head.content_length, head.keep_alive = -1, False
    head.tensor_offset = _parse_tensor_offset(head.headers.get(b"inference-header-content-length", b""))
    head.plain = not head.chunked and head.content_length >= 0 and head.status >= 200
    return head


def check_partial_head(raw: bytes, *, request: bool) -> None:
    """Raise HttpError as soon as an incomplete head cannot become valid (TLS hello, bare LF, garbage)."""
    if len(raw) > MAX_HEAD_BYTES:
        _refuse_long_head(raw)
    kind = httptools.HttpRequestParser if request else httptools.HttpResponseParser
    _feed_parser(kind(_Collector()), raw)


def _refuse_long_head(raw: bytes) -> None:
    line_end = raw.find(b"\r\n")
    if line_end < 0 or line_end > MAX_TARGET_BYTES + 32:
        raise HttpError(414, f"request target longer than {MAX_TARGET_BYTES} bytes")
    raise HttpError(431, f"head longer than {MAX_HEAD_BYTES} bytes")


def _feed_parser(parser: httptools.HttpRequestParser | httptools.HttpResponseParser, raw: bytes) -> None:
    try:
        parser.feed_data(raw)
    except httptools.HttpParserUpgrade:
        pass  # decline the offer to upgrade, and serve the request
    except httptools.HttpParserError as exc:
        raise HttpError(400, f"malformed HTTP message: {exc}") from exc


def _add_headers(head: HttpHead, pairs: list[tuple[bytes, bytes]]) -> None:
    if len(pairs) > MAX_HEADERS:
        raise HttpError(431, f"more than {MAX_HEADERS} headers")
    headers = head.headers
    for name, value in pairs:
        headers[name] = headers[name] + b", " + value if name in headers else value
    coding = headers.get(b"transfer-encoding")
    if coding is not None:
        if coding.lower() != b"chunked":
            raise HttpError(501, "the only supported Transfer-Encoding is chunked")
        head.chunked = True
    length = headers.get(b"content-length", b"0")
    if not length.isdigit() or len(length) > 18:
        raise HttpError(400, "Content-Length must be one non-negative integer")
    head.content_length = int(length)


def _split_tokens(value: bytes) -> set[bytes]:
    return {token.strip().lower() for token in value.split(b",")}


def _parse_tensor_offset(value: bytes) -> int:
    """Return the tensor offset, used for alignment only: the v2 codec validates the header."""
    return int(value) if value.isdigit() and len(value) < 10 else 0
