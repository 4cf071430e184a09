"""Server side of the socket to a model's process. Runs on the event loop and never blocks."""

import asyncio
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from tpx.errors import TpxError
from tpx.protocol.tensors import Buffer
from tpx.serving.backends.python.worker import frames
from tpx.serving.backends.python.worker.frames import HEADER
from tpx.serving.backends.python.worker.rings import Ring, TensorMemory, copy_into

_READ_BYTES = 256 << 10
_TURN_NS = 2_000_000
"""Time for frames before the event loop handles other events: a model may stream thousands at once."""

_COPIED_AT_ONCE_BYTES = 2 << 20
"""Smallest tensor that is copied to the process' memory in another thread."""

OnFrame = Callable[[int, memoryview], None]


class UnreadTensor(Protocol):
    """A tensor that must be read from where it is, in another thread."""

    def __len__(self) -> int: ...
    def read_into(self, memory: memoryview) -> None:
        """Fill `memory`, in any thread. Raises TpxError."""

    def fail(self, error: TpxError) -> None:
        """Note that it could not be read: the model gets zeros instead."""


class _Delayed(NamedTuple):
    """A frame, and the blocks to fill before it is sent."""

    frame: bytes
    copies: "list[tuple[memoryview, Buffer | UnreadTensor]]"


