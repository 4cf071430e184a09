"""One HTTP/2 connection (RFC 9113): what a server and a client do alike.

Frames are parsed in place in what one read brought. The rest of a large DATA frame is read by the event loop
straight
into the message it belongs to. What can be sent at once is written at once; what flow control holds back
waits in its
stream. A peer that makes us work without asking for anything pays from a budget, and is sent away when it is
spent.
"""

import asyncio
from abc import abstractmethod
from collections import deque
from typing import cast

from tpx.errors import WireError
from tpx.protocol.http2 import frames
from tpx.protocol.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    DEFAULT_FRAME_BYTES,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    HEADER_BYTES,
    HEADERS,
    MAX_WINDOW,
    PADDED,
    PRIORITIZED,
    ErrorCode,
    Setting,
    header_at,
)
from tpx.protocol.http2.hpack import MAX_HEADER_LIST_BYTES, BlockDecoder
from tpx.protocol.tensors import Buffer

MAX_FRAME_BYTES = 1 << 20
"""The largest frame we accept: large tensors arrive in fewer pieces."""
STREAM_WINDOW = 8 << 20
CONNECTION_WINDOW = 64 << 20

_GLITCH_BURST = 2000
_GLITCHES_PER_SECOND = 100


class Http2Error(WireError):
    """The peer broke HTTP/2: the connection ends with GOAWAY and this code."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error_code = code


class Stream:
    """One stream: the flow control of both directions and what waits to be sent."""

    __slots__ = (
        "ending",
        "id",
        "outbox",
        "peer_ended",
        "receive_window",
        "send_window",
        "trailers",
        "we_ended",
    )

    def __init__(self, stream_id: int, send_window: int) -> None:
        self.id = stream_id
        self.send_window = send_window
        self.receive_window = STREAM_WINDOW
        self.peer_ended = False
        self.we_ended = False
        self.outbox: deque[memoryview] | None = None
        self.ending = False
        """The last byte of the outbox carries END_STREAM."""
        self.trailers: bytes | None = None
        """Complete frames that follow the outbox and end the stream."""

    def landing(self, remaining: int) -> memoryview | None:  # noqa: ARG002
        """Where the next `remaining` bytes of DATA may be read directly, or None to have them handed over."""
        return None


class Http2Connection(asyncio.BufferedProtocol):
    """Framing, settings, flow control and abuse limits; the two roles add what streams mean."""

    def __init__(self, scratch: memoryview, decoder: BlockDecoder) -> None:
        self._scratch = scratch
        self._blocks = decoder
        self._transport: asyncio.Transport = cast("asyncio.Transport", None)
        self.streams: dict[int, Stream] = {}
        # reading
        self._pending = b""
        self._block: bytearray | None = None  # a header block in pieces, and its first frame
        self._block_stream = 0
        self._block_flags = 0
        self._direct: memoryview | None = None  # the landing of a DATA frame, its stream, its unread bytes
        self._direct_stream: Stream | None = None
        self._direct_left = 0
        self._direct_flags = 0
        self._unacknowledged = 0  # received on the connection since our last WINDOW_UPDATE
        # writing
        self._peer_frame_bytes = DEFAULT_FRAME_BYTES
        self._peer_window = DEFAULT_WINDOW  # initial window of new streams
        self._peer_max_streams = MAX_WINDOW
        self._send_window = DEFAULT_WINDOW
        self._blocked: dict[int, Stream] = {}
        self._writing_paused = False
        # ending
        self._glitches = _GLITCH_BURST
        self._closed = False

    # what a role provides

    @abstractmethod
    def _on_headers(self, stream_id: int, flags: int, block: bytes) -> None:
        """A complete header block."""

    @abstractmethod
    def _on_data(self, stream_id: int, flags: int, data: bytes, start: int, stop: int) -> None:
        """A DATA frame's payload without padding; empty and unknown streams included."""

    @abstractmethod
    def _on_landed(self, stream: Stream, count: int, flags: int, last: bool) -> None:
        """`count` bytes of DATA were read into the stream's landing; `last` ends the frame."""

    @abstractmethod
    def _on_reset(self, stream_id: int, code: int) -> None:
        """The peer ended a stream with RST_STREAM."""

    @abstractmethod
    def _on_goaway(self, last_stream_id: int, code: int, reason: bytes) -> None:
        """The peer will take no new streams."""

    def _on_settled(self) -> None:
        """The peer's settings have changed."""

    def _on_ping_ack(self, payload: bytes) -> None:
        """The peer answered our PING."""

    def _on_ping(self) -> None:
        """The peer sent a PING. May raise Http2Error."""

    # asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 (asyncio's signature)
        return self._direct if self._direct is not None else self._scratch

    def buffer_updated(self, nbytes: int) -> None:
        if self._closed:
            return
        try:
            if self._direct is not None:
                self._land(nbytes)
                return
            data = bytes(self._scratch[:nbytes])
            if self._pending:
                data = self._pending + data
                self._pending = b""
            self._parse(data, 0)
        except Http2Error as exc:
            self._break(exc)

    def pause_writing(self) -> None:
        self._writing_paused = True
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._writing_paused = False
        self._transport.resume_reading()
        self._pump_blocked()

    # reading frames

    def _parse(self, data: bytes, at: int) -> None:
        end = len(data)
        while end - at >= HEADER_BYTES:
            high, low, kind, flags, stream_id = header_at(data, at)
            length = high << 16 | low
            start = at + HEADER_BYTES
            stop = start + length
            if self._block is not None and kind != CONTINUATION:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a header block was interrupted")
            if stop > end:
                if length > MAX_FRAME_BYTES:
                    raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"frame of {length} bytes")
                if kind == DATA and self._begin_landing(stream_id, flags, data, start, stop):
                    return
                break
            if kind == DATA:
                if flags & PADDED or start == stop:
                    self._odd_data(stream_id, flags, data, start, stop)
                else:
                    self._received(length)
                    self._on_data(stream_id, flags, data, start, stop)
            elif kind == HEADERS and flags & (END_HEADERS | PADDED | PRIORITIZED) == END_HEADERS:
                self._on_headers(stream_id, flags, data[start:stop])
            else:
                self._uncommon(kind, flags, stream_id, data[start:stop])
            if self._closed:
                return
            at = stop
        self._pending = data[at:] if at < end else b""

    def _received(self, count: int) -> None:
        """Give the connection's window back once a good part of it is used."""
        self._unacknowledged += count
        if self._unacknowledged > CONNECTION_WINDOW // 2:
            self._transport.write(frames.window_update(0, self._unacknowledged))
            self._unacknowledged = 0

    def take_from_window(self, stream: Stream, count: int) -> None:
        """Account for DATA of a stream that goes on, and give its window back."""
        stream.receive_window -= count
        if stream.receive_window < 0:
            raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, f"stream {stream.id} sent more than its window")
        if stream.receive_window < STREAM_WINDOW // 2 and not stream.peer_ended:
            self._transport.write(frames.window_update(stream.id, STREAM_WINDOW - stream.receive_window))
            stream.receive_window = STREAM_WINDOW

    def _odd_data(self, stream_id: int, flags: int, data: bytes, start: int, stop: int) -> None:
        """DATA that is padded or empty: padding counts for flow control, and emptiness is not free."""
        self._received(stop - start)
        if start == stop and not flags & END_STREAM:
            self._glitch("empty DATA frames")
        if flags & PADDED:
            stop, start = stop - (data[start] if start < stop else 0), start + 1
            if stop < start:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "padding longer than its frame")
        self._on_data(stream_id, flags, data, start, stop)

    def _begin_landing(self, stream_id: int, flags: int, data: bytes, start: int, stop: int) -> bool:
        """The rest of a DATA frame is still to come: hand over what is there and read the rest in place."""
        stream = self.streams.get(stream_id)
        if stream is None or flags & PADDED:
            return False
        here = len(data) - start
        if here:
            self._received(here)
            self._on_data(stream_id, 0, data, start, len(data))
        left = stop - start - here
        landing = stream.landing(left) if self.streams.get(stream_id) is stream else None
        if landing is None:
            # keep the frame's header with a smaller length for the part that is still to come
            self._pending = frames.frame_header(DATA, flags, stream_id, left) if here else data[start - 9 :]
            return True
        self._direct, self._direct_stream, self._direct_left, self._direct_flags = (
            landing,
            stream,
            left,
            flags,
        )
        return True

    def _land(self, nbytes: int) -> None:
        stream = cast("Stream", self._direct_stream)
        self._received(nbytes)
        self._direct_left -= nbytes
        flags, left = self._direct_flags, self._direct_left
        self._direct = None
        if self.streams.get(stream.id) is stream:
            self._on_landed(stream, nbytes, flags, left == 0)
        if left == 0:
            return
        alive = self.streams.get(stream.id) is stream
        self._direct = stream.landing(left) if alive else None
        if self._direct is None:
            self._pending = frames.frame_header(DATA, flags, stream.id, left)

    def _uncommon(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        """Everything but DATA and plain HEADERS."""
        if kind == HEADERS:
            self._begin_block(flags, stream_id, payload)
        elif kind == CONTINUATION:
            self._continue_block(flags, stream_id, payload)
        elif kind == frames.WINDOW_UPDATE:
            self._window_update(stream_id, payload)
        elif kind == frames.SETTINGS:
            self._settings(flags, stream_id, payload)
        elif kind == frames.PING:
            self._ping(flags, stream_id, payload)
        elif kind == frames.RST_STREAM:
            if len(payload) != 4 or not stream_id:
                raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "malformed RST_STREAM")
            self._glitch("stream resets")
            self._blocked.pop(stream_id, None)
            self._on_reset(stream_id, frames.unpack_u32(payload)[0])
        elif kind == frames.GOAWAY:
            if len(payload) < 8 or stream_id:
                raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "malformed GOAWAY")
            last, code = frames.unpack_u32(payload)[0] & MAX_WINDOW, frames.unpack_u32(payload, 4)[0]
            self._on_goaway(last, code, payload[8:])
        elif kind == frames.PUSH_PROMISE:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE is switched off")
        else:
            self._glitch("frames without effect")  # PRIORITY and unknown types are ignored

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
            self._on_headers(stream_id, flags, block)
            return
        self._block, self._block_stream, self._block_flags = bytearray(block), stream_id, flags

    def _continue_block(self, flags: int, stream_id: int, payload: bytes) -> None:
        if self._block is None or stream_id != self._block_stream:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "CONTINUATION without its HEADERS")
        self._glitch("CONTINUATION frames")
        self._block += payload
        if len(self._block) > MAX_HEADER_LIST_BYTES:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "header block too large")
        if flags & END_HEADERS:
            block, self._block = bytes(self._block), None
            self._on_headers(stream_id, self._block_flags, block)

    def _settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id or len(payload) % 6 or (flags & ACK and payload):
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "malformed SETTINGS")
        if flags & ACK:
            return
        self._glitch("SETTINGS frames")
        for name, value in frames.parse_settings(payload):
            self._apply_setting(name, value)
        self._transport.write(frames.frame(frames.SETTINGS, ACK, 0))
        self._on_settled()
        self._pump_blocked()

    def _apply_setting(self, name: int, value: int) -> None:
        if name == Setting.INITIAL_WINDOW_SIZE:
            if value > MAX_WINDOW:
                raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "initial window over 2^31-1")
            change, self._peer_window = value - self._peer_window, value
            for stream in self.streams.values():
                stream.send_window += change
                if stream.send_window > MAX_WINDOW:
                    raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "stream window over 2^31-1")
        elif name == Setting.MAX_FRAME_SIZE:
            if not DEFAULT_FRAME_BYTES <= value < 1 << 24:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "MAX_FRAME_SIZE out of range")
            self._peer_frame_bytes = min(value, MAX_FRAME_BYTES)
        elif name == Setting.MAX_CONCURRENT_STREAMS:
            self._peer_max_streams = value
        elif name == Setting.ENABLE_PUSH and value > 1:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "ENABLE_PUSH must be 0 or 1")

    def _ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        if len(payload) != 8 or stream_id:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "malformed PING")
        if flags & ACK:
            self._on_ping_ack(payload)
            return
        self._glitch("PING frames")
        self._on_ping()
        self._transport.write(frames.frame(frames.PING, ACK, 0, payload))

    def _window_update(self, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "malformed WINDOW_UPDATE")
        increment = frames.unpack_u32(payload)[0] & MAX_WINDOW
        if not stream_id:
            self._send_window += increment
            if not increment or self._send_window > MAX_WINDOW:
                raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "connection window out of range")
            self._pump_blocked()
            return
        stream = self.streams.get(stream_id)
        if stream is None:
            return  # of a stream that has just ended
        stream.send_window += increment
        if not increment or stream.send_window > MAX_WINDOW:
            self._on_reset(stream_id, ErrorCode.FLOW_CONTROL_ERROR)
            self._transport.write(frames.rst_stream(stream_id, ErrorCode.FLOW_CONTROL_ERROR))
        elif stream_id in self._blocked:
            self._pump_blocked()

    # writing

    def _queue(self, stream: Stream, parts: tuple[Buffer, ...], trailers: bytes | None, ending: bool) -> None:
        """Send DATA as far as flow control lets it, then `trailers` (frames that end the stream)."""
        if stream.outbox is None:
            stream.outbox = deque()
        stream.outbox.extend(memoryview(part).cast("B") for part in parts if len(part))
        stream.trailers = trailers
        stream.ending = ending
        self._blocked[stream.id] = stream
        self._pump_blocked()

    def _pump_blocked(self) -> None:
        """Let every waiting stream send what the windows allow, in turns of one frame each."""
        out: list[Buffer] = []
        turn = list(self._blocked.values())
        while turn and not self._writing_paused:
            turn = [stream for stream in turn if self._pump_one(stream, out)]
            if len(out) >= 64:
                self._transport.writelines(out)
                out = []
        if out:
            self._transport.writelines(out)

    def _pump_one(self, stream: Stream, out: list[Buffer]) -> bool:
        """Append one DATA frame of the stream, or its end; False when it can do no more for now."""
        outbox = cast("deque[memoryview]", stream.outbox)
        if outbox:
            room = min(self._send_window, stream.send_window, self._peer_frame_bytes)
            if room <= 0:
                return False
            chunk = outbox.popleft()
            if len(chunk) > room:
                outbox.appendleft(chunk[room:])
                chunk = chunk[:room]
            self._send_window -= len(chunk)
            stream.send_window -= len(chunk)
            last = stream.ending and not outbox
            out.append(frames.frame_header(DATA, END_STREAM if last else 0, stream.id, len(chunk)))
            out.append(chunk)
            if outbox:
                return True
        elif stream.ending and stream.trailers is None:
            out.append(frames.frame_header(DATA, END_STREAM, stream.id, 0))
        del self._blocked[stream.id]
        if stream.trailers is not None:
            out.append(stream.trailers)
        if stream.trailers is not None or stream.ending:
            self._sent_end(stream)
        return False

    def _sent_end(self, stream: Stream) -> None:
        """Our half of the stream is complete."""
        stream.we_ended = True
        if stream.peer_ended:
            self.streams.pop(stream.id, None)

    # ending

    def _glitch(self, what: str) -> None:
        self._glitches -= 1
        if self._glitches < 0:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, f"too many {what}")

    def forgive(self) -> None:
        """Refill the budget of a well-behaved peer; called once a second."""
        self._glitches = min(_GLITCH_BURST, self._glitches + _GLITCHES_PER_SECOND)

    @abstractmethod
    def _break(self, error: Http2Error) -> None:
        """Send GOAWAY with the error and end the connection."""
