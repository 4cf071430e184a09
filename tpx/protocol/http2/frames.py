"""HTTP/2 frames (RFC 9113 section 6): constants, and how to pack and parse the bytes."""

import struct
import time
from enum import IntEnum

from tpx.errors import WireError

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    range(10)
)

END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
PRIORITIZED = 0x20

MAX_WINDOW = 2**31 - 1
MAX_STREAM_ID = 2**31 - 1
DEFAULT_WINDOW = 65535
DEFAULT_FRAME_BYTES = 16384
MAX_FRAME_BYTES = 1 << 20
"""Largest frame that we accept or send; above the default, so that large tensors take fewer frames."""

HEADER_BYTES = 9
# length (high 8 bits, low 16), type, flags, stream
header_at = struct.Struct(">BHBBI").unpack_from
_pack_header = struct.Struct(">BHBBI").pack
_pack_u32 = struct.Struct(">I").pack
unpack_u32 = struct.Struct(">I").unpack_from
_pack_setting = struct.Struct(">HI").pack
_unpack_setting = struct.Struct(">HI").iter_unpack


class ErrorCode(IntEnum):
    """Reason for ending a stream or a connection (section 7)."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


class Http2Error(WireError):
    """Connection error: the peer violated HTTP/2, and the connection ends with GOAWAY and this code."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error_code = code


class Setting(IntEnum):
    """Parameters of a SETTINGS frame (section 6.5.2)."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


def frame_header(kind: int, flags: int, stream_id: int, length: int) -> bytes:
    """Return a frame's header (9 bytes)."""
    return _pack_header(length >> 16, length & 0xFFFF, kind, flags, stream_id)


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """Return a complete frame."""
    return frame_header(kind, flags, stream_id, len(payload)) + payload


def settings_frame(values: dict[Setting, int]) -> bytes:
    """Return a SETTINGS frame with `values`."""
    return frame(SETTINGS, 0, 0, b"".join(_pack_setting(k, v) for k, v in values.items()))


def parse_settings(payload: bytes) -> list[tuple[int, int]]:
    """Return the (identifier, value) pairs of a SETTINGS payload."""
    return list(_unpack_setting(payload))


def window_update(stream_id: int, increment: int) -> bytes:
    """Return a WINDOW_UPDATE frame; stream 0 means the connection."""
    return frame(WINDOW_UPDATE, 0, stream_id, _pack_u32(increment))


CONNECTION_UPDATE = frame_header(WINDOW_UPDATE, 0, 0, 4)
"""Header of a WINDOW_UPDATE frame of the connection, before its increment."""
CONNECTION_UPDATE_BYTES = HEADER_BYTES + 4


def rst_stream(stream_id: int, code: ErrorCode) -> bytes:
    """Return an RST_STREAM frame."""
    return frame(RST_STREAM, 0, stream_id, _pack_u32(code))


def goaway(last_stream_id: int, code: ErrorCode, reason: bytes = b"") -> bytes:
    """Return a GOAWAY frame; streams above `last_stream_id` were not and will not be processed."""
    return frame(GOAWAY, 0, 0, _pack_u32(last_stream_id) + _pack_u32(code) + reason)


def headers_frames(stream_id: int, block: bytes, *, end_stream: bool, max_frame_bytes: int) -> bytes:
    """Return a header block as HEADERS and, if it exceeds one frame, CONTINUATION frames."""
    flags = END_STREAM if end_stream else 0
    if len(block) <= max_frame_bytes:
        return frame(HEADERS, flags | END_HEADERS, stream_id, block)
    out = [frame(HEADERS, flags, stream_id, block[:max_frame_bytes])]
    for at in range(max_frame_bytes, len(block), max_frame_bytes):
        last = at + max_frame_bytes >= len(block)
        out.append(
            frame(CONTINUATION, END_HEADERS if last else 0, stream_id, block[at : at + max_frame_bytes])
        )
    return b"".join(out)


GLITCH_BURST = 2000
GLITCHES_PER_S = 100


class GlitchBudget:
    """Token bucket of `burst` "glitches" (HAProxy's term), refilled at `per_s` per second: work that a peer
    causes without requesting anything.
    """

    def __init__(self, burst: int = GLITCH_BURST, per_s: int = GLITCHES_PER_S) -> None:
        self._burst = self.left = burst
        self._per_s = per_s
        self._refilled_ns = time.monotonic_ns()

    def charge(self, what: str, count: int = 1) -> None:
        """Charge `count` glitches for `what` the peer sent. Raises Http2Error when the budget is spent."""
        self.left -= count
        if self.left >= 0:
            return
        now_ns = time.monotonic_ns()
        earned = (now_ns - self._refilled_ns) * self._per_s // 10**9
        self.left = min(self._burst, self.left + earned)
        if self.left < 0:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, f"too many {what}")
        self._refilled_ns = now_ns
