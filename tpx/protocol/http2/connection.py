"""One HTTP/2 connection (RFC 9113), server or client: frames, settings, flow control, abuse limits.

Frames are parsed in place in the bytes of one read. The event loop reads the rest of a large DATA frame
straight into the message that it belongs to. Data is written immediately if flow control allows, and
otherwise waits in its stream's outbox. A peer that makes us work without requesting anything is
disconnected when its glitch budget is spent.
"""

import asyncio
import math
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol, cast

from tpx.protocol.http2 import frames
from tpx.protocol.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    HEADER_BYTES,
    HEADERS,
    MAX_FRAME_BYTES,
    MAX_STREAM_ID,
    MAX_WINDOW,
    PADDED,
    PRIORITIZED,
    ErrorCode,
    GlitchBudget,
    Http2Error,
    Setting,
    header_at,
)
from tpx.protocol.http2.hpack import MAX_HEADER_LIST_BYTES
from tpx.protocol.http2.sender import STREAM_WINDOW, FrameSender, Stream
from tpx.protocol.memory_budget import Account, uncounted
from tpx.protocol.read_buffer import UNLIMITED_BYTES, BufferedReader, Turns
from tpx.protocol.write_buffer import WriteBuffer

CONNECTION_WINDOW = 64 << 20
WRITE_BUFFER_BYTES = 512 << 10

_KIND_AT = 3
_QUICK_BYTES = 4 << 10
"""DATA frames from this size on cost little per byte unless they hold several messages."""
_CUT_STREAMS = 1000
_STREAMS_PER_GLITCH = 100
"""Number of open streams that makes a change of the initial window cost one glitch: every stream's
window is adjusted.
"""


class StreamReset(NamedTuple):
    """The peer reset a stream, or we did because of the peer's error."""

    stream_id: int
    code: int


class GoingAway(NamedTuple):
    """The peer accepts no new streams."""

    last_stream_id: int
    code: int
    reason: bytes


class SettingsChanged(NamedTuple):
    """The peer's new settings, in effect now."""

    max_streams: int


class PingReceived(NamedTuple):
    """The peer sent a PING or, with `ack`, acknowledged ours."""

    payload: bytes
    ack: bool


class ProtocolViolated(NamedTuple):
    """The peer violated the protocol: the connection must end with GOAWAY."""

    error: Http2Error


class Lost(NamedTuple):
    """The transport is closed."""

    error: Exception | None


Event = StreamReset | GoingAway | SettingsChanged | PingReceived | ProtocolViolated | Lost


class Role(Protocol):
    """Receiver of a connection's events. All methods but `opened` may end it by raising Http2Error."""

    def opened(self, transport: asyncio.BaseTransport) -> None:
        """Greet the peer: the connection is now writable."""

    def begin_read(self, data: bytes) -> int:
        """Inspect a read before its frames are parsed.

        Returns the offset of the first frame; -1: buffer the read until more data arrives. `data` is
        empty if the read went directly into a stream's buffer.
        """

    def headers(self, stream_id: int, flags: int, block: bytes) -> None:
        """Handle a complete header block."""

    def not_open(self, stream_id: int, what: str) -> None:
        """Raise Http2Error if a frame of type `what` is an error on a stream that is not open."""

    def on_event(self, event: Event) -> None:
        """Handle one of the infrequent events."""


