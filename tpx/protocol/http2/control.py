"""HTTP/2 frames that carry no DATA: their validation, their effects, and their cost in glitches."""

from collections.abc import Callable
from typing import TYPE_CHECKING

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
    Http2Error,
    Setting,
)
from tpx.protocol.http2.glitches import GlitchBudget
from tpx.protocol.http2.role import GoingAway, PingReceived, Role, SettingsChanged, StreamReset

if TYPE_CHECKING:
    from tpx.protocol.http2.connection import Http2Connection

_STREAMS_PER_GLITCH = 100
"""Number of open streams that makes a change of the initial window cost one glitch: every stream's
window is adjusted.
"""


class ControlFrames:
    """Handler of all frames except DATA and plain HEADERS; also assembles header blocks split across
    frames.
    """

    __slots__ = ("_block_flags", "_block_stream", "_connection", "_max_block_bytes", "_role", "glitches")

    def __init__(
        self, connection: "Http2Connection", role: Role, max_block_bytes: int, glitches: GlitchBudget
    ) -> None:
        self._connection = connection
        self._role = role
        self._max_block_bytes = max_block_bytes
        self.glitches = glitches
        self._block_stream = self._block_flags = 0

    def take(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        """Handle a frame. Raises Http2Error."""
        self.check_size(kind, len(payload))
        _TAKERS.get(kind, ControlFrames._without_effect)(self, flags, stream_id, payload)

    def check_size(self, kind: int, length: int) -> None:
        """Raise Http2Error for a frame that is too large: only DATA has a reason to be large."""
        if length > MAX_FRAME_BYTES:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"frame of {length} bytes")
        if kind != DATA and length > self._max_block_bytes:
            what = "header block" if kind == HEADERS else f"frame of type {kind}"
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, f"{what} of {length} bytes")

    def _reset(self, flags: int, stream_id: int, payload: bytes) -> None:  # noqa: ARG002
        frames.check_form("RST_STREAM", stream_id, of_stream=True, fits=len(payload) == 4)
        self._role.not_open(stream_id, "RST_STREAM")
        self.glitches.charge("stream resets")
        self._role.on_event(StreamReset(stream_id, frames.unpack_u32(payload)[0]))

    def _going_away(self, flags: int, stream_id: int, payload: bytes) -> None:  # noqa: ARG002
        frames.check_form("GOAWAY", stream_id, of_stream=False, fits=len(payload) >= 8)
        last, code = frames.unpack_u32(payload)[0] & MAX_WINDOW, frames.unpack_u32(payload, 4)[0]
        self._role.on_event(GoingAway(last, code, payload[8:]))

    def _push(self, flags: int, stream_id: int, payload: bytes) -> None:  # noqa: ARG002
        raise Http2Error(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE is switched off")

    def _without_effect(self, flags: int, stream_id: int, payload: bytes) -> None:  # noqa: ARG002
        """Ignore a frame of unknown type."""
        self.glitches.charge("frames without effect")

    def _priority(self, flags: int, stream_id: int, payload: bytes) -> None:  # noqa: ARG002
        """Ignore PRIORITY, but validate its form (RFC 9113 section 6.3)."""
        self.glitches.charge("frames without effect")
        opened = stream_id in self._connection.streams
        frames.check_form("PRIORITY", stream_id, of_stream=True, fits=opened or len(payload) == 5)
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
        self._connection.begin_block(bytearray(block))
        self._block_stream, self._block_flags = stream_id, flags

    def _continue_block(self, flags: int, stream_id: int, payload: bytes) -> None:
        connection = self._connection
        if connection.block is None or stream_id != self._block_stream:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "CONTINUATION without its HEADERS")
        self.glitches.charge("CONTINUATION frames")
        connection.block += payload
        if len(connection.block) > self._max_block_bytes:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "header block too large")
        if flags & END_HEADERS:
            block, connection.block = bytes(connection.block), None
            self._role.headers(stream_id, self._block_flags, block)

    def _settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        connection, size = self._connection, len(payload)
        frames.check_form(
            "SETTINGS", stream_id, of_stream=False, fits=size == 0 if flags & ACK else size % 6 == 0
        )
        self.glitches.charge("SETTINGS frames")
        if flags & ACK:
            return
        # only the last value of each setting has an effect, and only it costs anything
        settings = dict(frames.parse_settings(payload))
        if Setting.INITIAL_WINDOW_SIZE in settings:
            self.glitches.charge(
                "changes of the initial window", len(connection.streams) // _STREAMS_PER_GLITCH
            )
        if settings.get(Setting.ENABLE_PUSH, 0) > 1:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "ENABLE_PUSH must be 0 or 1")
        connection.sender.apply(settings, connection.streams.values())
        connection.transport.write(frames.frame(frames.SETTINGS, ACK, 0))
        if Setting.MAX_CONCURRENT_STREAMS in settings:
            self._role.on_event(SettingsChanged(settings[Setting.MAX_CONCURRENT_STREAMS]))
        connection.sender.pump()

    def _ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        frames.check_form("PING", stream_id, of_stream=False, fits=len(payload) == 8)
        self.glitches.charge("PING frames")
        self._role.on_event(PingReceived(payload, bool(flags & ACK)))
        if not flags & ACK:
            self._connection.transport.write(frames.frame(frames.PING, ACK, 0, payload))

    def window_update(self, flags: int, stream_id: int, payload: bytes) -> None:  # noqa: ARG002
        """Handle WINDOW_UPDATE. May raise Http2Error."""
        frames.check_form("WINDOW_UPDATE", stream_id, of_stream=stream_id > 0, fits=len(payload) == 4)
        increment = frames.unpack_u32(payload)[0] & MAX_WINDOW
        connection = self._connection
        if not stream_id:
            connection.sender.widen(increment)
            return
        stream = connection.streams.get(stream_id)
        if stream is None:
            self._role.not_open(stream_id, "WINDOW_UPDATE")
            return
        error = connection.sender.widen_stream(stream, increment)
        if error is not None:
            self._fail_stream(stream_id, error)

    def _fail_stream(self, stream_id: int, code: ErrorCode) -> None:
        """Reset a stream because the peer violated the protocol on it."""
        # otherwise, provoked resets would discard work as fast as the client's own resets, but for free
        self.glitches.charge("stream errors")
        self._connection.reset_stream(stream_id, code)
        self._role.on_event(StreamReset(stream_id, code))


_TAKERS: dict[int, Callable[[ControlFrames, int, int, bytes], None]] = {
    HEADERS: ControlFrames._begin_block,
    CONTINUATION: ControlFrames._continue_block,
    frames.PRIORITY: ControlFrames._priority,
    frames.WINDOW_UPDATE: ControlFrames.window_update,
    frames.SETTINGS: ControlFrames._settings,
    frames.PING: ControlFrames._ping,
    frames.RST_STREAM: ControlFrames._reset,
    frames.GOAWAY: ControlFrames._going_away,
    frames.PUSH_PROMISE: ControlFrames._push,
}
"""Handlers of all frame types except DATA and plain HEADERS."""
