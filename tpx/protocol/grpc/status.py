"""gRPC status codes, and their encoding in trailers."""

import re
from collections.abc import Iterable
from enum import IntEnum

from tpx.errors import Code
from tpx.protocol.http2.frames import ErrorCode
from tpx.protocol.http2.hpack import Header, encode_stateless


class Status(IntEnum):
    """Status codes of the gRPC specification."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


_BY_CODE: dict[Code, Status] = {
    code: Status.UNIMPLEMENTED if code is Code.UNSUPPORTED else Status[code.name] for code in Code
}
_BY_STATUS = {status: code for code, status in _BY_CODE.items()}


def from_code(code: Code) -> Status:
    """Return the status for a neutral code."""
    return _BY_CODE[code]


def to_code(status: int) -> Code:
    """Return the neutral code for a status; UNKNOWN for statuses that only gRPC has."""
    return _BY_STATUS.get(Status(status), Code.UNKNOWN) if status in _STATUSES else Code.UNKNOWN


_STATUSES = frozenset(Status)

_BY_HTTP = {
    "400": Status.INTERNAL,
    "401": Status.UNAUTHENTICATED,
    "403": Status.PERMISSION_DENIED,
    "404": Status.UNIMPLEMENTED,
    **dict.fromkeys(("429", "502", "503", "504"), Status.UNAVAILABLE),
}


def from_http(http_status: str) -> Status:
    """Return the status of a response without grpc-status from its HTTP status (gRPC:
    http-grpc-status-mapping.md).
    """
    return _BY_HTTP.get(http_status, Status.UNKNOWN)


_BY_RESET: dict[int, Status] = {
    ErrorCode.REFUSED_STREAM: Status.UNAVAILABLE,
    ErrorCode.CANCEL: Status.CANCELLED,
    ErrorCode.ENHANCE_YOUR_CALM: Status.RESOURCE_EXHAUSTED,
    ErrorCode.INADEQUATE_SECURITY: Status.PERMISSION_DENIED,
}


def from_reset(code: int) -> Status:
    """Return the status of a call that the server reset (gRPC over HTTP2, "Errors")."""
    return _BY_RESET.get(code, Status.INTERNAL)


MAX_MESSAGE_BYTES = 6 << 10
"""Size limit of an encoded grpc-message: with over 8 KB of trailers, clients may lose the status as well."""

_ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})")
_TO_ESCAPE = re.compile(r"[^ -$&-~]+")


def percent_encode(message: str) -> bytes:
    """Encode a grpc-message: printable ASCII except `%` unchanged, other UTF-8 bytes as %XX.

    Long messages are cut between two characters; characters that UTF-8 cannot encode become question
    marks.
    """
    encoded = _TO_ESCAPE.sub(_escape, message[:MAX_MESSAGE_BYTES])
    if len(encoded) > MAX_MESSAGE_BYTES:
        size = 0
        kept = []
        for character in message:
            piece = _TO_ESCAPE.sub(_escape, character)
            size += len(piece)
            if size > MAX_MESSAGE_BYTES:
                break
            kept.append(piece)
        encoded = "".join(kept)
    return encoded.encode("ascii")


def _escape(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode("utf-8", "replace"))


def percent_decode(message: bytes) -> str:
    """Decode a grpc-message; malformed escapes are kept, as the gRPC specification requires."""
    raw = _ESCAPE.sub(lambda match: bytes((int(match[1], 16),)), message)
    return raw.decode("utf-8", "replace")


def trailers_block(status: int, message: str = "") -> bytes:
    """Return the header block that ends a response after its messages."""
    headers = [(b"grpc-status", b"%d" % status)]
    if message:
        headers.append((b"grpc-message", percent_encode(message)))
    return encode_stateless(headers)


def trailers_only_block(status: int, message: str, headers: Iterable[Header] = ()) -> bytes:
    """Return the only header block of a response without messages."""
    head = encode_stateless([(b":status", b"200"), (b"content-type", b"application/grpc"), *headers])
    return head + trailers_block(status, message)
