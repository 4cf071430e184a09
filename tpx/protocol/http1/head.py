"""Heads of HTTP/1.1 messages: strictly parsed by httptools, checked against limits, and remembered.

A client on a kept-alive connection sends the same head again and again, so a head that was parsed once is
found again
by its bytes. The memory is bounded, and a parsed head is a pure function of its bytes.
"""

import re
from collections.abc import Callable
from typing import Any

import httptools

from tpx.errors import WireError

MAX_HEAD_BYTES = 64 << 10
MAX_TARGET_BYTES = 8 << 10
MAX_HEADERS = 100

_EMPTY_LINES = re.compile(rb"\A(?:\r\n)+")
_ORIGIN = re.compile(rb"https?://[^/?]*", re.IGNORECASE)
"""Before the path where a client sends the absolute form of a target, which servers must take too."""

_CACHED_HEADS = 1024
_CACHED_HEAD_BYTES = 2 << 10


class HttpError(WireError):
    """A peer broke HTTP/1.1 or one of our limits; a server answers `status` and closes the connection."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class HttpHead:
    """One parsed head. Header names are lower case; of a repeated header the values are joined by ", "."""

    __slots__ = (
        "chunked",
        "connection",
        "content_length",
        "expects_continue",
        "headers",
        "keep_alive",
        "memo",
        "method",
        "path",
        "plain",
        "query",
        "raw",
        "status",
        "tensor_offset",
    )

    def __init__(self) -> None:
        self.method = b""
        self.path = b""
        self.query = b""
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.content_length = 0
        self.chunked = False
        self.keep_alive = True
        self.connection = b""
        """The Connection header of an answer that keeps the connection: HTTP/1.0 wants to be told."""
        self.expects_continue = False
        self.plain = True
        """A body of known length and nothing to answer before it: the hot path."""
        self.tensor_offset = 0
        """Where binary tensors begin in the body (Inference-Header-Content-Length), so that they can be
        aligned."""
        self.raw = b""
        """The head as it came."""
        self.memo: Any = None
        """For the owner of the connection: what it made of this head the first time."""

    @property
    def takes_chunks(self) -> bool:
        """Return whether a streamed answer is chunked: HTTP/1.0 knows none, there it ends with the
        connection."""
        return not self.connection


class _Collector:
    """Receives httptools' callbacks for one head."""

    def __init__(self) -> None:
        self.target = b""
        self.pairs: list[tuple[bytes, bytes]] = []

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        # of the white space around a value the parser leaves a tab behind it (RFC 9110 section 5.5)
        self.pairs.append((name.lower(), value.strip(b" \t")))


class HeadCache:
    """Parsed heads by their bytes."""

    def __init__(self, parse: Callable[[bytes], HttpHead]) -> None:
        self._parse = parse
        self._known: dict[bytes, HttpHead] = {}
        self.get = self._known.get

    def add(self, raw: bytes) -> HttpHead:
        """Parse and remember. Raises HttpError."""
        head = self._parse(raw)
        if len(raw) <= _CACHED_HEAD_BYTES:
            if len(self._known) >= _CACHED_HEADS:
                self._known.clear()
            self._known[raw] = head
        return head


