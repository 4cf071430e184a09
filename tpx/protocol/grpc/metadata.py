"""Contents of a call's header block: path, deadline, compression, custom metadata."""

import base64
import binascii
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from tpx.protocol.grpc.status import Status, percent_decode
from tpx.protocol.http2.hpack import Header, encode_stateless

if TYPE_CHECKING:
    from tpx.protocol.grpc.server_call import Method

_CONTENT_TYPE = re.compile(rb"application/grpc(?:[+;]|$)")
_TIMEOUT = re.compile(rb"([0-9]{1,8})([HMSmun])")
_UNIT_NS = {b"H": 3600 * 10**9, b"M": 60 * 10**9, b"S": 10**9, b"m": 10**6, b"u": 10**3, b"n": 1}
_NAME = re.compile(rb"[0-9a-z_.!#$%&'*+^`|~-]+")
_PSEUDO = frozenset((b":method", b":scheme", b":path", b":authority"))
_FORBIDDEN = (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade")
_RESERVED = (b"te", b"content-type")


class CallHead(msgspec.Struct):
    """Parsed headers of a request, cached with their block."""

    path: bytes = b""
    timeout_ns: int = 0
    encoding: str = ""
    """Compression of the request's messages: "", "gzip" or "deflate"."""
    accepts: tuple[str, ...] = ()
    metadata: dict[str, str | bytes] = msgspec.field(default_factory=dict)
    fault: tuple[Status, str] | None = None
    """gRPC status and message if the call is invalid."""
    http_status: int = 200
    """HTTP status other than 200 if the request is not gRPC."""
    method: "Method | None" = None
    """Method that serves calls with this head, once looked up."""
    block: bytes = b""
    """Header block that it was decoded from."""


def interpret_request(headers: list[Header]) -> CallHead | None:
    """Parse a request's headers. Returns None if they violate HTTP/2 (RFC 9113 sections 8.2 and 8.3)."""
    fields: dict[bytes, bytes] = {}
    regular = False
    for name, value in headers:
        pseudo = name in _PSEUDO
        if pseudo:
            if regular or name in fields:
                return None
        elif not _NAME.fullmatch(name) or name in _FORBIDDEN:
            return None
        if b"\0" in value or b"\r" in value or b"\n" in value:
            return None
        regular = regular or not pseudo
        fields[name] = fields[name] + b"," + value if name in fields else value
    if (
        not (fields.get(b":method") and fields.get(b":scheme") and fields.get(b":path"))
        or fields.get(b"te", b"trailers") != b"trailers"
    ):
        return None
    return _parse_call_head(fields)


def _parse_call_head(fields: dict[bytes, bytes]) -> CallHead:
    head = CallHead(path=fields[b":path"])
    if fields[b":method"] != b"POST":
        head.http_status = 405
    elif not _CONTENT_TYPE.match(fields.get(b"content-type", b"")):
        head.http_status = 415
    timeout = fields.get(b"grpc-timeout")
    if timeout is not None:
        match = _TIMEOUT.fullmatch(timeout)
        if match is None:
            head.fault = (Status.INTERNAL, f"malformed grpc-timeout '{timeout.decode('latin-1')}'")
        else:
            head.timeout_ns = max(1, int(match[1]) * _UNIT_NS[match[2]])
    encoding = fields.get(b"grpc-encoding", b"identity").decode("latin-1")
    if encoding not in ("identity", "gzip", "deflate"):
        head.fault = (
            Status.UNIMPLEMENTED,
            f"grpc-encoding '{encoding}' is not supported (known: gzip, deflate)",
        )
    elif encoding != "identity":
        head.encoding = encoding
    accepted = fields.get(b"grpc-accept-encoding", b"").decode("latin-1").split(",")
    head.accepts = tuple(e.strip() for e in accepted if e.strip() in ("gzip", "deflate"))
    _add_custom_metadata(head, fields)
    return head


def _add_custom_metadata(head: CallHead, fields: dict[bytes, bytes]) -> None:
    for name, value in fields.items():
        if name[:1] == b":" or name.startswith(b"grpc-") or name in _RESERVED:
            continue
        key = name.decode("ascii")
        if not key.endswith("-bin"):
            head.metadata[key] = value.decode("latin-1")
            continue
        try:
            # with or without padding, as the gRPC specification requires
            parts = [part.strip() + b"=" * (-len(part.strip()) % 4) for part in value.split(b",")]
            head.metadata[key] = b",".join([base64.b64decode(part, validate=True) for part in parts])
        except binascii.Error:
            head.fault = (Status.INTERNAL, f"metadata '{key}' is not base64")


class ResponseHead:
    """Parsed headers or trailers of a response."""

    def __init__(self, headers: list[Header]) -> None:
        fields = dict(headers)
        self.http_status = fields.get(b":status", b"").decode("latin-1")
        raw = fields.get(b"grpc-status")
        self.status = None if raw is None else int(raw) if raw.isdigit() else Status.UNKNOWN
        self.message = percent_decode(fields.get(b"grpc-message", b""))
        self.encoding = fields.get(b"grpc-encoding", b"").decode("latin-1").replace("identity", "")
        self.metadata = {k.decode("latin-1"): v for k, v in fields.items() if k[:1] != b":"}


def request_block(
    path: str,
    authority: str,
    metadata: Mapping[str, str | bytes],
    *,
    tls: bool,
    encoding: str = "",
    timeout: str = "",
) -> bytes:
    """Encode the header block of a call; it is constant for given arguments."""
    headers: list[Header] = [
        (b":method", b"POST"),
        (b":scheme", b"https" if tls else b"http"),
        (b":path", path.encode()),
        (b":authority", authority.encode()),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        (b"user-agent", b"tpx"),
        (b"grpc-accept-encoding", b"gzip,deflate,identity"),
    ]
    if encoding:
        headers.append((b"grpc-encoding", encoding.encode()))
    if timeout:
        headers.append((b"grpc-timeout", timeout.encode()))
    for key, value in metadata.items():
        raw = value if isinstance(value, bytes) else value.encode()
        headers.append(
            (key.lower().encode(), base64.b64encode(raw).rstrip(b"=") if key.endswith("-bin") else raw)
        )
    return encode_stateless(headers)
