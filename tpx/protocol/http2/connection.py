"""One HTTP/2 connection (RFC 9113), server or client: frames, settings, flow control, abuse limits.

Frames are parsed in place in the bytes of one read. The event loop reads the rest of a large DATA frame
straight into the message that it belongs to. Data is written immediately if flow control allows, and
otherwise waits in its stream's outbox.
"""

import asyncio
import math
from collections.abc import Callable, Mapping
from typing import cast

from tpx.protocol.http2 import frames
from tpx.protocol.http2.control import ControlFrames
from tpx.protocol.http2.frames import (
    CONTINUATION,
    DATA,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    HEADER_BYTES,
    HEADERS,
    MAX_FRAME_BYTES,
    MAX_STREAM_ID,
    PADDED,
    PRIORITIZED,
    ErrorCode,
    GlitchBudget,
    Http2Error,
    Setting,
    header_at,
)
from tpx.protocol.http2.hpack import MAX_HEADER_LIST_BYTES
from tpx.protocol.http2.role import Lost, ProtocolViolated, Role
from tpx.protocol.http2.sender import STREAM_WINDOW, FrameSender, Stream
from tpx.protocol.memory_budget import Account, uncounted
from tpx.protocol.read_buffer import UNLIMITED_BYTES, BufferedReader, Turns
from tpx.protocol.write_buffer import WriteBuffer

CONNECTION_WINDOW = 64 << 20
WRITE_BUFFER_BYTES = 512 << 10

_KIND_AT = 3
_QUICK_BYTES = 4 << 10
"""DATA frames from this size on cost little per byte unless they hold several messages."""


class Http2Connection(BufferedReader):
    """The asyncio protocol of a connection: passes DATA to its stream and all other events to `role`.

    The role owns `streams`: it adds and removes them. `turns`, set on a server, shares the event loop
    fairly among connections; reading then pauses while the peer does not read our responses.
    """

    transport: WriteBuffer
    sender: FrameSender
    control: ControlFrames

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
        self._begun = 0  # frames split across reads
        self._direct: memoryview | None = None  # buffer for the rest of a DATA frame, and its stream
        self._direct_stream: Stream | None = None
        self._direct_left = self._direct_flags = 0
        self._unacknowledged = 0  # bytes received since our last WINDOW_UPDATE of the connection
        self._held: dict[int, Stream] = {}  # streams with messages left for the next turn
        self._control_limits = max_block_bytes, glitches or GlitchBudget()
        self.closed = False

    # asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = WriteBuffer(cast("asyncio.Transport", transport))
        self.transport.transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self.sender = FrameSender(self.transport, self.later, self._account)
        self.control = ControlFrames(self._role, self.streams, self.sender, *self._control_limits)
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
            if self._pending and self.control.block is None and (fresh or len(self._pending) < len(data)):
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

    def next_buffer(self) -> memoryview | None:
        return self._direct

    def buffer_received(self, count: int) -> None:
        stream, flags, left = self._direct_stream, self._direct_flags, self._direct_left - count
        if self.closed or stream is None:
            return
        try:
            self._role.begin_read(b"")
            self.received(count)
            self._direct = None
            # the stream may have been reset while its data was on the way
            if self.streams.get(stream.id) is stream:
                if flags & END_STREAM and not left:
                    stream.peer_ended = True
                else:
                    self.take_from_window(stream, count)
                stream.buffer_received(count)
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
        return bool(self._pending) or self.control.block is not None or self._direct is not None

    @property
    def half_sent(self) -> int:
        """Number of the incomplete header block or non-DATA frame being received; 0 if there is none."""
        control = self.control
        begun = len(self._pending) >= HEADER_BYTES and self._pending[_KIND_AT] != DATA
        owed = control.block is not None or (begun and not self._awaits_turn)
        return self._begun + control.blocks if owed else 0

    def discard(self) -> None:
        """Stop reading and release all buffers: the connection is ending."""
        self.closed = True
        self._pending, self._missing, self.control.block = bytearray(), 0, None
        self._direct = self._direct_stream = None
        self._held.clear()
        self.sender.clear()

    # reading frames

    def _parse_frames(self, data: bytes, at: int) -> None:
        end, control = len(data), self.control
        while end - at >= HEADER_BYTES:
            high, low, kind, flags, stream_id = header_at(data, at)
            length = high << 16 | low
            start = at + HEADER_BYTES
            stop = start + length
            stream_id &= MAX_STREAM_ID  # the highest bit is reserved
            if control.block is not None and kind != CONTINUATION:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a header block was interrupted")
            if stop > end:
                if self._begin_direct_read(kind, stream_id, flags, data, start, stop):
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
                control.take(kind, flags, stream_id, data[start:stop])
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
        self.received(stop - start)  # with its padding (RFC 9113 section 6.1)
        # they need no window, so that a peer could send them without end: CVE-2019-9518
        if start == stop and not flags & END_STREAM:
            self.control.glitches.charge("empty DATA frames")
        if flags & PADDED:
            padding = 1 + (data[start] if start < stop else 0)
            if padding > stop - start:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "padding longer than its frame")
            start, stop = start + 1, stop - padding + 1
            stream = self.streams.get(stream_id)
            if stream is not None and not flags & END_STREAM:
                self.take_from_window(stream, padding)
                if start == stop:
                    self.control.glitches.charge("empty DATA frames")
        self._handle_data(stream_id, flags, data, start, stop)

    def _begin_direct_read(
        self, kind: int, stream_id: int, flags: int, data: bytes, start: int, stop: int
    ) -> bool:
        """Pass on the received part of a DATA frame and read the rest in place. Returns False if the
        frame must be buffered until it is complete.
        """
        self.control.check_size(kind, stop - start)
        if kind != DATA or flags & PADDED:
            self._missing = stop - len(data)
            return False
        received = len(data) - start
        if received:
            self.received(received)
            # without its flags: END_STREAM holds from the last byte, which is still to come
            self._handle_data(stream_id, 0, data, start, len(data))
        self._read_in_place(stream_id, flags, stop - start - received)
        return True

    def _read_in_place(self, stream_id: int, flags: int, left: int) -> None:
        """Read the rest of a DATA frame into its stream's buffer, or else parse it as a new frame."""
        stream = self.streams.get(stream_id)
        self._direct = stream.next_buffer(left) if stream is not None else None
        if self._direct is None:
            self._pending += frames.frame_header(DATA, flags, stream_id, left)
            return
        self._direct_stream, self._direct_left, self._direct_flags = stream, left, flags
        self.read_into_buffers(self.transport.transport, self._scratch)

    # writing

    def greet(self, settings: Mapping[Setting, int], preface: bytes = b"") -> None:
        """Send our settings after a client's preface, and enlarge the connection's receive window."""
        sizes = {Setting.INITIAL_WINDOW_SIZE: STREAM_WINDOW, Setting.MAX_FRAME_SIZE: MAX_FRAME_BYTES}
        window = frames.window_update(0, CONNECTION_WINDOW - DEFAULT_WINDOW)
        self.transport.write(preface + frames.settings_frame({**sizes, **settings}) + window)

    # ending

    def fail(self, error: Http2Error) -> None:
        """End the connection because the peer violated the protocol."""
        self._role.on_event(ProtocolViolated(error))
