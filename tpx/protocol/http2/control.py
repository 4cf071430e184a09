"""HTTP/2 frames that carry no DATA: their validation, their effects, and their cost in glitches."""

from collections.abc import Callable, Mapping

from tpx.protocol.http2 import frames
from tpx.protocol.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    HEADERS,
    MAX_FRAME_BYTES,
    MAX_WINDOW,
    PADDED,
    PRIORITIZED,
    ErrorCode,
    GlitchBudget,
    Http2Error,
    Setting,
)
from tpx.protocol.http2.role import GoingAway, PingReceived, Role, SettingsChanged, StreamReset
from tpx.protocol.http2.sender import FrameSender, Stream

_CUT_STREAMS = 1000
_STREAMS_PER_GLITCH = 100
"""Number of open streams that makes a change of the initial window cost one glitch: every stream's
window is adjusted.
"""


class ControlFrames:
    """Handles all frames of a connection except DATA and plain HEADERS, and resets its streams.

    A peer that makes us work without requesting anything is disconnected when its glitch budget is spent.
    """

    def __init__(
        self,
        role: Role,
        streams: Mapping[int, Stream],
        sender: FrameSender,
        max_block_bytes: int,
        glitches: GlitchBudget,
    ) -> None:
        self._role = role
        self._streams = streams
        self._sender = sender
        self._max_block_bytes = max_block_bytes
        self._usual_bytes = min(MAX_FRAME_BYTES, max_block_bytes)
        self.glitches = glitches
        self.block: bytearray | None = None
        """Header block whose CONTINUATION frames are due."""
        self._block_stream = self._block_flags = 0
        self.blocks = 0
        """Number of header blocks that were split into several frames."""
        self._cut: dict[int, None] = {}  # streams that we reset most recently
        self._cut_up_to = 0  # highest stream ID evicted from `_cut`

    def take(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        """Handle a frame. Raises Http2Error."""
        if len(payload) > self._usual_bytes:
            self.check_size(kind, len(payload))
        _TAKERS.get(kind, ControlFrames._ignore_frame)(self, flags, stream_id, payload)

    def check_size(self, kind: int, length: int) -> None:
        """Raise Http2Error for a frame that is too large: only DATA has a reason to be large."""
        if length > MAX_FRAME_BYTES:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"frame of {length} bytes")
        if kind != DATA and length > self._max_block_bytes:
            what = "header block" if kind == HEADERS else f"frame of type {kind}"
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, f"{what} of {length} bytes")

    def _handle_reset(self, flags: int, stream_id: int, payload: bytes) -> None:  # noqa: ARG002
        _check_form("RST_STREAM", stream_id, of_stream=True, fits=len(payload) == 4)
        self._role.not_open(stream_id, "RST_STREAM")
        # a request that is reset at once costs its client nothing: "rapid reset", CVE-2023-44487
        self.glitches.charge("stream resets")
        self._role.on_event(StreamReset(stream_id, frames.unpack_u32(payload)[0]))

    def _handle_goaway(self, flags: int, stream_id: int, payload: bytes) -> None:  # noqa: ARG002
        _check_form("GOAWAY", stream_id, of_stream=False, fits=len(payload) >= 8)
        last, code = frames.unpack_u32(payload)[0] & MAX_WINDOW, frames.unpack_u32(payload, 4)[0]
        self._role.on_event(GoingAway(last, code, payload[8:]))

    def _reject_push(self, flags: int, stream_id: int, payload: bytes) -> None:  # noqa: ARG002
        # a client never may, and servers got our ENABLE_PUSH=0 (RFC 9113 section 8.4)
        raise Http2Error(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE is switched off")

    def _ignore_frame(self, flags: int, stream_id: int, payload: bytes) -> None:  # noqa: ARG002
        """Ignore a frame of unknown type (RFC 9113 section 5.5)."""
        self.glitches.charge("frames without effect")

    def _handle_priority(self, flags: int, stream_id: int, payload: bytes) -> None:  # noqa: ARG002
        """Ignore PRIORITY, but validate its form (RFC 9113 section 6.3)."""
        self.glitches.charge("frames without effect")
        # a wrong size resets the stream; one that is not open cannot be reset, so the connection ends
        opened = stream_id in self._streams
        _check_form("PRIORITY", stream_id, of_stream=True, fits=opened or len(payload) == 5)
        if len(payload) != 5:
            self._fail_stream(stream_id, ErrorCode.FRAME_SIZE_ERROR)

    def _begin_block(self, flags: int, stream_id: int, payload: bytes) -> None:
        start, stop = 0, len(payload)
        if flags & PADDED:
            start, stop = 1, stop - (payload[0] if payload else 0)
        if flags & PRIORITIZED:
            start += 5
        if start > stop:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "padding longer than its frame")
        block = payload[start:stop]
        if flags & END_HEADERS:
            self._role.headers(stream_id, flags, block)
            return
        self.block, self._block_stream, self._block_flags = bytearray(block), stream_id, flags
        self.blocks += 1

    def _continue_block(self, flags: int, stream_id: int, payload: bytes) -> None:
        if self.block is None or stream_id != self._block_stream:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "CONTINUATION without its HEADERS")
        # empty ones could follow each other without end: "CONTINUATION flood", VU#421644
        self.glitches.charge("CONTINUATION frames")
        self.block += payload
        if len(self.block) > self._max_block_bytes:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "header block too large")
        if flags & END_HEADERS:
            block, self.block = bytes(self.block), None
            self._role.headers(stream_id, self._block_flags, block)

    def _handle_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        size = len(payload)
        _check_form("SETTINGS", stream_id, of_stream=False, fits=size == 0 if flags & ACK else size % 6 == 0)
        self.glitches.charge("SETTINGS frames")
        if flags & ACK:
            return
        # only the last value of each setting has an effect, and only it costs anything
        settings = dict(frames.parse_settings(payload))
        # the windows of all open streams change with it (RFC 9113 section 6.9.2)
        if Setting.INITIAL_WINDOW_SIZE in settings:
            self.glitches.charge("changes of the initial window", len(self._streams) // _STREAMS_PER_GLITCH)
        if settings.get(Setting.ENABLE_PUSH, 0) > 1:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "ENABLE_PUSH must be 0 or 1")
        self._sender.apply(settings, self._streams.values())
        self._sender.transport.write(frames.frame(frames.SETTINGS, ACK, 0))
        if Setting.MAX_CONCURRENT_STREAMS in settings:
            self._role.on_event(SettingsChanged(settings[Setting.MAX_CONCURRENT_STREAMS]))
        self._sender.pump()

    def _handle_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        _check_form("PING", stream_id, of_stream=False, fits=len(payload) == 8)
        # each asks for an answer: unread answers would pile up, CVE-2019-9512
        self.glitches.charge("PING frames")
        self._role.on_event(PingReceived(payload, bool(flags & ACK)))
        if not flags & ACK:
            self._sender.transport.write(frames.frame(frames.PING, ACK, 0, payload))

    def window_update(self, flags: int, stream_id: int, payload: bytes) -> None:  # noqa: ARG002
        """Handle WINDOW_UPDATE. May raise Http2Error."""
        if len(payload) != 4:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "WINDOW_UPDATE of a wrong size")
        increment = frames.unpack_u32(payload)[0] & MAX_WINDOW
        if not stream_id:
            self._sender.widen(increment)
            return
        stream = self._streams.get(stream_id)
        if stream is None:
            self._role.not_open(stream_id, "WINDOW_UPDATE")
            return
        error = self._sender.widen_stream(stream, increment)
        if error is not None:
            self._fail_stream(stream_id, error)

    def _fail_stream(self, stream_id: int, code: ErrorCode) -> None:
        """Reset a stream because the peer violated the protocol on it."""
        # otherwise, provoked resets would discard work as fast as the client's own resets, but for free
        self.glitches.charge("stream errors")
        self.reset_stream(stream_id, code)
        self._role.on_event(StreamReset(stream_id, code))

    # resets

    def reset_stream(self, stream_id: int, code: ErrorCode) -> None:
        """Send RST_STREAM, and remember the stream because its frames may still be in flight."""
        self._sender.transport.write(frames.rst_stream(stream_id, code))
        # the peer may have sent more before it knew; that must be discarded (RFC 9113 section 5.1, "closed")
        self._cut[stream_id] = None
        if len(self._cut) > _CUT_STREAMS:
            oldest = next(iter(self._cut))
            del self._cut[oldest]
            self._cut_up_to = max(self._cut_up_to, oldest)

    def was_cut(self, stream_id: int) -> bool:
        """Return True if we reset the stream, or may have (only recent resets are remembered)."""
        return stream_id in self._cut or stream_id <= self._cut_up_to


_TAKERS: dict[int, Callable[[ControlFrames, int, int, bytes], None]] = {
    HEADERS: ControlFrames._begin_block,
    CONTINUATION: ControlFrames._continue_block,
    frames.PRIORITY: ControlFrames._handle_priority,
    frames.WINDOW_UPDATE: ControlFrames.window_update,
    frames.SETTINGS: ControlFrames._handle_settings,
    frames.PING: ControlFrames._handle_ping,
    frames.RST_STREAM: ControlFrames._handle_reset,
    frames.GOAWAY: ControlFrames._handle_goaway,
    frames.PUSH_PROMISE: ControlFrames._reject_push,
}
"""Methods for all frame types except DATA and plain HEADERS."""


def _check_form(what: str, stream_id: int, *, of_stream: bool, fits: bool) -> None:
    """Raise Http2Error for a control frame of wrong size, or wrongly on a stream or on the connection."""
    if bool(stream_id) is not of_stream:
        raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"{what} on stream {stream_id}")
    if not fits:
        raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"{what} of a wrong size")
