"""gRPC status codes, and how a status travels in trailers."""

from collections.abc import Iterable
from enum import IntEnum

from tpx.errors import Code
from tpx.protocol.http2.hpack import Header, encode_stateless


class Status(IntEnum):
    """The numbers of the gRPC specification."""

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
    return _BY_CODE[code]


def to_code(status: int) -> Code:
    """The neutral code of a status; those that only gRPC has are UNKNOWN."""
    return _BY_STATUS.get(Status(status), Code.UNKNOWN) if status in _STATUSES else Code.UNKNOWN


_STATUSES = frozenset(Status)
MAX_MESSAGE_BYTES = 8 << 10

_UNESCAPED = frozenset(range(0x20, 0x7F)) - {ord("%")}


def percent_encode(message: str) -> bytes:
    """grpc-message: printable ASCII but `%` as it is, every other byte of the UTF-8 as %XX."""
    raw = message.encode("utf-8", "surrogateescape")[:MAX_MESSAGE_BYTES]
    return b"".join(bytes((b,)) if b in _UNESCAPED else b"%%%02X" % b for b in raw)


def percent_decode(message: bytes) -> str:
    """The reverse; a malformed escape stays as it is, as the gRPC specification asks."""
    parts = message.split(b"%")
    out = [parts[0]]
    for part in parts[1:]:
        try:
            out.append(bytes((int(part[:2], 16),)) + part[2:])
        except ValueError:
            out.append(b"%" + part)
    return b"".join(out).decode("utf-8", "replace")


def trailers_block(status: int, message: str = "") -> bytes:
    """The header block that ends a response after its messages."""
    headers = [(b"grpc-status", b"%d" % status)]
    if message:
        headers.append((b"grpc-message", percent_encode(message)))
    return encode_stateless(headers)


def trailers_only_block(status: int, message: str, headers: Iterable[Header] = ()) -> bytes:
    """The one header block of a response without messages."""
    head = encode_stateless([(b":status", b"200"), (b"content-type", b"application/grpc"), *headers])
    return head + trailers_block(status, message)
