"""Communication between a frontend and the engine: frames in both directions, their blocks, and
wake-ups.

Runs on the event loop of either process and never blocks: frames without room are queued in order and
sent later. A block is free again when the receiver has released its last view of it.
"""

import asyncio
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from tpx.errors import Overloaded
from tpx.protocol.memory_budget import MemoryBudget
from tpx.protocol.tensors import Array, Buffer
from tpx.serving.transport.channel import (
    ALIGNMENT,
    HEAP_BYTES,
    ChannelBroken,
    ChannelEnd,
    create_memory,
)
from tpx.serving.transport.ring import INLINE_BYTES, Arrived, FrameHead, PlainHead, fence

_LOOK_EVERY_S = 1
_AT_ONCE = 256
"""Maximum frames taken in one turn of the event loop."""
_AMPLE = 3 / 4
"""Fraction of the limit above which the peer has a backlog: models that produce responses ahead pause."""
GENERATION, READY, CONNECTIONS, CLOSING = 0, 1, 16, 17
"""Indexes of the gauges. The engine writes the generation of its models and its readiness; the frontend
writes its number of connections, and whether it has stopped accepting them.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptors:
    """Shared resources of the two sides: the memory, and an eventfd that wakes each side."""

    memory: int
    wakes_engine: int
    wakes_frontend: int

    @classmethod
    def new(cls) -> "Descriptors":
        """Create them. Raises OSError."""
        flags = os.EFD_NONBLOCK | os.EFD_CLOEXEC
        return cls(
            memory=create_memory("tpx-frontend"),
            wakes_engine=os.eventfd(0, flags),
            wakes_frontend=os.eventfd(0, flags),
        )

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
        self._descriptors = descriptors
        self._budget = budget or MemoryBudget()
        wake, self._woken = descriptors.wakes_frontend, descriptors.wakes_engine
        if not is_engine:
            wake, self._woken = self._woken, wake
        self._end = ChannelEnd(
            descriptors.memory,
            wake,
            is_first=not is_engine,
            limit_bytes=limit_bytes,
            charge=self._budget.take,
        )
        self._heap, self._outgoing = self._end.heap, self._end.outgoing
        self.gauges = self._end.gauges
        """Words that one side writes and the other may read at any time."""
        self.open = self._end.open
        """Yields frames with their metadata and payload. Raises ChannelBroken."""
        self._on_frames = on_frames
        self._on_broken = on_broken
        self._is_engine = is_engine
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Waiting] = deque()
        self._limit_bytes, self._ample_bytes = limit_bytes, int(limit_bytes * _AMPLE)
        self._waiting_bytes = 0
        self.backlog = False
        """True while frames queue for room, or the peer holds so much that the limit is near."""
        self.on_backlog: Callable[[bool], None] = lambda _: None
        """Called when `backlog` changes."""
        self._takes_on = self._publishes = False
        self._draining = False
        """True during `drain`, which publishes at its end everything sent meanwhile."""
        self._loop.add_reader(self._woken, self._on_wake)
        self._ticker = self._loop.call_later(_LOOK_EVERY_S, self._poll)

    @property
    def closed(self) -> bool:
        """True after `close`, when nothing is sent or received any more."""
        return self._end.closed

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
        if self.closed:
            return
        size = len(parts[0]) if len(parts) == 1 else sum(map(len, parts))
        frame = head, meta, parts, size
        if size + len(meta) > INLINE_BYTES:
            self._admit_large(len(meta) + size)
        if self._waiting or not self._end.write(*frame):
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
        if not self._heap.fits(size + ALIGNMENT):
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
        if self.closed:
            return None
        self._reclaim()
        return self._heap.allocate(size)

    def _reclaim(self) -> None:
        """Free the blocks that neither side needs any more."""
        try:
            self._end.reclaim()
        except ChannelBroken as exc:
            self._on_broken(exc)

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

    def publish(self) -> None:
        """Make the frames sent so far visible to the peer."""
        if not self.closed:
            self._end.publish()

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
        while waiting and self._end.write(*waiting[0]):
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
        end, incoming = self._end, self._end.incoming
        if end.closed:
            return
        incoming.sleeps[0] = 0  # the peer need not wake this side while it reads
        self._draining = True
        try:
            self._on_frames(self, end.frames(_AT_ONCE))
        except Exception as exc:  # noqa: BLE001 (one channel's boundary)
            self._on_broken(exc)
            return
        finally:
            self._draining = False
        if self.closed:
            return
        end.consumed()
        self._reclaim()
        end.release()
        if self.backlog:
            self._send_waiting()
        self.publish()
        if not incoming.fall_asleep() and not self._takes_on:
            self._takes_on = True
            self._loop.call_soon(self._drain_again)

    def unread(self, arrived: Arrived, count: int) -> None:
        """Leave the last `count` of frames that arrived together to the next turn, which must follow."""
        self._end.incoming.unread(arrived[0], count)

    def _poll(self) -> None:
        """Handle frames that came without a wake-up, because a lost one must not stall the channel."""
        self._ticker = self._loop.call_later(_LOOK_EVERY_S, self._poll)
        self._heap.tick()
        self.drain()

    def close(self) -> None:
        """Stop sending and receiving. Memory that is still viewed stays mapped."""
        if not self.closed:
            self._ticker.cancel()
            self._loop.remove_reader(self._woken)
            self._waiting.clear()
            self._end.close()
            self._descriptors.close()
            # break the cycle: memory is freed with its last view, not by the collector
            self._on_frames = self._on_broken = self.on_backlog = _do_nothing


def _do_nothing(*_: object) -> None:
    """Do nothing: the channel is closed."""
