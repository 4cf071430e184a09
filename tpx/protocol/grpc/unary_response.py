"""The frames of a small response to a unary call: constant except for the stream ID and the message."""

from collections.abc import Sequence
from struct import Struct

from tpx.protocol.grpc.framing import PREFIX_BYTES
from tpx.protocol.grpc.status import Status, trailers_block
from tpx.protocol.http2.frames import DATA, END_HEADERS, END_STREAM, HEADERS
from tpx.protocol.http2.hpack import encode_stateless
from tpx.protocol.tensors import Buffer

RESPONSE_HEAD = encode_stateless([(b":status", b"200"), (b"content-type", b"application/grpc")])
JOIN_BELOW_BYTES = 16 << 10
"""DATA up to this size is sent in one write, as one frame, which every client accepts."""

OK_TRAILERS = trailers_block(Status.OK)
# HEADERS frame, its block, DATA frame header, message prefix
_pack_start = Struct(f">BHBBI{len(RESPONSE_HEAD)}sBHBBIBI").pack
_pack_trailers = Struct(f">BHBBI{len(OK_TRAILERS)}s").pack


def pack_response(stream: int, parts: Sequence[Buffer], size: int) -> bytes:
    """Return the frames of a response whose message of `size` bytes is in parts."""
    total = size + PREFIX_BYTES
    start = _pack_start(
        0, len(RESPONSE_HEAD), HEADERS, END_HEADERS, stream, RESPONSE_HEAD,
        total >> 16, total & 0xFFFF, DATA, 0, stream, 0, size,
    )  # fmt: skip
    end = _pack_trailers(0, len(OK_TRAILERS), HEADERS, END_HEADERS | END_STREAM, stream, OK_TRAILERS)
    return b"".join((start, *parts, end))
