"""One HTTP/2 connection (RFC 9113), server or client: frames, settings, flow control, abuse limits.

Frames are parsed in place in the bytes of one read. The event loop reads the rest of a large DATA frame
straight into the message that it belongs to; a server does so for several frames at once. Data is written
immediately if flow control allows, and otherwise waits in its stream's outbox.
"""

import asyncio
import math
import os
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
from tpx.protocol.http2.sender import STREAM_WINDOW, Assembly, FrameSender, Stream
from tpx.protocol.memory_budget import Account, uncounted
from tpx.protocol.read_buffer import LARGE_BYTES, UNLIMITED_BYTES, BufferedReader, Turns
from tpx.protocol.write_buffer import WriteBuffer

CONNECTION_WINDOW = 64 << 20
WRITE_BUFFER_BYTES = 512 << 10

_KIND_AT = 3
_SCATTERED_BYTES = 1 << 20
"""Maximum that one read may bring into a message across frames."""
_UNLIKE_READS = 1024
"""Reads after one whose frames were not alike, as those of interleaved messages, in which they are copied."""
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
        # the DATA frame whose payload is only partly read: bytes missing, and its size, stream and flags
        self._left = self._left_bytes = self._left_stream = self._left_flags = 0
        self._landing: Stream | None = None  # stream whose buffer is being read into
        self._scattering = -1  # descriptor for reads across frames, if they are possible
        self._alike = 0  # frames that the last of them brought
        self._unlike = 0  # reads for which frames are not expected to be alike
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
            if not fresh:
                data, self._pending, self._missing = b"".join((self._pending, data)), bytearray(), 0
            self._limited = self._turns is not None and len(data) > UNLIMITED_BYTES
            if self._limited:
                self._begin_turn(len(data))
            else:
                self._turn_ends = math.inf
            at = self._role.begin_read(b"" if self._left else data)
            at = self._parse_frames(data, at) if 0 <= at < len(data) else max(at, 0)
            if at < len(data) and not self.closed:
                self._pending = bytearray(memoryview(data)[at:])
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

    @property
    def continues(self) -> bool:
        return self._left > 0

    def next_buffer(self) -> memoryview | None:
        self._landing = stream = self.streams.get(self._left_stream) if self._left else None
        if stream is None or stream.assembly is None or stream.withheld is not None or self._pending:
            return None
        if self._scattering >= 0:
            self._scatter(stream, stream.assembly)
        return None if self._pending else stream.assembly.next_buffer(self._left)

    def _scatter(self, stream: Stream, assembly: Assembly) -> None:
        """Read the payloads of several DATA frames into their message at once, as long as they come as
        expected: of this stream, all of the same size. The last bytes of a message are left to other reads.

        Called when the event loop is about to read: it must not write, pause, or end anything.
        """
        left, size = self._left, self._left_bytes
        # WINDOW_UPDATEs are left to other reads as well
        room = min(stream.receive_window - STREAM_WINDOW // 2, CONNECTION_WINDOW // 2 - self._unacknowledged)
        whole = assembly.next_buffer(min(assembly.missing, room, _SCATTERED_BYTES))
        count = min((len(whole) - left - 1) // size, 2 * self._alike + 2) if whole is not None else 0
        if whole is None or count < 1 or size < _QUICK_BYTES or self._left_flags:
            return
        if self._unlike:
            self._unlike -= 1
            return
        heads, at = self._scratch[: count * HEADER_BYTES], left
        parts = [whole[:left]]
        for head in range(0, len(heads), HEADER_BYTES):
            parts += (heads[head : head + HEADER_BYTES], whole[at : at + size])
            at += size
        del parts[-1]  # to end within a frame, so that the next read begins like this one
        try:
            got = os.readv(self._scattering, parts)
        except OSError:
            return  # nothing is there, or the event loop's own read fails like this one
        begun, part = divmod(max(got - left, 0), HEADER_BYTES + size)
        seen = alike = begun + (part >= HEADER_BYTES)
        expected = frames.frame_header(DATA, 0, stream.id, size)
        if heads[: seen * HEADER_BYTES] != expected * seen:
            alike = next(at for at, head in enumerate(parts[1::2]) if head != expected)
        if alike < seen:
            filled, self._left, self._unlike = left + alike * size, 0, _UNLIKE_READS
            self._pending += b"".join(parts[2 * alike + 1 :])[: got - filled - alike * HEADER_BYTES]
        else:
            filled = min(got, left) + begun * size + max(part - HEADER_BYTES, 0)
            self._left = left + seen * size - filled
            self._pending += heads[begun * HEADER_BYTES :][: part if seen == begun else 0]
        self._alike = alike
        self._role.begin_read(b"")
        self.received(filled)
        stream.receive_window -= filled
        stream.buffer_received(filled)
        if self._pending:
            self.later(lambda: self.data_received(b""))

    def buffer_received(self, count: int) -> None:
        stream = self._landing
        if self.closed or stream is None:
            return
        try:
            self._role.begin_read(b"")
            self.received(count)
            self._left -= count
            # the stream may have been reset while its data was on the way
            if self.streams.get(stream.id) is stream:
                if self._left_flags & END_STREAM and not self._left:
                    stream.peer_ended = True
                else:
                    self.take_from_window(stream, count)
                stream.buffer_received(count)
        except Http2Error as exc:
            self.fail(exc)

    def scratch_received(self, data: memoryview) -> None:
        waits = self.closed or self._pending or self._awaits_turn or self.control.block is not None
        at = 0 if waits else self._absorb(data)
        if at < len(data):
            self.data_received(bytes(data[at:]))

    def _absorb(self, data: memoryview) -> int:
        """Copy DATA that continues messages out of a read; return the end of what was copied."""
        streams, end = self.streams, len(data)
        at = total = 0
        try:
            while end - at > HEADER_BYTES or (self._left and at < end):
                if not self._left:
                    high, low, kind, flags, stream_id = header_at(data, at)
                    length = high << 16 | low
                    if not length or not self._begin_data(kind, flags, stream_id & MAX_STREAM_ID, length, 0):
                        break
                    at += HEADER_BYTES
                stop = min(at + self._left, end)
                stream = streams.get(self._left_stream)
                ends = self._left_flags and self._left == stop - at
                if stream is None or stream.peer_ended or ends or stream.withheld is not None:
                    break
                if stream.assembly is None or not stream.assembly.absorb(data, at, stop):
                    break
                self._left -= stop - at
                total += stop - at
                self.take_from_window(stream, stop - at)
                at = stop
            if total:
                self._role.begin_read(b"")
                self.received(total)
        except Http2Error as exc:
            self.fail(exc)
        return at

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
        return bool(self._pending or self._left) or self.control.block is not None

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
        self._left, self._landing = 0, None
        self._held.clear()
        self.sender.clear()

    # reading frames

    def _parse_frames(self, data: bytes, at: int) -> int:
        """Handle the frames in a read from `at` on; return the end of what was handled."""
        end, control = len(data), self.control
        if self._left:
            at = self._continue_data(data, at)
        while end - at >= HEADER_BYTES and not self.closed:
            high, low, kind, flags, stream_id = header_at(data, at)
            length = high << 16 | low
            start = at + HEADER_BYTES
            stop = start + length
            stream_id &= MAX_STREAM_ID  # the highest bit is reserved
            if control.block is not None and kind != CONTINUATION:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a header block was interrupted")
            if stop > end:
                if self._begin_data(kind, flags, stream_id, length, stop - end):
                    at = self._continue_data(data, start)
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
            if self._limited and at < end and self._defer_if_needed(kind, flags, length):
                break
        return at

    def _begin_data(self, kind: int, flags: int, stream_id: int, length: int, missing: int) -> bool:
        """Begin to pass on DATA piece by piece. Return False for a frame that must be complete, and wait for
        the `missing` bytes.
        """
        self.control.check_size(kind, length)
        if kind != DATA or flags & PADDED:
            self._missing = missing
            return False
        self._left = self._left_bytes = length
        self._left_stream, self._left_flags = stream_id, flags
        return True

    def _continue_data(self, data: bytes, start: int) -> int:
        """Pass on what a read brings, from `start` on, of an incomplete DATA frame; return its end."""
        stop = min(start + self._left, len(data))
        if start < stop:
            self._left -= stop - start
            self.received(stop - start)
            # END_STREAM holds from the last byte
            self._handle_data(self._left_stream, 0 if self._left else self._left_flags, data, start, stop)
        if self._left and not self._reads_into_buffers:
            stream = self.streams.get(self._left_stream)
            assembly = stream.assembly if stream is not None else None
            if assembly is not None and assembly.missing >= LARGE_BYTES:
                self._read_into_buffers()
        return stop

    def _read_into_buffers(self) -> None:
        """From now on, read large messages in place."""
        transport = self.transport.transport
        plain = transport.get_extra_info("ssl_object") is None and hasattr(os, "readv")
        sock = transport.get_extra_info("socket") if plain and self._turns is not None else None
        self._scattering = -1 if sock is None else sock.fileno()
        self.read_into_buffers(transport, self._scratch)

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