class Http2Connection(BufferedReader):
    """The asyncio protocol of a connection: passes DATA to its stream and all other events to `role`.

    The role owns `streams`: it adds and removes them. `turns`, set on a server, shares the event loop
    fairly among connections; reading then pauses while the peer does not read our responses.
    """

    transport: WriteBuffer
    sender: FrameSender

    def __init__(
        self,
        role: Role,
        streams: Mapping[int, Stream],
        scratch: memoryview,
        *,
        turns: Turns | None = None,
        account: Account | None = None,
        max_block_bytes: int = MAX_HEADER_LIST_BYTES,
        glitches: GlitchBudget | None = None,
    ) -> None:
        super().__init__()
        self._role = role
        self.streams = streams
        self._scratch = scratch
        self._turns = turns
        self._account = account or uncounted()
        # reading
        self._pending = bytearray()
        self._missing = 0  # bytes missing from the frame at the start of `_pending`
        self._begun = 0  # frames and header blocks split across reads
        self._max_block_bytes = max_block_bytes
        self.block: bytearray | None = None  # header block whose CONTINUATION frames are due
        self._block_stream = self._block_flags = 0
        self._direct: memoryview | None = None  # buffer for the rest of a DATA frame, and its stream
        self._direct_stream: Stream | None = None
        self._direct_left = self._direct_flags = 0
        self._unacknowledged = 0  # bytes received since our last WINDOW_UPDATE of the connection
        self._held: dict[int, Stream] = {}  # streams with messages left for the next turn
        # ending
        self._cut: dict[int, None] = {}  # streams that we reset most recently
        self._cut_up_to = 0  # highest stream ID evicted from `_cut`
        self.glitches = glitches or GlitchBudget()
        self.closed = False

    # asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = WriteBuffer(cast("asyncio.Transport", transport))
        self.transport.transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self.sender = FrameSender(self.transport, self.later, self._account)
        self._role.opened(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._role.on_event(Lost(exc))

    def eof_received(self) -> None:
        self.transport.flush()  # the event loop closes the transport on return

    def data_received(self, data: bytes) -> None:
        if self.closed:
            return
        # do not parse an incomplete frame at every read: that would take quadratic time
        if self._awaits_turn or len(data) < self._missing:
            self._pending += data
            self._missing -= len(data)
            return
        self.transport.hold()  # write the responses to all frames of this read together
        try:
            fresh = not self._pending
            rest = 0 if fresh else self._size_of_cut_data(len(data))
            if not (fresh or rest):
                data, self._pending, self._missing = b"".join((self._pending, data)), bytearray(), 0
            self._limited = self._turns is not None and len(data) > UNLIMITED_BYTES
            if self._limited:
                self._begin_turn(len(data))
            else:
                self._turn_ends = math.inf
            at = self._finish_cut_data(data, rest) if rest else self._role.begin_read(data)
            if at < 0:
                self._pending += data
            elif at < len(data) and not self.closed:
                self._parse_frames(data, at)
            # number an incomplete frame once, however many reads it takes to complete it
            if self._pending and self.block is None and (fresh or len(self._pending) < len(data)):
                self._begun += 1
            if self._limited:
                self._end_read(self.transport.transport)
            else:
                self._turn_ends = 0.0
        except Http2Error as exc:
            self.fail(exc)
        finally:
            self.transport.release(expecting=bool(self.streams))

    def _take_turn(self) -> None:
        """Resume with the data left over from earlier reads, unless the peer still reads no responses."""
        if not self._awaits_turn or (self.sender.paused and not self.closed):
            return
        self._awaits_turn, self._missing = False, 0
        held, self._held = self._held, {}
        if held and self._turns is not None:
            self._begin_turn()
        for stream in held.values():
            stream.read_on()
        if not self._awaits_turn:
            self.data_received(b"")
        if not (self._awaits_turn or self.sender.paused or self.transport.is_closing()):
            self.transport.transport.resume_reading()

    def landing(self) -> memoryview | None:
        return self._direct

    def landed(self, count: int) -> None:
        stream, flags, left = self._direct_stream, self._direct_flags, self._direct_left - count
        if self.closed or stream is None:
            return
        try:
            self._role.begin_read(b"")
            self.received(count)
            self._direct = None
            if self.streams.get(stream.id) is stream:
                if flags & END_STREAM and not left:
                    stream.peer_ended = True
                else:
                    self.take_from_window(stream, count)
                stream.landed(count)
            if left:
                self._read_in_place(stream.id, flags, left)
        except Http2Error as exc:
            self.fail(exc)

    def later(self, go_on: Callable[[], None]) -> None:
        """Run `go_on` in a later iteration of the event loop."""
        if self._turns is not None:
            self._turns.wait(go_on)
        else:
            asyncio.get_running_loop().call_soon(go_on)

    def await_turn(self, stream: Stream) -> None:
        """Schedule `stream` to resume reading in the connection's next turn."""
        self._held[stream.id] = stream
        self._await_turn(self.transport.transport)

    def pause_writing(self) -> None:
        """Stop sending and, on a server, stop reading: a client's requests wait unread until it reads."""
        self.sender.pause()
        if self._turns is not None:
            self.transport.transport.pause_reading()

    def resume_writing(self) -> None:
        if self._turns is not None and not self._awaits_turn:
            self.transport.transport.resume_reading()
        self.sender.resume()
        if self._awaits_turn and self._turns is not None:
            self._turns.wait(self._take_turn)

    @property
    def in_frame(self) -> bool:
        """True while a frame or header block is incomplete."""
        return bool(self._pending) or self.block is not None or self._direct is not None

    @property
    def half_sent(self) -> int:
        """Number of the incomplete header block or non-DATA frame being received; 0 if there is none."""
        control = len(self._pending) >= HEADER_BYTES and self._pending[_KIND_AT] != DATA
        return self._begun if self.block is not None or (control and not self._awaits_turn) else 0

    def discard(self) -> None:
        """Stop reading and release all buffers: the connection is ending."""
        self.closed = True
        self._pending, self._missing, self.block = bytearray(), 0, None
        self._direct = self._direct_stream = None
        self._held.clear()
        self.sender.clear()

    # reading frames

    def _parse_frames(self, data: bytes, at: int) -> None:
        end = len(data)
        while end - at >= HEADER_BYTES:
            high, low, kind, flags, stream_id = header_at(data, at)
            length = high << 16 | low
            start = at + HEADER_BYTES
            stop = start + length
            stream_id &= MAX_STREAM_ID  # the highest bit is reserved
            if self.block is not None and kind != CONTINUATION:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a header block was interrupted")
            if stop > end:
                if self._begin_landing(kind, stream_id, flags, data, start, stop):
                    return
                break
            if kind == DATA:
                if flags & PADDED or start == stop:
                    self._handle_odd_data(stream_id, flags, data, start, stop)
                else:
                    self.received(length)
                    self._handle_data(stream_id, flags, data, start, stop)
            # nearly all header blocks: one frame without padding and priority
            elif kind == HEADERS and flags & (END_HEADERS | PADDED | PRIORITIZED) == END_HEADERS:
                self._role.headers(stream_id, flags, data[start:stop])
            else:
                self._check_size(kind, length)
                _TAKERS.get(kind, Http2Connection._ignore_frame)(self, flags, stream_id, data[start:stop])
            at = stop
            if self.closed or (self._limited and at < end and self._defer_if_needed(kind, flags, length)):
                break
        if at < end and not self.closed:
            self._pending = bytearray(memoryview(data)[at:])

    def _size_of_cut_data(self, size: int) -> int:
        """Return the bytes that the last read left of a DATA frame, if the next `size` complete it.

        Returns 0 for anything else, which must be joined with what was left.
        """
        if len(self._pending) != HEADER_BYTES:
            return 0
        high, low, kind, flags, _ = header_at(self._pending, 0)
        length: int = high << 16 | low
        return length if kind == DATA and not flags & PADDED and length <= size else 0

    def _finish_cut_data(self, data: bytes, length: int) -> int:
        """Handle the rest of a DATA frame, `length` bytes at the start of `data`; return its end."""
        _, _, _, flags, stream_id = header_at(self._pending, 0)
        self._pending, self._missing = bytearray(), 0
        self._role.begin_read(b"")
        self.received(length)
        self._handle_data(stream_id & MAX_STREAM_ID, flags, data, 0, length)
        return length

    def _defer_if_needed(self, kind: int, flags: int, length: int) -> bool:
        """Defer the rest of a read if the peer does not read or this connection's turn is over, after a
        frame of `length` bytes.
        """
        if kind == DATA and length >= _QUICK_BYTES and not (flags & END_STREAM or self._awaits_turn):
            return False  # it is only copied; a stream withholds short messages itself
        stops = self.sender.paused or self.turn_over
        if stops:
            self._await_turn(self.transport.transport)
        return stops

    def received(self, count: int) -> None:
        """Count DATA bytes read (negative: deferred); send WINDOW_UPDATE once half the window is used."""
        self._unacknowledged += count
        if self._unacknowledged > CONNECTION_WINDOW // 2:
            self.transport.write(frames.window_update(0, self._unacknowledged))
            self._unacknowledged = 0

    def _handle_data(self, stream_id: int, flags: int, data: bytes, start: int, stop: int) -> None:
        """Pass the payload of a DATA frame, without its padding, to its stream."""
        stream = self.streams.get(stream_id)
        if stream is None:
            self._role.not_open(stream_id, "DATA")
            return
        if stream.peer_ended:
            raise Http2Error(ErrorCode.STREAM_CLOSED, "DATA after END_STREAM")
        if flags & END_STREAM:
            stream.peer_ended = True
        else:
            self.take_from_window(stream, stop - start)
        stream.receive(data, start, stop)

    def take_from_window(self, stream: Stream, count: int) -> None:
        """Charge DATA to the window of an open stream; send WINDOW_UPDATE if it is less than half open."""
        stream.receive_window -= count
        if stream.receive_window < 0:
            raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, f"stream {stream.id} sent more than its window")
        # once half the window is used, not after every frame
        low = stream.receive_window < STREAM_WINDOW // 2
        if low and not stream.peer_ended and stream.withheld is None:
            self.transport.write(frames.window_update(stream.id, STREAM_WINDOW - stream.receive_window))
            stream.receive_window = STREAM_WINDOW

    def _handle_odd_data(self, stream_id: int, flags: int, data: bytes, start: int, stop: int) -> None:
        """Handle padded or empty DATA: padding counts toward flow control, and empty frames are glitches."""
        self.received(stop - start)
        if start == stop and not flags & END_STREAM:
            self.glitches.charge("empty DATA frames")
        if flags & PADDED:
            padding = 1 + (data[start] if start < stop else 0)
            if padding > stop - start:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "padding longer than its frame")
            start, stop = start + 1, stop - padding + 1
            stream = self.streams.get(stream_id)
            if stream is not None and not flags & END_STREAM:
                self.take_from_window(stream, padding)
                if start == stop:
                    self.glitches.charge("empty DATA frames")
        self._handle_data(stream_id, flags, data, start, stop)

    def _begin_landing(
        self, kind: int, stream_id: int, flags: int, data: bytes, start: int, stop: int
    ) -> bool:
        """Pass on the received part of a DATA frame and read the rest in place. Returns False if the
        frame must be buffered until it is complete.
        """
        self._check_size(kind, stop - start)
        if kind != DATA or flags & PADDED:
            self._missing = stop - len(data)
            return False
        received = len(data) - start
        if received:
            self.received(received)
            self._handle_data(stream_id, 0, data, start, len(data))
        self._read_in_place(stream_id, flags, stop - start - received)
        return True

    def _read_in_place(self, stream_id: int, flags: int, left: int) -> None:
        """Read the rest of a DATA frame into its stream's buffer, or else parse it as a new frame."""
        stream = self.streams.get(stream_id)
        self._direct = stream.landing(left) if stream is not None else None
        if self._direct is None:
            self._pending += frames.frame_header(DATA, flags, stream_id, left)
            return
        self._direct_stream, self._direct_left, self._direct_flags = stream, left, flags
        self.read_into_buffers(self.transport.transport, self._scratch)

    # frames that carry no DATA: their validation, their effects, and their cost in glitches

    def _check_size(self, kind: int, length: int) -> None:
        """Raise Http2Error for a frame that is too large: only DATA has a reason to be large."""
        if length > MAX_FRAME_BYTES:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"frame of {length} bytes")
        if kind != DATA and length > self._max_block_bytes:
            what = "header block" if kind == HEADERS else f"frame of type {kind}"
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, f"{what} of {length} bytes")

    def _handle_reset(self, flags: int, stream_id: int, payload: bytes) -> None:  # noqa: ARG002
        _check_form("RST_STREAM", stream_id, of_stream=True, fits=len(payload) == 4)
        self._role.not_open(stream_id, "RST_STREAM")
        self.glitches.charge("stream resets")
        self._role.on_event(StreamReset(stream_id, frames.unpack_u32(payload)[0]))

    def _handle_goaway(self, flags: int, stream_id: int, payload: bytes) -> None:  # noqa: ARG002
        _check_form("GOAWAY", stream_id, of_stream=False, fits=len(payload) >= 8)
        last, code = frames.unpack_u32(payload)[0] & MAX_WINDOW, frames.unpack_u32(payload, 4)[0]
        self._role.on_event(GoingAway(last, code, payload[8:]))

    def _reject_push(self, flags: int, stream_id: int, payload: bytes) -> None:  # noqa: ARG002
        raise Http2Error(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE is switched off")

    def _ignore_frame(self, flags: int, stream_id: int, payload: bytes) -> None:  # noqa: ARG002
        """Ignore a frame of unknown type."""
        self.glitches.charge("frames without effect")

    def _handle_priority(self, flags: int, stream_id: int, payload: bytes) -> None:  # noqa: ARG002
        """Ignore PRIORITY, but validate its form (RFC 9113 section 6.3)."""
        self.glitches.charge("frames without effect")
        opened = stream_id in self.streams
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
        self._begun += 1

    def _continue_block(self, flags: int, stream_id: int, payload: bytes) -> None:
        if self.block is None or stream_id != self._block_stream:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "CONTINUATION without its HEADERS")
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
        if Setting.INITIAL_WINDOW_SIZE in settings:
            self.glitches.charge("changes of the initial window", len(self.streams) // _STREAMS_PER_GLITCH)
        if settings.get(Setting.ENABLE_PUSH, 0) > 1:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "ENABLE_PUSH must be 0 or 1")
        self.sender.apply(settings, self.streams.values())
        self.transport.write(frames.frame(frames.SETTINGS, ACK, 0))
        if Setting.MAX_CONCURRENT_STREAMS in settings:
            self._role.on_event(SettingsChanged(settings[Setting.MAX_CONCURRENT_STREAMS]))
        self.sender.pump()

    def _handle_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        _check_form("PING", stream_id, of_stream=False, fits=len(payload) == 8)
        self.glitches.charge("PING frames")
        self._role.on_event(PingReceived(payload, bool(flags & ACK)))
        if not flags & ACK:
            self.transport.write(frames.frame(frames.PING, ACK, 0, payload))

    def window_update(self, flags: int, stream_id: int, payload: bytes) -> None:  # noqa: ARG002
        """Handle WINDOW_UPDATE. May raise Http2Error."""
        if len(payload) != 4:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "WINDOW_UPDATE of a wrong size")
        increment = frames.unpack_u32(payload)[0] & MAX_WINDOW
        if not stream_id:
            self.sender.widen(increment)
            return
        stream = self.streams.get(stream_id)
        if stream is None:
            self._role.not_open(stream_id, "WINDOW_UPDATE")
            return
        error = self.sender.widen_stream(stream, increment)
        if error is not None:
            self._fail_stream(stream_id, error)

    def _fail_stream(self, stream_id: int, code: ErrorCode) -> None:
        """Reset a stream because the peer violated the protocol on it."""
        # otherwise, provoked resets would discard work as fast as the client's own resets, but for free
        self.glitches.charge("stream errors")
        self.reset_stream(stream_id, code)
        self._role.on_event(StreamReset(stream_id, code))

    # writing

    def greet(self, settings: Mapping[Setting, int], preface: bytes = b"") -> None:
        """Send our settings after a client's preface, and enlarge the connection's receive window."""
        sizes = {Setting.INITIAL_WINDOW_SIZE: STREAM_WINDOW, Setting.MAX_FRAME_SIZE: MAX_FRAME_BYTES}
        window = frames.window_update(0, CONNECTION_WINDOW - DEFAULT_WINDOW)
        self.transport.write(preface + frames.settings_frame({**sizes, **settings}) + window)

    # ending

    def reset_stream(self, stream_id: int, code: ErrorCode) -> None:
        """Send RST_STREAM, and remember the stream because its frames may still be in flight."""
        self.transport.write(frames.rst_stream(stream_id, code))
        self._cut[stream_id] = None
        if len(self._cut) > _CUT_STREAMS:
            oldest = next(iter(self._cut))
            del self._cut[oldest]
            self._cut_up_to = max(self._cut_up_to, oldest)

    def was_cut(self, stream_id: int) -> bool:
        """Return True if we reset the stream, or may have (only recent resets are remembered)."""
        return stream_id in self._cut or stream_id <= self._cut_up_to

    def fail(self, error: Http2Error) -> None:
        """End the connection because the peer violated the protocol."""
        self._role.on_event(ProtocolViolated(error))


_TAKERS: dict[int, Callable[[Http2Connection, int, int, bytes], None]] = {
    HEADERS: Http2Connection._begin_block,
    CONTINUATION: Http2Connection._continue_block,
    frames.PRIORITY: Http2Connection._handle_priority,
    frames.WINDOW_UPDATE: Http2Connection.window_update,
    frames.SETTINGS: Http2Connection._handle_settings,
    frames.PING: Http2Connection._handle_ping,
    frames.RST_STREAM: Http2Connection._handle_reset,
    frames.GOAWAY: Http2Connection._handle_goaway,
    frames.PUSH_PROMISE: Http2Connection._reject_push,
}
"""Methods for all frame types except DATA and plain HEADERS."""


def _check_form(what: str, stream_id: int, *, of_stream: bool, fits: bool) -> None:
    """Raise Http2Error for a control frame of wrong size, or wrongly on a stream or on the connection."""
    if bool(stream_id) is not of_stream:
        raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"{what} on stream {stream_id}")
    if not fits:
        raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"{what} of a wrong size")
