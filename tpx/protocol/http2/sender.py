"""HTTP/2 streams, and the sending half of their connection: windows, and the streams waiting for them."""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tpx.protocol.http2.frames import (
    DATA,
    DEFAULT_FRAME_BYTES,
    DEFAULT_WINDOW,
    END_STREAM,
    MAX_FRAME_BYTES,
    MAX_WINDOW,
    ErrorCode,
    Http2Error,
    Setting,
    frame_header,
)
from tpx.protocol.http2.hpack import DEFAULT_TABLE_BYTES, EMPTY_TABLE
from tpx.protocol.memory_budget import Account
from tpx.protocol.tensors import Buffer
from tpx.protocol.write_buffer import WriteBuffer

_BYTES_AT_ONCE = 512 << 10
"""Bytes written before checking again whether the transport is full."""
_FRAMES_AT_ONCE = 512
"""Frames written per iteration of the event loop: a client can force frames of one byte each."""
_VIEW_FROM_BYTES = 4 << 10
"""Size from which parts are queued as views; smaller ones are copied."""
_TAIL_BYTES = 64 << 10


STREAM_WINDOW = 8 << 20
"""Bytes that a peer may send on a stream before we send WINDOW_UPDATE."""


class Assembly(Protocol):
    """Assembles the messages of one stream."""

    @property
    def missing(self) -> int:
        """Bytes to come of the message that is being assembled."""

    def absorb(self, data: Buffer, start: int, stop: int) -> bool:
        """Copy a payload of DATA from the middle of a message. Return False, copying nothing, if it is
        anything else, which `Stream.receive` must handle.
        """

    def next_buffer(self, remaining: int) -> memoryview | None:
        """Return a buffer to read the next `remaining` bytes of DATA into; None: pass them to
        `Stream.receive`.
        """


@dataclass(slots=True, eq=False)
class Stream:
    """State of a stream that connection and sender share; gRPC calls derive from it and read its bytes."""

    id: int
    send_window: int
    receive_window: int = field(init=False, default=STREAM_WINDOW)
    peer_ended: bool = field(init=False, default=False)
    we_ended: bool = field(init=False, default=False)
    outbox: deque[memoryview | bytearray] | None = field(init=False, default=None)
    queued: int = field(init=False)
    """Bytes in the outbox; set with it."""
    notify_below: int = field(init=False)
    """Outbox size in bytes at which the sender reports room (-1: never); set with the outbox."""
    withheld: bytearray | None = field(init=False, default=None)
    """DATA deferred to a later read; no WINDOW_UPDATE is sent for it until then."""
    ending: bool = field(init=False, default=False)
    """True if the outbox's last byte carries END_STREAM."""
    shut_since: int = field(init=False, default=0)
    """Tick at which the peer's window was first seen shut with data queued; 0: it is open."""
    trailers: bytes | None = field(init=False, default=None)
    """Complete frames that follow the outbox and end the stream."""
    assembly: "Assembly | None" = field(init=False, default=None)
    """Takes DATA of large messages instead of `receive` while nothing is withheld; set by calls."""

    # overridden by calls; called by the connection

    def receive(self, data: bytes, start: int, stop: int) -> None:
        """Handle a payload of DATA; `peer_ended` is already set if it is the last. May raise Http2Error."""

    def buffer_received(self, count: int) -> None:
        """Handle `count` bytes of DATA read into the buffer that `assembly.next_buffer` returned."""

    def sent(self) -> None:
        """Handle the end of our half of the stream: everything was sent."""

    def read_on(self) -> None:
        """Process withheld data as far as the limits now allow."""

    def eased(self) -> None:
        """Handle the peer having consumed most of the data sent on this stream."""


