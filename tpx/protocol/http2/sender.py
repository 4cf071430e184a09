"""The sending half of an HTTP/2 connection: windows, and the streams that wait for them."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import cast

from tpx.protocol.http2.frames import (
    DATA,
    DEFAULT_FRAME_BYTES,
    DEFAULT_WINDOW,
    END_STREAM,
    MAX_WINDOW,
    ErrorCode,
    Http2Error,
    frame_header,
)
from tpx.protocol.http2.stream import Stream
from tpx.protocol.tensors import Buffer

_WRITES_AT_ONCE = 64


class Sender:
    """Sends what the peer's windows allow and keeps the rest; nothing is written while the transport is full.

    A caller with little to send may do so itself: when `paused` is False, `window` and the stream's own
    window
    suffice, it lowers both and writes.
    """

    __slots__ = ("_blocked", "_on_sent", "frame_bytes", "initial_window", "paused", "transport", "window")

    def __init__(self, on_sent: Callable[[Stream], None]) -> None:
        self.transport: asyncio.Transport = cast("asyncio.Transport", None)
        self.window = DEFAULT_WINDOW
        self.initial_window = DEFAULT_WINDOW
        self.frame_bytes = DEFAULT_FRAME_BYTES
        self.paused = False
        self._on_sent = on_sent
        self._blocked: dict[int, Stream] = {}

    @property
    def idle(self) -> bool:
        return not self._blocked

    def queue(
        self, stream: Stream, parts: Iterable[Buffer], *, trailers: bytes | None = None, ending: bool = False
    ) -> None:
        """Send DATA, then `trailers` (complete frames that end the stream) or END_STREAM with the last
        byte."""
        if stream.outbox is None:
            stream.outbox = deque()
        stream.outbox.extend(memoryview(part).cast("B") for part in parts if len(part))
        stream.trailers = trailers
        stream.ending = ending
        self._blocked[stream.id] = stream
        self.pump()

    def forget(self, stream_id: int) -> None:
        """Drop what waits of a stream that was reset."""
        self._blocked.pop(stream_id, None)

    def resume(self) -> None:
        self.paused = False
        self.pump()

    def change_initial_window(self, value: int, streams: Iterable[Stream]) -> None:
        """Apply the peer's INITIAL_WINDOW_SIZE, which also moves the windows of open streams."""
        if value > MAX_WINDOW:
            raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "initial window over 2^31-1")
        change, self.initial_window = value - self.initial_window, value
        for stream in streams:
            stream.send_window += change
            if stream.send_window > MAX_WINDOW:
                raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "stream window over 2^31-1")

    def widen(self, increment: int) -> None:
        """WINDOW_UPDATE of the connection."""
        self.window += increment
        if not increment or self.window > MAX_WINDOW:
            raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "connection window out of range")
        self.pump()

    def widen_stream(self, stream: Stream, increment: int) -> bool:
        """WINDOW_UPDATE of a stream; False if it leaves the range, which ends the stream."""
        stream.send_window += increment
        if not increment or stream.send_window > MAX_WINDOW:
            return False
        if stream.id in self._blocked:
            self.pump()
        return True

    def pump(self) -> None:
        """Let every waiting stream send what the windows allow, in turns of one frame each."""
        out: list[Buffer] = []
        turn = list(self._blocked.values())
        while turn and not self.paused:
            turn = [stream for stream in turn if self._send_one(stream, out)]
            if len(out) >= _WRITES_AT_ONCE:
                self.transport.writelines(out)
                out = []
        if out:
            self.transport.writelines(out)

    def _send_one(self, stream: Stream, out: list[Buffer]) -> bool:
        """Append one DATA frame of the stream, or its end; False when it can do no more for now."""
        outbox = cast("deque[memoryview]", stream.outbox)
        if outbox:
            room = min(self.window, stream.send_window, self.frame_bytes)
            if room <= 0:
                return False
            chunk = outbox.popleft()
            if len(chunk) > room:
                outbox.appendleft(chunk[room:])
                chunk = chunk[:room]
            self.window -= len(chunk)
            stream.send_window -= len(chunk)
            last = stream.ending and not outbox
            out.append(frame_header(DATA, END_STREAM if last else 0, stream.id, len(chunk)))
            out.append(chunk)
            if outbox:
                return True
        elif stream.ending:
            out.append(frame_header(DATA, END_STREAM, stream.id, 0))
        del self._blocked[stream.id]
        if stream.trailers is not None:
            out.append(stream.trailers)
        if stream.trailers is not None or stream.ending:
            self._on_sent(stream)
        return False