class WorkerConnection:
    """Frames in both directions and the shared memory for their tensors; used on the event loop only.

    A frame whose tensors are large waits, and so do those behind it, while another thread copies them. A
    frame's body is valid only until its handler returns. `on_gone` is called once, when the process has
    closed its end or has sent an invalid frame.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        memory: Sequence[TensorMemory],
        on_frame: OnFrame,
        on_gone: Callable[[], None],
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        """`memory` is for tensors to the process, and from it."""
        sock.setblocking(False)
        self._loop = loop
        self._sock = sock
        self._on_frame = on_frame
        self._clock = clock
        self._on_gone: Callable[[], None] | None = on_gone
        self._buffer = bytearray(_READ_BYTES)
        self._filled = 0
        self._backlog: deque[memoryview] = deque()
        self._waiting: list[bytes] = []
        self._copies: list[tuple[memoryview, Buffer | UnreadTensor]] = []
        """Blocks of the next frame that are not filled yet."""
        self._delayed: deque[_Delayed] = deque()
        outgoing, incoming = memory
        self._ring = Ring(outgoing)
        self._incoming: TensorMemory | None = incoming
        self._begun_at_the_end = 0
        loop.add_reader(sock.fileno(), self._handle_readable)

    @property
    def open(self) -> bool:
        return self._on_gone is not None

    @property
    def begun(self) -> int:
        """Number of the last batch that the process has started; 0 for none."""
        if self._incoming is None:
            return self._begun_at_the_end
        return int.from_bytes(self._incoming.memory[:4], "little")

    # sending

    def send(self, kind: int, parts: list[Buffer]) -> None:
        """Send a frame, or queue it until the socket is writable."""
        frame = frames.framed(kind, parts)
        self._ring.sent()
        if self._copies or self._delayed:
            copies, self._copies = self._copies, []
            self._delayed.append(_Delayed(frame, copies))
            if len(self._delayed) == 1:
                self._copy_next()
        else:
            self._add_frame(frame)

    def _add_frame(self, frame: bytes) -> None:
        if not self._waiting:
            # frames of one turn of the loop are sent with one system call
            self._loop.call_soon(self._flush)
        self._waiting.append(frame)

    def _copy_next(self) -> None:
        """Send the delayed frames until one whose tensors must be copied first."""
        while self._delayed and self.open:
            frame, copies = self._delayed[0]
            if copies:
                copying = self._loop.run_in_executor(None, _copy_all, copies)
                copying.add_done_callback(self._note_copied)
                return
            self._delayed.popleft()
            self._add_frame(frame)

    def _note_copied(self, copying: "asyncio.Future[list[tuple[UnreadTensor, TpxError]]]") -> None:
        if copying.cancelled() or not self.open:
            return
        for tensor, error in copying.result():
            tensor.fail(error)
        self._delayed[0].copies.clear()
        self._copy_next()

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        if not self.open:
            return
        data = waiting[0] if len(waiting) == 1 else b"".join(waiting)
        sent = 0
        if not self._backlog:
            sent = self._try_send(data)
            if sent == len(data):
                return
            self._loop.add_writer(self._sock.fileno(), self._handle_writable)
        self._backlog.append(memoryview(data)[sent:])

    def add_tensors(self, parts: list[Buffer], tensors: Sequence[Buffer | UnreadTensor]) -> None:
        """Append tensors to the parts of the next frame. Raises MemoryError."""
        frames.add_tensors(parts, tensors, self)

    def put(self, data: Buffer | UnreadTensor, size: int) -> int:
        """Implement frames.Memory: return the location of a tensor, which may be copied later."""
        if size < _COPIED_AT_ONCE_BYTES and isinstance(data, Buffer):
            return self._ring.put(data, size)
        start = self._ring.reserve(size)
        self._copies.append((self._ring.block(start, size), data))
        return start

    def drop_tensors(self) -> None:
        """Free the tensors that were added to a frame that is not sent."""
        self._copies.clear()
        self._ring.take_back()

    def _try_send(self, data: Buffer) -> int:
        try:
            return self._sock.send(data)
        except OSError:
            return 0  # the socket is full, or the peer has closed, which the reader reports

    def _handle_writable(self) -> None:
        while self._backlog:
            data = self._backlog[0]
            sent = self._try_send(data)
            if sent < len(data):
                self._backlog[0] = data[sent:]
                return
            self._backlog.popleft()
        self._loop.remove_writer(self._sock.fileno())

    # receiving

    def view(self, location: int, size: int) -> Buffer:
        """Return a tensor in the memory that the model writes to. Raises ValueError if it is no block."""
        assert self._incoming is not None
        return self._incoming.view(location, size)

    def _handle_readable(self) -> None:
        try:
            count = self._sock.recv_into(memoryview(self._buffer)[self._filled :])
        except BlockingIOError:
            return
        except OSError:
            count = 0
        if not count:
            self.close()
            return
        self._filled += count
        if not self._handle_frames():
            self._loop.remove_reader(self._sock.fileno())
            self._loop.call_soon(self._resume)

    def _resume(self) -> None:
        """Handle the frames that a turn has left over, before more are read."""
        if self.open and not self._handle_frames():
            self._loop.call_soon(self._resume)
        elif self.open:
            self._loop.add_reader(self._sock.fileno(), self._handle_readable)

    def _handle_frames(self) -> bool:
        """Handle complete frames, for one turn at most. Return False if some are left and it is open."""
        view, at, end = memoryview(self._buffer), 0, self._filled
        start = HEADER.size
        need = turn_ends_ns = 0
        while end - at >= start:
            size, kind = HEADER.unpack_from(view, at)
            if end - at - start < size:
                need = start + size
                break
            if at:  # not the first one
                now_ns = self._clock()
                turn_ends_ns = turn_ends_ns or now_ns + _TURN_NS
                if now_ns > turn_ends_ns:
                    break
            body = view[at + start : at + start + size]
            self._on_frame(kind, body)
            if not self.open:
                return True
            at += start + size
        # keep the beginning of an incomplete frame in a buffer large enough for all of it
        rest = end - at
        if need > len(self._buffer) or (rest and len(self._buffer) - end < _READ_BYTES // 2):
            larger = bytearray(max(need, _READ_BYTES))
            larger[:rest] = self._buffer[at:end]
            self._buffer = larger
        elif at and rest:
            self._buffer[:rest] = self._buffer[at:end]
        self._filled = rest
        return need > 0 or rest < start

    def close(self) -> None:
        """Close this end, which makes the process exit."""
        if self._on_gone is None:
            return
        gone, self._on_gone = self._on_gone, None
        self._loop.remove_reader(self._sock.fileno())
        self._loop.remove_writer(self._sock.fileno())
        self._sock.close()
        self._backlog.clear()
        self._delayed.clear()
        self._copies.clear()
        self._begun_at_the_end = self.begun
        self._incoming = None
        self._ring.close()
        gone()


def _copy_all(
    copies: "list[tuple[memoryview, Buffer | UnreadTensor]]",
) -> list[tuple[UnreadTensor, TpxError]]:
    """Fill blocks in another thread. Return the tensors that cannot be read; their blocks are zeros."""
    faults: list[tuple[UnreadTensor, TpxError]] = []
    for memory, data in copies:
        if isinstance(data, Buffer):
            copy_into(memory, data)
            continue
        try:
            data.read_into(memory)
        except TpxError as exc:
            np.frombuffer(memory, np.uint8)[:] = 0  # not another request's data
            faults.append((data, exc))
    return faults


def error_entry(message: str, code: int) -> list[Buffer]:
    """Return the parts of an error entry."""
    data = message.encode(errors="replace")
    return [frames.STATUS.pack(frames.ERROR, len(data)), bytes((code,)), data]