class FrameSender:
    """Sends what the peer's windows allow and queues the rest; writes nothing while the transport is
    full.

    A caller with little to send writes it directly if `reserve` returns True.
    """

    def __init__(
        self, transport: WriteBuffer, later: Callable[[Callable[[], None]], None], account: Account
    ) -> None:
        """`later` runs a callback in a later loop iteration; `account` is charged for outboxes."""
        self.transport = transport
        self._later = later
        self._account = account
        self._put_off = False
        self.window = DEFAULT_WINDOW
        self.initial_window = DEFAULT_WINDOW
        self.frame_bytes = DEFAULT_FRAME_BYTES
        self.paused = False
        self.owes_update = False
        """True while the next header block must announce that our table is empty."""
        self.queued = 0
        """Bytes in all outboxes."""
        self._notify_below = -1
        self._on_room: Callable[[Stream | None], None] | None = None
        self._emptied = False
        # streams with queued data: with an open window, in round-robin order, and with a shut one
        self._ready: OrderedDict[int, Stream] = OrderedDict()
        self._starved: dict[int, Stream] = {}
        self.sent_bytes = 0
        """Total bytes of DATA ever sent."""
        self._sent_bytes_before = self._sent_bytes_long_before = 0

    @property
    def reads(self) -> bool:
        """True if the peer accepted DATA since the start of the second before last."""
        return self.sent_bytes != self._sent_bytes_long_before

    def reserve(self, stream: Stream, size: int) -> bool:
        """Reserve `size` bytes of both windows for a direct write, or return False: the data must queue."""
        if size > self.window or size > stream.send_window or self.paused or self.owes_update:
            return False
        stream.send_window -= size
        self.take(size)
        return True

    def fits(self, size: int) -> int:
        """Return how many new streams could each send `size` bytes directly; `take` reserves them.

        No more than the transport buffers before it is full: these bytes are charged to no account.
        """
        if size > self.initial_window or self.paused or self.owes_update:
            return 0
        return max(0, min(self.window, _BYTES_AT_ONCE) // size)

    def take(self, size: int) -> None:
        """Count `size` bytes of DATA that are written directly."""
        self.window -= size
        self.sent_bytes += size

    def watch(self, on_room: Callable[[Stream | None], None]) -> None:
        """Set the callback of `notify`. It runs in the middle of sending, so it may only record that a
        stream, or the connection (None), has room.
        """
        self._on_room = on_room

    def notify(self, below: int, stream: Stream | None = None) -> None:
        """Call `on_room` once when at most `below` bytes are queued in `stream`, or (None) in all streams."""
        if stream is None:
            self._notify_below = below
        else:
            stream.notify_below = below

    def queue(
        self, stream: Stream, parts: Iterable[Buffer], *, trailers: bytes | None = None, ending: bool = False
    ) -> None:
        """Send DATA, then `trailers` (they end the stream), or END_STREAM with the last byte if `ending`."""
        if stream.outbox is None:
            stream.outbox = deque()
            stream.queued, stream.notify_below = 0, -1
        outbox = stream.outbox
        size = 0
        for part in parts:
            count = len(part)
            size += count
            if count >= _VIEW_FROM_BYTES:
                outbox.append(memoryview(part).cast("B"))
            elif outbox and type(outbox[-1]) is bytearray and len(outbox[-1]) < _TAIL_BYTES:
                outbox[-1] += part  # without an object per small message
            elif count:
                outbox.append(bytearray(part))
        stream.queued += size
        self.queued += size
        if size:
            self._account.hold_answer(size)
        stream.trailers = trailers
        stream.ending = ending
        if not outbox:
            # an empty DATA frame needs no window (RFC 9113 section 6.9.1)
            if ending:
                self.transport.write(frame_header(DATA, END_STREAM, stream.id, 0))
                stream.sent()
            return
        if stream.id not in self._starved:
            (self._ready if stream.send_window > 0 else self._starved)[stream.id] = stream
        self.pump()

    def forget(self, stream_id: int) -> None:
        """Drop the queued data of a stream that was reset."""
        stream = self._ready.pop(stream_id, None) or self._starved.pop(stream_id, None)
        if stream is not None:
            stream.outbox = None
            self._account.hold_answer(-stream.queued)
            self._unqueue(stream, stream.queued)

    def _unqueue(self, stream: Stream, size: int) -> None:
        """Subtract bytes that left an outbox, and call `on_room` if a threshold was reached."""
        stream.queued -= size
        self.queued -= size
        if self._on_room is not None:
            if stream.queued <= stream.notify_below:
                stream.notify_below = -1
                self._on_room(stream)
            if self.queued <= self._notify_below:
                self._notify_below = -1
                self._on_room(None)

    def clear(self) -> None:
        """Drop all queued data: the connection is gone."""
        for stream_id in (*self._ready, *self._starved):
            self.forget(stream_id)

    def pause(self) -> None:
        """Stop writing: the transport is full."""
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        self.pump()

    def apply(self, settings: Mapping[int, int], streams: Iterable[Stream]) -> None:
        """Apply the peer's settings that concern sending. Raises Http2Error for values out of range."""
        if Setting.INITIAL_WINDOW_SIZE in settings:
            self._change_initial_window(settings[Setting.INITIAL_WINDOW_SIZE], streams)
        frame_bytes = settings.get(Setting.MAX_FRAME_SIZE, self.frame_bytes)
        if not DEFAULT_FRAME_BYTES <= frame_bytes < 1 << 24:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "MAX_FRAME_SIZE out of range")
        self.frame_bytes = min(frame_bytes, MAX_FRAME_BYTES)
        if settings.get(Setting.HEADER_TABLE_SIZE, DEFAULT_TABLE_BYTES) < DEFAULT_TABLE_BYTES:
            # we use no dynamic table, but must acknowledge the change once (RFC 9113 section 4.3.1)
            self.owes_update = not self._emptied

    def block(self, block: bytes) -> bytes:
        """Return a header block in the form to send next, preceded by a due table size update."""
        if not self.owes_update:
            return block
        self.owes_update, self._emptied = False, True
        return EMPTY_TABLE + block

    def _change_initial_window(self, value: int, streams: Iterable[Stream]) -> None:
        """Adjust the windows of open streams by the change of the initial window."""
        if value > MAX_WINDOW:
            raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "initial window over 2^31-1")
        change, self.initial_window = value - self.initial_window, value
        # a window may become negative: nothing is sent until updates have made it positive (section 6.9.2)
        for stream in streams:
            stream.send_window += change
            if stream.send_window > MAX_WINDOW:
                raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "stream window over 2^31-1")
        for stream in [s for s in self._ready.values() if s.send_window <= 0]:
            self._starved[stream.id] = self._ready.pop(stream.id)
        for stream in [s for s in self._starved.values() if s.send_window > 0]:
            self._ready[stream.id] = self._starved.pop(stream.id)

    def widen(self, increment: int) -> None:
        """Apply a WINDOW_UPDATE of the connection. Raises Http2Error."""
        if not increment:  # the same on a stream ends only the stream (RFC 9113 section 6.9)
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE by nothing")
        self.window += increment
        if self.window > MAX_WINDOW:
            raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "connection window over 2^31-1")
        if self._ready:
            self.pump()

    def widen_stream(self, stream: Stream, increment: int) -> ErrorCode | None:
        """Apply a WINDOW_UPDATE of a stream. Returns the error that must end the stream, or None."""
        if not increment:
            return ErrorCode.PROTOCOL_ERROR
        stream.send_window += increment
        if stream.send_window > MAX_WINDOW:
            return ErrorCode.FLOW_CONTROL_ERROR
        if stream.send_window > 0 and self._starved.pop(stream.id, None) is not None:
            self._ready[stream.id] = stream
            self.pump()
        return None

    def pump(self) -> None:
        """Send queued data as far as the windows allow, round-robin, one frame per stream."""
        if self._put_off:
            return
        out: list[Buffer] = []
        ended: list[Stream] = []
        size = count = 0
        ready = self._ready
        while ready and self.window > 0 and not self.paused:
            if count == _FRAMES_AT_ONCE:  # thousands of streams with a byte each must not keep the loop
                self._put_off = True
                self._later(self._resume_pumping)
                break
            count += 1
            stream_id, stream = ready.popitem(last=False)
            size += self._take_frame(stream, out)
            if stream.outbox:
                (ready if stream.send_window > 0 else self._starved)[stream_id] = stream
            elif stream.ending or stream.trailers is not None:
                ended.append(stream)
            if size >= _BYTES_AT_ONCE:
                self._write_frames(out, ended, size)
                out, ended, size = [], [], 0
        self._write_frames(out, ended, size)

    def _resume_pumping(self) -> None:
        self._put_off = False
        self.pump()

    def _take_frame(self, stream: Stream, out: list[Buffer]) -> int:
        """Append a DATA frame of the stream and, after its last, the trailers. Returns its payload size."""
        outbox = stream.outbox
        assert outbox is not None
        room = min(self.window, stream.send_window, self.frame_bytes)
        at, size = len(out), 0
        while outbox and size < room:
            chunk = outbox.popleft()
            if len(chunk) > room - size:
                # slice views, not bytes: window updates of one byte must not copy the rest each time
                view = memoryview(chunk)
                outbox.appendleft(view[room - size :])
                chunk = view[: room - size]
            out.append(chunk)
            size += len(chunk)
        # the header goes before the chunks, but its length and flags are known only now
        last = stream.ending and not outbox
        out.insert(at, frame_header(DATA, END_STREAM if last else 0, stream.id, size))
        if not outbox and stream.trailers is not None:
            out.append(stream.trailers)
        self.window -= size
        stream.send_window -= size
        self._unqueue(stream, size)
        stream.shut_since = 0
        self.sent_bytes += size
        return size

    def _write_frames(self, out: list[Buffer], ended: list[Stream], size: int) -> None:
        """Write, then notify the ended streams: their callbacks may close the connection."""
        if size:
            self._account.hold_answer(-size)
        if out:
            self.transport.writelines(out)
        for stream in ended:
            stream.sent()

    def stalled(self, tick: int, limit_s: int) -> list[Stream]:
        """Return the streams with queued data whose window the peer has kept shut for more than
        `limit_s`.

        Must be called once per second. Streams that only wait for their turn are not included.
        """
        # streams with an open window are stalled only if the connection's window is shut
        shut = self.window <= 0 and self.sent_bytes == self._sent_bytes_before
        self._sent_bytes_long_before, self._sent_bytes_before = self._sent_bytes_before, self.sent_bytes
        for stream in self._ready.values():
            stream.shut_since = (stream.shut_since or tick) if shut else 0
        for stream in self._starved.values():
            stream.shut_since = stream.shut_since or tick
        return [
            stream
            for stream in (*self._ready.values(), *self._starved.values())
            if stream.shut_since and tick - stream.shut_since > limit_s
        ]
