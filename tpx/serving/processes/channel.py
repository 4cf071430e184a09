"""Communication between a frontend and the engine: frames in both directions, their blocks, and
wake-ups.

Runs on the event loop of either process and never blocks: frames without room are queued in order and
sent later. A block is free again when the receiver has released its last view of it.
"""

import asyncio
import fcntl
import mmap
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from tpx.errors import Overloaded
from tpx.protocol.memory_budget import MemoryBudget
from tpx.protocol.tensors import Array, Buffer
from tpx.serving.processes.heap import Heap
from tpx.serving.processes.ring import (
    INLINE,
    INLINE_BYTES,
    RELEASED_BYTES,
    RING_BYTES,
    Arrived,
    FrameHead,
    FrameRing,
    PlainHead,
    ReleasedBlocks,
    fence,
)

HEAP_BYTES = 32 << 30
"""Address space, not memory, for the blocks of one direction: two messages of gRPC's maximum size."""
_GAUGES_BYTES = 4096
_RING_ROOM = 4096 + RING_BYTES  # a multiple of the page size, so that the heaps are page-aligned
_RELEASED = _GAUGES_BYTES + 2 * _RING_ROOM
HEAPS = _RELEASED + 2 * RELEASED_BYTES
"""Position of the blocks of a frontend, followed by those of the engine."""
_TOTAL = HEAPS + 2 * HEAP_BYTES
_ALIGNMENT = 64
_LOOK_EVERY_S = 1
_AT_ONCE = 256
"""Maximum frames taken in one turn of the event loop."""
_AMPLE = 3 / 4
"""Fraction of the limit above which the peer has a backlog: models that produce responses ahead pause."""
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW  # a peer that shrinks the memory would cause SIGBUS here
GENERATION, READY, IN_FLIGHT, PENDING = 0, 1, 2, 3
CONNECTIONS, CLOSING = 16, 17
"""Indexes of the gauges. The engine writes the generation of its models, its readiness and its numbers of
requests; the frontend writes its number of connections, and whether it has stopped accepting them.
"""


