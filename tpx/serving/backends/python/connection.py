"""Server side of the socket to a model's process. Runs on the event loop and never blocks."""

import asyncio
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from tpx.errors import TpxError
from tpx.protocol.tensors import Buffer
from tpx.serving.backends.python.worker import frames
from tpx.serving.transport.frame_socket import HEADER, FrameSocket
from tpx.serving.transport.memory import BlockMemory, Blocks, copy_into

_TURN_NS = 2_000_000
"""Time for frames before the event loop handles other events: a model may stream thousands at once."""

_COPIED_AT_ONCE_BYTES = 2 << 20
"""Smallest tensor that is copied to the process' memory in another thread."""

_AT_ONCE = 256
"""Frames of a turn, at most: what they bring is sent when all have been read."""

OnFrames = Callable[[Iterator[tuple[int, memoryview]]], None]
"""Handles the kind and the body of each frame of a turn."""


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
    frame's body is valid only until the next one is asked for. `on_gone` is called once, when the process has
    closed its end or has sent an invalid frame.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        memory: Sequence[BlockMemory],
        on_frames: OnFrames,
        on_gone: Callable[[], None],
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        """`memory` is for tensors to the process, and from it."""
        self._loop = loop
        self._on_frames = on_frames
        self._at = 0
        """Position in the data that is being read."""
        self._on_gone = on_gone
        self._clock = clock
        self._copies: list[tuple[memoryview, Buffer | UnreadTensor]] = []
        """Blocks of the next frame that are not filled yet."""
        self._delayed: deque[_Delayed] = deque()
        own, self._theirs = memory
        self._blocks = Blocks(own)
        self._begun_at_the_end = 0
        self._socket = FrameSocket(loop, sock, self._handle_data, self._handle_gone)

    @property
    def open(self) -> bool:
        return self._socket.open

    @property
    def begun(self) -> int:
        """Number of the last batch that the process has started; 0 for none."""
        return self._theirs.words[0] if self.open else self._begun_at_the_end

    # sending

    def send(self, kind: int, parts: list[Buffer]) -> None:
        """Send a frame, or queue it until the socket is writable."""
        frame = frames.framed(kind, parts)
        self._blocks.sent()
        if self._copies or self._delayed:
            copies, self._copies = self._copies, []
            self._delayed.append(_Delayed(frame, copies))
            if len(self._delayed) == 1:
                self._copy_next()
        else:
            self._socket.send(frame)

    def _copy_next(self) -> None:
        """Send the delayed frames until one whose tensors must be copied first."""
        while self._delayed and self.open:
            frame, copies = self._delayed[0]
            if copies:
                copying = self._loop.run_in_executor(None, _copy_all, copies)
                copying.add_done_callback(self._note_copied)
                return
            self._delayed.popleft()
            self._socket.send(frame)

    def _note_copied(self, copying: "asyncio.Future[list[tuple[UnreadTensor, TpxError]]]") -> None:
        if copying.cancelled() or not self.open:
            return
        for tensor, error in copying.result():
            tensor.fail(error)
        self._delayed[0].copies.clear()
        self._copy_next()

    def add_tensors(self, parts: list[Buffer], tensors: Sequence[Buffer | UnreadTensor]) -> None:
        """Append tensors to the parts of the next frame. Raises MemoryError."""
        frames.add_tensors(parts, tensors, self)

    def put(self, data: Buffer | UnreadTensor, size: int) -> int:
        """Implement frames.Memory: return the location of a tensor, which may be copied later."""
        if size < _COPIED_AT_ONCE_BYTES and isinstance(data, Buffer):
            return self._blocks.put(data, size)
        location = self._blocks.reserve(size)
        self._copies.append((self._blocks.block(location, size), data))
        return location

    def drop_tensors(self) -> None:
        """Free the tensors that were added to a frame that is not sent."""
        self._copies.clear()
        self._blocks.take_back()

    # receiving

    def view(self, location: int, size: int) -> Buffer:
        """Return a tensor in the memory that the model writes to. Raises ValueError if it is no block."""
        return self._theirs.view(location, size)

    def _handle_data(self, data: memoryview) -> int:
        """Handle complete frames, for one turn at most; return the number of bytes handled."""
        self._at = 0
        self._on_frames(self._read_frames(data))
        return self._at

    def _read_frames(self, data: memoryview) -> Iterator[tuple[int, memoryview]]:
        """Yield the kind and the body of each complete frame, until the turn is over."""
        at, end, start, sock = 0, len(data), HEADER.size, self._socket
        left, turn_ends_ns = _AT_ONCE, 0
        while end - at >= start and left:
            size, kind = HEADER.unpack_from(data, at)
            if end - at - start < size:
                return
            if at:  # not the first one
                now_ns = self._clock()
                turn_ends_ns = turn_ends_ns or now_ns + _TURN_NS
                if now_ns > turn_ends_ns:
                    return
            body = data[at + start : at + start + size]
            self._at = at = at + start + size
            left -= 1
            yield kind, body
            if not sock.open:
                return

    def _handle_gone(self) -> None:
        self._delayed.clear()
        self._copies.clear()
        self._begun_at_the_end = self._theirs.words[0]
        self._blocks.close()
        del self._theirs  # unmapped with its last view
        self._on_gone()

    def close(self) -> None:
        """Close this end, which makes the process exit."""
        self._socket.close()


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
