"""One HTTP/2 connection (RFC 9113), of a server or a client: frames, settings, flow control, abuse limits.

Frames are parsed in place in what one read brought. The rest of a large DATA frame is read by the event loop
straight into the message it belongs to. What can be sent at once is written at once; what flow control holds
back waits in its stream. A peer that makes us work without asking for anything is disconnected when its
budget of glitches is spent.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import cast

from tpx.protocol.http2 import frames
from tpx.protocol.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
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
    Http2Error,
    Setting,
    header_at,
)
from tpx.protocol.http2.glitches import GlitchBudget
from tpx.protocol.http2.hpack import MAX_HEADER_LIST_BYTES
from tpx.protocol.http2.role import Failed, GoingAway, Lost, PingReceived, Role, SettingsChanged, StreamReset
from tpx.protocol.http2.sender import Sender
from tpx.protocol.http2.stream import STREAM_WINDOW, Stream
from tpx.protocol.memory_budget import Account, uncounted
from tpx.protocol.read_buffer import BufferedReader, Turns
from tpx.protocol.write_buffer import WriteBuffer

CONNECTION_WINDOW = 64 << 20
WRITE_BUFFER_BYTES = 512 << 10

_KIND_AT = 3
_CUT_STREAMS = 1000
_STREAMS_PER_GLITCH = 100
"""Open streams whose windows move with the initial window."""


class Http2Connection(BufferedReader):
    """The asyncio protocol of a connection. DATA goes to its stream, all else that has a meaning to `role`.

    `streams` belong to the role, which adds and removes them. With `turns`, as on a server, the connection
    shares the event loop with others, and is not read from while its peer does not read.
    """

    __slots__ = (
        "_account",
        "_begun",
        "_block_flags",
        "_block_stream",
        "_cut",
        "_cut_up_to",
        "_direct",
        "_direct_flags",
        "_direct_left",
        "_direct_stream",
        "_held",
        "_max_block_bytes",
        "_missing",
        "_pending",
        "_role",
        "_scratch",
        "_unacknowledged",
        "block",
        "closed",
        "glitches",
        "sender",
        "streams",
        "transport",
    )

    transport: WriteBuffer
    sender: Sender

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
        self._max_block_bytes = max_block_bytes
        # reading
        self._pending = bytearray()
        self._missing = 0  # to come of the frame that `_pending` begins with
        self._begun = 0  # frames and header blocks that did not come with one read
        self.block: bytearray | None = None  # a header block in pieces, and its first frame
        self._block_stream = self._block_flags = 0
        self._direct: memoryview | None = None  # the landing of a DATA frame, its stream, its unread bytes
        self._direct_stream: Stream | None = None
        self._direct_left = self._direct_flags = 0
        self._unacknowledged = 0  # received on the connection since our last WINDOW_UPDATE
        self._held: dict[int, Stream] = {}  # have messages left for the next turn
        # ending
        self._cut: dict[int, None] = {}  # streams that we have reset, the latest of them
        self._cut_up_to = 0  # of those that have been dropped from it
        self.glitches = glitches or GlitchBudget()
        self.closed = False

    # asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = WriteBuffer(cast("asyncio.Transport", transport))
        self.transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self.sender = Sender(self.transport, self.later, self._account)
        self._role.opened(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._role.on_event(Lost(exc))

    def eof_received(self) -> None:
        self.transport.flush()  # the event loop closes what the peer has closed

    def data_received(self, data: bytes) -> None:
        if self.closed:
            return
        if self._awaits_turn or len(data) < self._missing:
            self._pending += data
            self._missing -= len(data)
            return
        self.transport.hold()
        try:
            fresh = not self._pending
            if not fresh:
                self._pending += data
                data, self._pending, self._missing = bytes(self._pending), bytearray(), 0
            if self._turns is not None:
                self._begin_turn(self._turns, len(data))
            at = self._role.begin_read(data)
            if at < 0:
                self._pending += data
            elif at < len(data) and not self.closed:
                self._parse(data, at)
            if self._pending and self.block is None and (fresh or len(self._pending) < len(data)):
                self._begun += 1
            self._end_read(self.transport.transport)
        except Http2Error as exc:
            self.fail(exc)
        finally:
            self.transport.release(expecting=bool(self.streams))

    def _turn_came(self) -> None:
        """Go on with what was read, unless the peer does not read: then it waits for that, too."""
        if not self._awaits_turn or (self.sender.paused and not self.closed):
            return
        self._awaits_turn, self._missing = False, 0
        held, self._held = self._held, {}
        if held and self._turns is not None:
            self._begin_turn(self._turns)
        for stream in held.values():
            stream.read_on()
        if not self._awaits_turn:
            self.data_received(b"")
        if not (self._awaits_turn or self.sender.paused or self.transport.is_closing()):
            self.transport.resume_reading()

    def landing(self) -> memoryview | None:
        return self._direct

    def landed(self, count: int) -> None:
        try:
            if not self.closed:
                self._role.begin_read(b"")
                self._land(count)
        except Http2Error as exc:
            self.fail(exc)

    def later(self, go_on: Callable[[], None]) -> None:
        """Do the rest of some work in a later turn of the loop."""
        if self._turns is not None:
            self._turns.wait(go_on)
        else:
            asyncio.get_running_loop().call_soon(go_on)

    def await_turn(self, stream: Stream) -> None:
        """Have a stream read on in the connection's next turn."""
        self._held[stream.id] = stream
        self._await_turn(self.transport.transport)

    def pause_writing(self) -> None:
        """Send no more, and at a server read no more: requests of a client that does not read wait unread."""
        self.sender.pause()
        if self._turns is not None:
            self.transport.pause_reading()

    def resume_writing(self) -> None:
        if self._turns is not None and not self._awaits_turn:
            self.transport.resume_reading()
        self.sender.resume()
        if self._awaits_turn and self._turns is not None:
            self._turns.wait(self._turn_came)

    @property
    def in_frame(self) -> bool:
        """True if a frame or header block has come in part."""
        return bool(self._pending) or self.block is not None or self._direct is not None

    @property
    def half_sent(self) -> int:
        """The number of the header block, or of the frame that is not DATA, which has come in part; 0: none
        has."""
        control = len(self._pending) >= HEADER_BYTES and self._pending[_KIND_AT] != DATA
        return self._begun if self.block is not None or (control and not self._awaits_turn) else 0

    def discard(self) -> None:
        """Read no more, and hold no memory: the connection ends."""
        self.closed = True
        self._pending, self._missing, self.block = bytearray(), 0, None
        self._direct = self._direct_stream = None
        self._held.clear()
        self.sender.clear()

    # reading frames

    def _parse(self, data: bytes, at: int) -> None:
        end = len(data)
        while end - at >= HEADER_BYTES:
            high, low, kind, flags, stream_id = header_at(data, at)
            length = high << 16 | low
            start = at + HEADER_BYTES
            stop = start + length
            stream_id &= MAX_STREAM_ID  # the highest bit has no meaning
            if self.block is not None and kind != CONTINUATION:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a header block was interrupted")
            if stop > end:
                if self._begin_landing(kind, stream_id, flags, data, start, stop):
                    return
                break
            if kind == DATA:
                if flags & PADDED or start == stop:
                    self._odd_data(stream_id, flags, data, start, stop)
                else:
                    self.received(length)
                    self._data(stream_id, flags, data, start, stop)
            elif kind == HEADERS and flags & (END_HEADERS | PADDED | PRIORITIZED) == END_HEADERS:
                self._role.headers(stream_id, flags, data[start:stop])
            else:
                self._check_size(kind, length)
                take = _UNCOMMON.get(kind, Http2Connection._without_effect)
                take(self, flags, stream_id, data[start:stop])
            at = stop
            if self.closed or (self._limited and at < end and self._stops()):
                break
        if at < end and not self.closed:
            self._pending = bytearray(memoryview(data)[at:])

    def _stops(self) -> bool:
        """Leave the rest of a read for later if the peer does not read, or others are to be served."""
        stops = self.sender.paused or self.turn_over
        if stops:
            self._await_turn(self.transport.transport)
        return stops

    def received(self, count: int) -> None:
        """Count DATA that was read, or, negative, is to be read later; send WINDOW_UPDATE of the connection
        once a good part of its window is used."""
        self._unacknowledged += count
        if self._unacknowledged > CONNECTION_WINDOW // 2:
            self.transport.write(frames.window_update(0, self._unacknowledged))
            self._unacknowledged = 0

    def _data(self, stream_id: int, flags: int, data: bytes, start: int, stop: int) -> None:
        """Hand the payload of a DATA frame, without its padding, to its stream."""
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
        """Count DATA of a stream that goes on, and send WINDOW_UPDATE where its window is low."""
        stream.receive_window -= count
        if stream.receive_window < 0:
            raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, f"stream {stream.id} sent more than its window")
        low = stream.receive_window < STREAM_WINDOW // 2
        if low and not stream.peer_ended and stream.withheld is None:
            self.transport.write(frames.window_update(stream.id, STREAM_WINDOW - stream.receive_window))
            stream.receive_window = STREAM_WINDOW

    def _odd_data(self, stream_id: int, flags: int, data: bytes, start: int, stop: int) -> None:
        """Take DATA that is padded or empty: padding counts for flow control, empty frames are glitches."""
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
        self._data(stream_id, flags, data, start, stop)

    def _begin_landing(
        self, kind: int, stream_id: int, flags: int, data: bytes, start: int, stop: int
    ) -> bool:
        """Hand over what has come of a DATA frame, and have the rest read in place. Returns False where a
        frame is to be kept until it is complete."""
        self._check_size(kind, stop - start)
        if kind != DATA or flags & PADDED:
            self._missing = stop - len(data)
            return False
        here = len(data) - start
        if here:
            self.received(here)
            self._data(stream_id, 0, data, start, len(data))
        self._read_in_place(stream_id, flags, stop - start - here)
        return True

    def _read_in_place(self, stream_id: int, flags: int, left: int) -> None:
        """Read the rest of a DATA frame into its stream's buffer. Where there is none, parse on as if a frame
        began here."""
        stream = self.streams.get(stream_id)
        self._direct = stream.landing(left) if stream is not None else None
        if self._direct is None:
            self._pending += frames.frame_header(DATA, flags, stream_id, left)
            return
        self._direct_stream, self._direct_left, self._direct_flags = stream, left, flags
        self.read_into_buffers(self.transport.transport, self._scratch)

    def _land(self, nbytes: int) -> None:
        stream, flags = self._direct_stream, self._direct_flags
        assert stream is not None
        self.received(nbytes)
        self._direct = None
        left = self._direct_left - nbytes
        if self.streams.get(stream.id) is stream:
            if flags & END_STREAM and not left:
                stream.peer_ended = True
            else:
                self.take_from_window(stream, nbytes)
            stream.landed(nbytes)
        if left:
            self._read_in_place(stream.id, flags, left)

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
        """Unknown types are ignored."""
        self.glitches.charge("frames without effect")

    def _priority(self, flags: int, stream_id: int, payload: bytes) -> None:  # noqa: ARG002
        """Ignored, too, but its form counts (RFC 9113 section 6.3)."""
        self.glitches.charge("frames without effect")
        opened = stream_id in self.streams
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

    def _settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        size = len(payload)
        frames.check_form(
            "SETTINGS", stream_id, of_stream=False, fits=size == 0 if flags & ACK else size % 6 == 0
        )
        self.glitches.charge("SETTINGS frames")
        if flags & ACK:
            return
        # the last value of each counts, and only it costs anything
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

    def _ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        frames.check_form("PING", stream_id, of_stream=False, fits=len(payload) == 8)
        self.glitches.charge("PING frames")
        self._role.on_event(PingReceived(payload, bool(flags & ACK)))
        if not flags & ACK:
            self.transport.write(frames.frame(frames.PING, ACK, 0, payload))

    def window_update(self, flags: int, stream_id: int, payload: bytes) -> None:  # noqa: ARG002
        """Take a WINDOW_UPDATE. May raise Http2Error."""
        frames.check_form("WINDOW_UPDATE", stream_id, of_stream=stream_id > 0, fits=len(payload) == 4)
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

    # ending

    def reset_stream(self, stream_id: int, code: ErrorCode) -> None:
        """Send RST_STREAM, and remember that frames of this stream may be on their way."""
        self.transport.write(frames.rst_stream(stream_id, code))
        self._cut[stream_id] = None
        if len(self._cut) > _CUT_STREAMS:
            oldest = next(iter(self._cut))
            del self._cut[oldest]
            self._cut_up_to = max(self._cut_up_to, oldest)

    def _fail_stream(self, stream_id: int, code: ErrorCode) -> None:
        """End a stream for an error of the peer's."""
        self.glitches.charge(
            "stream errors"
        )  # or a client has its work thrown away as fast as by its own resets
        self.reset_stream(stream_id, code)
        self._role.on_event(StreamReset(stream_id, code))

    def was_cut(self, stream_id: int) -> bool:
        """Return True if we have reset the stream, or may have."""
        return stream_id in self._cut or stream_id <= self._cut_up_to

    def _check_size(self, kind: int, length: int) -> None:
        """Only DATA has a reason to be large."""
        if length > MAX_FRAME_BYTES:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"frame of {length} bytes")
        if kind != DATA and length > self._max_block_bytes:
            what = "header block" if kind == HEADERS else f"frame of type {kind}"
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, f"{what} of {length} bytes")

    def fail(self, error: Http2Error) -> None:
        """End the connection for an error of the peer's."""
        self._role.on_event(Failed(error))


_UNCOMMON: dict[int, Callable[[Http2Connection, int, int, bytes], None]] = {
    HEADERS: Http2Connection._begin_block,
    CONTINUATION: Http2Connection._continue_block,
    frames.PRIORITY: Http2Connection._priority,
    frames.WINDOW_UPDATE: Http2Connection.window_update,
    frames.SETTINGS: Http2Connection._settings,
    frames.PING: Http2Connection._ping,
    frames.RST_STREAM: Http2Connection._reset,
    frames.GOAWAY: Http2Connection._going_away,
    frames.PUSH_PROMISE: Http2Connection._push,
}
"""Everything but DATA and plain HEADERS."""