class ChannelBroken(Exception):
    """Raised for data that a correct peer cannot have written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptors:
    """Shared resources of the two sides: the memory, and an eventfd that wakes each side."""

    memory: int
    wakes_engine: int
    wakes_frontend: int

    @classmethod
    def new(cls) -> "Descriptors":
        """Create them. Raises OSError."""
        memory = os.memfd_create("tpx-frontend", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(memory, _TOTAL)
        fcntl.fcntl(memory, fcntl.F_ADD_SEALS, _SEALS)
        flags = os.EFD_NONBLOCK | os.EFD_CLOEXEC
        return cls(memory=memory, wakes_engine=os.eventfd(0, flags), wakes_frontend=os.eventfd(0, flags))

    @classmethod
    def received(cls, descriptors: Sequence[int]) -> "Descriptors":
        """Return those that a frontend has sent, in this order. Raises ChannelBroken."""
        if len(descriptors) != 3:
            raise ChannelBroken(f"a frontend has sent {len(descriptors)} descriptors")
        memory, wakes_engine, wakes_frontend = descriptors
        return cls(memory=memory, wakes_engine=wakes_engine, wakes_frontend=wakes_frontend)

    def close(self) -> None:
        for descriptor in (self.memory, self.wakes_engine, self.wakes_frontend):
            os.close(descriptor)


@dataclass(slots=True)
class ReceivedFrame:
    """A frame as received; a view of `payload` keeps its block in use."""

    kind: int
    flags: int
    number: int
    template: int
    generation: int
    meta: Buffer
    payload: Buffer


OnFrames = Callable[["FrameChannel", Iterator[Arrived]], None]
"""Handles frames; an exception breaks the channel."""
_Waiting = tuple[FrameHead, bytes, Sequence[Buffer], int]


class FrameChannel:
    """One end of a channel."""

    def __init__(
        self,
        descriptors: Descriptors,
        on_frames: OnFrames,
        on_broken: Callable[[Exception], None],
        *,
        is_engine: bool,
        limit_bytes: int = HEAP_BYTES,
        budget: MemoryBudget | None = None,
    ) -> None:
        """Map the memory; the peer may hold up to `limit_bytes` of this side's large messages, which are
        charged to the `budget`.

        Raises ChannelBroken if the size of the memory is wrong or can change.
        """
        memory = descriptors.memory
        if os.fstat(memory).st_size != _TOTAL or fcntl.fcntl(memory, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
            raise ChannelBroken("the memory of a frontend has another size, or may get one")
        self._descriptors = descriptors
        self._memory = mmap.mmap(memory, _TOTAL)
        view = memoryview(self._memory)
        self.gauges = view[:_GAUGES_BYTES].cast("Q")
        """Words that one side writes and the other may read at any time."""
        rings = [FrameRing(view, _GAUGES_BYTES), FrameRing(view, _GAUGES_BYTES + _RING_ROOM)]
        self._incoming, self._outgoing = rings if is_engine else reversed(rings)
        peer_heap, own_heap = (HEAPS, HEAPS + HEAP_BYTES)[:: 1 if is_engine else -1]
        self._theirs = range(peer_heap, peer_heap + HEAP_BYTES)
        self._budget = budget or MemoryBudget()
        self._heap = Heap(self._memory, own_heap, HEAP_BYTES, limit_bytes, self._budget.take)
        released = [ReleasedBlocks(view, _RELEASED), ReleasedBlocks(view, _RELEASED + RELEASED_BYTES)]
        self._released, self._releases = reversed(released) if is_engine else released
        self._wake = descriptors.wakes_frontend if is_engine else descriptors.wakes_engine
        self._woken = descriptors.wakes_engine if is_engine else descriptors.wakes_frontend
        self._on_frames = on_frames
        self._on_broken = on_broken
        self._is_engine = is_engine
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Waiting] = deque()
        self._limit_bytes, self._ample_bytes = limit_bytes, int(limit_bytes * _AMPLE)
        self._waiting_bytes = self._published_ns = 0
        self.backlog = False
        """True while frames queue for room, or the peer holds so much that the limit is near."""
        self.on_backlog: Callable[[bool], None] = lambda _: None
        """Called when `backlog` changes."""
        self._blocks: dict[int, tuple[weakref.ref[Array], int]] = {}
        """The peer's blocks that are viewed here, by the id of a weak reference: arrays are not hashable."""
        self._done: deque[int] = deque()
        """Positions of the peer's blocks that are no longer viewed here."""
        self._takes_on = self._publishes = self._closed = False
        self._draining = False
        """True during `drain`, which publishes at its end everything sent meanwhile."""
        self._loop.add_reader(self._woken, self._on_wake)
        self._incoming.sleeps[0] = 1  # the first frame must wake this side
        self._ticker = self._loop.call_later(_LOOK_EVERY_S, self._poll)

    @property
    def closed(self) -> bool:
        """True after `close`, when nothing is sent or received any more."""
        return self._closed

    @property
    def blocks(self) -> int:
        """Number of this side's blocks in use."""
        self._reclaim()
        return self._heap.used

    # sending

    def send(
        self, kind: int, *, flags: int = 0, number: int = 0, meta: bytes = b"", parts: Sequence[Buffer] = ()
    ) -> None:
        """Send a frame, or queue it until there is room.

        Raises Overloaded if it can never fit, or the peer holds too much.
        """
        self.post((kind, flags, number, 0, 0), meta, parts)

    def post(self, head: FrameHead, meta: bytes, parts: Sequence[Buffer]) -> None:
        """Send a frame like `send`, with its head as a tuple; used for most frames."""
        if self._closed:
            return
        size = len(parts[0]) if len(parts) == 1 else sum(map(len, parts))
        frame = head, meta, parts, size
        if size + len(meta) > INLINE_BYTES:
            self._admit_large(len(meta) + size)
        if self._waiting or not self._write_frame(frame):
            self._waiting.append(frame)
            self._waiting_bytes += size
            self._send_waiting()
        elif self._heap.used_bytes > self._ample_bytes and not self.backlog:
            self._send_waiting()
        if size > INLINE_BYTES and not self._is_engine:  # it computes while this side reads the next one
            self.publish()
        elif not self._draining:
            self._publish_one()

    def _admit_large(self, size: int) -> None:
        """Make room for a message that needs a block. Raises Overloaded."""
        self._reclaim()
        if not self._heap.fits(size + _ALIGNMENT):
            raise Overloaded(f"a message of {size} bytes is too large for the frontends' memory")
        held = self._heap.used_bytes + self._waiting_bytes
        if held and held + size > self._limit_bytes:
            raise Overloaded(
                f"a frontend holds {held} bytes of answers, of at most {self._limit_bytes} "
                "(its share of --max-buffered-bytes)"
            )
        if not self._budget.admit_answer(size):
            raise self._budget.overload()

    def post_plain(self, plain: PlainHead, number: int, data: bytes) -> None:
        """Send a plain frame like `post`."""
        if self._waiting or not self._outgoing.append(plain, number, data):
            self.post(plain.head(number), b"", (data,))
        elif not self._draining:
            self._publish_one()

    def allocate(self, size: int) -> Array | None:
        """Return memory whose parts are sent without a copy; None if there is no room."""
        if self._closed:
            return None
        self._reclaim()
        return self._heap.allocate_array(size)

    def _reclaim(self) -> None:
        """Free the blocks that neither side needs any more."""
        try:
            for position in self._released.take():
                self._heap.free(position)
        except (KeyError, ValueError) as exc:
            self._on_broken(exc)
        self._heap.reclaim()

    def _write_frame(self, frame: _Waiting) -> bool:
        head, meta, parts, size = frame
        if len(meta) + size <= INLINE_BYTES:
            memory = self._outgoing.write(head, meta, size, INLINE)
            if memory is None:
                return False
            _copy_parts(memory, parts)
            return True
        pinned = self._heap.pin(parts) if len(meta) <= INLINE_BYTES else None
        if pinned is not None:
            if self._outgoing.write(head, meta, size, pinned) is not None:
                return True
            self._heap.free(pinned)
            return False
        start = _compute_meta_room(len(meta))
        position = self._heap.allocate(start + size)
        if position is None:
            return False
        if self._outgoing.write(head, meta, size, position) is None:
            self._heap.free(position)
            return False
        view = memoryview(self._memory)
        if start:
            view[position : position + len(meta)] = meta
        _copy_parts(view[position + start : position + start + size], parts)
        return True

    def _publish_one(self) -> None:
        """Make a frame visible; if the peer sleeps, wake it once for all frames of this turn of the event
        loop.

        A wake-up costs more than a request.
        """
        self._outgoing.show()
        if not self._publishes:
            self._publishes = True
            self._loop.call_soon(self._publish_turn)

    def _publish_turn(self) -> None:
        self._publishes = False
        self.publish()

    def begin_turn(self, now_ns: int) -> None:
        """Count the time of `publish_late` from here."""
        self._published_ns = now_ns

    def publish_late(self, now_ns: int, after_ns: int) -> None:
        """Publish the frames so far if the last ones were published more than `after_ns` before."""
        if now_ns - self._published_ns > after_ns:
            self._published_ns = now_ns
            self.publish()

    def publish(self) -> None:
        """Make the frames sent so far visible to the peer."""
        if not self.closed and self._outgoing.publish():
            self._wake_up()

    def _wake_up(self) -> None:
        if not self.closed:
            with suppress(BlockingIOError):
                os.eventfd_write(self._wake, 1)

    def _send_waiting(self) -> None:
        """Send the queued frames that have room now, and update `backlog`."""
        backlog = self._is_behind()
        if backlog:
            # ask for a wake-up, then look again: what was released in between causes none
            self._outgoing.writer_waits[0] = 1
            fence()
            self._reclaim()
            backlog = self._is_behind()
        if backlog is not self.backlog:
            self.backlog = backlog
            self.on_backlog(backlog)

    def _is_behind(self) -> bool:
        """Send the queued frames that have room; return whether some are left, or the peer holds much."""
        waiting = self._waiting
        while waiting and self._write_frame(waiting[0]):
            self._waiting_bytes -= waiting.popleft()[3]
        return bool(waiting) or self._heap.used_bytes > self._ample_bytes

    # receiving

    def _on_wake(self) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._woken)
        self.drain()

    def _drain_again(self) -> None:
        self._takes_on = False
        self.drain()

    def drain(self) -> None:
        """Handle received frames, up to a limit, and send frames that were queued for room."""
        if self._closed:
            return
        incoming = self._incoming
        incoming.sleeps[0] = 0  # the peer need not wake this side while it reads
        self._draining = True
        try:
            self._outgoing.check()
            self._releases.check()
            self._on_frames(self, incoming.frames(_AT_ONCE))
        except Exception as exc:  # noqa: BLE001 (one channel's boundary)
            self._on_broken(exc)
            return
        finally:
            self._draining = False
        if self.closed:
            return
        if incoming.consumed():
            self._wake_up()
        self._reclaim()
        if self._done:
            self.release_unviewed()
        if self.backlog:
            self._send_waiting()
        self.publish()
        if not incoming.fall_asleep() and not self._takes_on:
            self._takes_on = True
            self._loop.call_soon(self._drain_again)

    def open(self, arrived: Arrived) -> Iterator[ReceivedFrame]:
        """Yield frames with their metadata and payload. Raises ChannelBroken."""
        (_, kind, flags, _, template, generation, meta_size, size, position), numbers, several = arrived
        for number, data in zip(numbers, several, strict=True):
            fields = kind, flags, number, template, generation
            if position == INLINE:
                yield ReceivedFrame(*fields, bytes(data[:meta_size]), bytes(data[meta_size:]))
            else:
                start = _compute_meta_room(meta_size)
                meta = self._memory[position : position + meta_size] if start else bytes(data)
                # without a variable, which would hold the block until the next frame
                yield ReceivedFrame(*fields, meta, self._view_block(position, start, size))

    def unread(self, arrived: Arrived, count: int) -> None:
        """Leave the last `count` of frames that arrived together to the next turn, which must follow."""
        self._incoming.unread(arrived[0], count)

    def _view_block(self, position: int, start: int, size: int) -> memoryview:
        """Return a view of a block from `start` on; the block is released when no view is left."""
        if position not in self._theirs or position + start + size > self._theirs.stop:
            raise ChannelBroken(f"a block of {size} bytes at {position}")
        block = np.frombuffer(self._memory, np.uint8, size, position + start)
        lease = weakref.ref(block, self._note_unviewed)
        self._blocks[id(lease)] = lease, position
        return block.data

    def _note_unviewed(self, lease: "weakref.ref[Array]") -> None:
        """Note that a block is no longer viewed; called in any thread."""
        first = not self._done
        self._done.append(self._blocks.pop(id(lease))[1])
        if first and not self.closed:
            with suppress(RuntimeError):  # the event loop is closed
                self._loop.call_soon_threadsafe(self.release_unviewed)

    def release_unviewed(self) -> None:
        """Release the peer's blocks that are no longer viewed; wake the peer only if it waits for some."""
        done = self._done
        while done and not self.closed:
            if not self._releases.add(done[0]):
                self._wake_up()  # the rest follows with the next look
                return
            done.popleft()
        if self._incoming.writer_waited():
            self._wake_up()

    def _poll(self) -> None:
        """Handle frames that came without a wake-up, because a lost one must not stall the channel."""
        self._ticker = self._loop.call_later(_LOOK_EVERY_S, self._poll)
        self._heap.tick()
        self.drain()

    def close(self) -> None:
        """Stop sending and receiving. Memory that is still viewed stays mapped."""
        if not self.closed:
            self._closed = True
            self._ticker.cancel()
            self._loop.remove_reader(self._woken)
            self._waiting.clear()
            self._heap.close()
            self._descriptors.close()
            # break the cycle: memory is freed with its last view, not by the collector
            self._on_frames = self._on_broken = self.on_backlog = _do_nothing


def _do_nothing(*_: object) -> None:
    """Do nothing: the channel is closed."""


def _compute_meta_room(size: int) -> int:
    """Return the bytes before the payload in a block, for metadata that is too large for the ring."""
    return 0 if size <= INLINE_BYTES else -(-size // _ALIGNMENT) * _ALIGNMENT


def _copy_parts(memory: memoryview, parts: Sequence[Buffer]) -> None:
    if len(parts) == 1:
        memory[:] = parts[0]
        return
    at = 0
    for part in parts:
        end = at + len(part)
        memory[at:end] = part
        at = end