def parse_request_head(raw: bytes) -> HttpHead:
    """A request's head, from its first byte to the empty line. Raises HttpError with the status to answer."""
    if len(raw) > MAX_HEAD_BYTES:
        _refuse_long(raw)
    collector = _Collector()
    parser = httptools.HttpRequestParser(collector)
    _feed(parser, raw)
    if not collector.target:
        raise HttpError(400, "malformed HTTP message: no request line")
    head = HttpHead()
    head.raw = raw
    head.method = parser.get_method()
    line = _EMPTY_LINES.sub(b"", raw, count=1)
    if not line.startswith(head.method + b" " + collector.target + b" HTTP/"):
        raise HttpError(400, "malformed HTTP message: one space each separates method, target and version")
    if len(collector.target) > MAX_TARGET_BYTES:
        raise HttpError(414, f"request target longer than {MAX_TARGET_BYTES} bytes")
    target = _ORIGIN.sub(b"", collector.target, count=1)
    head.path, _, head.query = target.partition(b"?")
    version = parser.get_http_version()
    if version not in ("1.0", "1.1"):
        raise HttpError(505, f"HTTP version {version} is not supported")
    _take_headers(head, collector.pairs)
    if version == "1.1" and b"host" not in head.headers:
        raise HttpError(400, "missing Host header")
    if version == "1.0" and head.chunked:
        raise HttpError(400, "Transfer-Encoding in an HTTP/1.0 request")
    if sum(name == b"host" for name, _ in collector.pairs) > 1:
        raise HttpError(400, "more than one Host header")
    tokens = _tokens(head.headers.get(b"connection", b""))
    if version == "1.0":
        head.keep_alive = b"keep-alive" in tokens and b"close" not in tokens
        head.connection = b"Connection: keep-alive\r\n"
    else:
        head.keep_alive = b"close" not in tokens
        head.expects_continue = head.headers.get(b"expect", b"").lower() == b"100-continue"
    head.tensor_offset = _offset(head.headers.get(b"inference-header-content-length", b""))
    head.plain = not head.chunked and not head.expects_continue
    return head


def parse_response_head(raw: bytes) -> HttpHead:
    """A response's head. `content_length` is -1 where the body ends with the connection."""
    collector = _Collector()
    parser = httptools.HttpResponseParser(collector)
    _feed(parser, raw)
    head = HttpHead()
    head.raw = raw
    head.status = parser.get_status_code()
    _take_headers(head, collector.pairs)
    tokens = _tokens(head.headers.get(b"connection", b""))
    head.keep_alive = b"close" not in tokens and (
        parser.get_http_version() == "1.1" or b"keep-alive" in tokens
    )
    bodiless = head.status < 200 or head.status in (204, 304)
    if bodiless:
        head.content_length, head.chunked = 0, False
    elif not head.chunked and b"content-length" not in head.headers:
        head.content_length, head.keep_alive = -1, False
    head.tensor_offset = _offset(head.headers.get(b"inference-header-content-length", b""))
    head.plain = not head.chunked and head.content_length >= 0 and head.status >= 200
    return head


def check_partial_head(raw: bytes, *, request: bool) -> None:
    """Raise HttpError as soon as an incomplete head cannot become a good one (TLS hello, bare LF,
    garbage)."""
    if len(raw) > MAX_HEAD_BYTES:
        _refuse_long(raw)
    kind = httptools.HttpRequestParser if request else httptools.HttpResponseParser
    _feed(kind(_Collector()), raw)


def _refuse_long(raw: bytes) -> None:
    line_end = raw.find(b"\r\n")
    if line_end < 0 or line_end > MAX_TARGET_BYTES + 32:
        raise HttpError(414, f"request target longer than {MAX_TARGET_BYTES} bytes")
    raise HttpError(431, f"head longer than {MAX_HEAD_BYTES} bytes")


def _feed(parser: httptools.HttpRequestParser | httptools.HttpResponseParser, raw: bytes) -> None:
    try:
        parser.feed_data(raw)
    except httptools.HttpParserUpgrade:
        pass  # an Upgrade header is an offer that we do not take; the request stands
    except httptools.HttpParserError as exc:
        raise HttpError(400, f"malformed HTTP message: {exc}") from exc


def _take_headers(head: HttpHead, pairs: list[tuple[bytes, bytes]]) -> None:
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


def _tokens(value: bytes) -> set[bytes]:
    return {token.strip().lower() for token in value.split(b",")}


def _offset(value: bytes) -> int:
    """The tensor offset for alignment only; what the header really says is the v2 codec's to judge."""
    return int(value) if value.isdigit() and len(value) < 10 else 0
