"""One end of a channel: sends frames with their blocks, reads the other end's, and wakes it.

All memory is one file without a name: no other process can open it, and nothing is left behind when the
processes die. It is sparse, so its size is address space until it is used. One end is the first, the
other one is not; apart from their places in the memory both are alike.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from tpx.serving.transport.heap import RELEASED_BYTES, Array, Heap, ReleasedPlaces
from tpx.serving.transport.ring import INLINE, INLINE_BYTES, RING_BYTES, Arrived, Buffer, FrameHead, FrameRing

HEAP_BYTES = 32 << 30
"""Address space of the blocks of one direction, if there is as much: two messages of gRPC's maximum size."""
_LEAST_HEAP_BYTES = 16 << 20
_GAUGES_BYTES = 4096
_RING_ROOM = 4096 + RING_BYTES  # a multiple of the page size, so that the heaps are page-aligned
_RELEASED = _GAUGES_BYTES + 2 * _RING_ROOM
HEAPS = _RELEASED + 2 * RELEASED_BYTES
"""Position of the blocks of the first end, followed by those of the other one."""
ALIGNMENT = 64
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
"""Memory that one end shrinks would cause SIGBUS in the other one."""
_WAKE = (1).to_bytes(8, "little")


class ChannelBroken(Exception):
    """Raised for data that a correct peer cannot have written."""


@dataclass
class ReceivedFrame:
    """A frame as received; a view of `payload` keeps its block in use."""

    __slots__ = "flags", "generation", "kind", "meta", "number", "payload", "template"

    kind: int
    flags: int
    number: int
    template: int
    generation: int
    meta: Buffer
    payload: Buffer


def create_memory(name: str) -> int:
    """Return the descriptor of memory for a channel, less where sizes are limited. Raises OSError.

    The `name` is shown in lists of mappings and open files.
    """
    heap_bytes = HEAP_BYTES
    while True:
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, HEAPS + 2 * heap_bytes)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
            mmap.mmap(fd, HEAPS + 2 * heap_bytes).close()
            return fd
        except OSError as exc:
            os.close(fd)
            if exc.errno not in (errno.ENOMEM, errno.EFBIG) or heap_bytes <= _LEAST_HEAP_BYTES:
                raise
        heap_bytes //= 8


class ChannelEnd:
    """One end. A single thread at a time may use it; views of received blocks may end in any thread."""

    def __init__(
        self,
        memory: int,
        wake: int,
        *,
        is_first: bool,
        limit_bytes: int = HEAP_BYTES,
        charge: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Map the memory of a descriptor. The descriptor `wake`, of an eventfd, wakes the other end.

        `limit_bytes` and `charge` are the heap's. Raises ChannelBroken if the memory can shrink, and OSError.
        """
        size = os.fstat(memory).st_size
        heap_bytes = (size - HEAPS) // 2 & -mmap.PAGESIZE
        if heap_bytes <= 0 or fcntl.fcntl(memory, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
            raise ChannelBroken("the memory of a channel is too small, or may get another size")
        self._memory = mmap.mmap(memory, size)
        self._view = memoryview(self._memory)
        self._wake = wake
        self.gauges = self._view[:_GAUGES_BYTES].cast("Q")
        """Words that one side writes and the other may read at any time."""
        rings = [FrameRing(self._view, _GAUGES_BYTES), FrameRing(self._view, _GAUGES_BYTES + _RING_ROOM)]
        released = [ReleasedPlaces(self._view, _RELEASED + at) for at in (0, RELEASED_BYTES)]
        heaps = [HEAPS, HEAPS + heap_bytes]
        if not is_first:
            for pair in (rings, released, heaps):
                pair.reverse()
        self.outgoing, self.incoming = rings
        self._releases, self._released = released
        self.heap = Heap(self._memory, heaps[0], heap_bytes, limit_bytes, charge)
        self._theirs = range(heaps[1], heaps[1] + heap_bytes)
        self._blocks: dict[int, tuple[weakref.ref[Array], int]] = {}
        """The other end's blocks that are viewed here, by the id of a weak reference: arrays have no hash."""
        self._unviewed: deque[int] = deque()
        """Positions of the other end's blocks that are no longer viewed here."""
        self._releasing = threading.Lock()
        self.closed = False
        self.incoming.sleeps[0] = 1  # the first frame must wake this end

    # sending

    def write(self, head: FrameHead, meta: bytes, parts: Sequence[Buffer], size: int) -> bool:
        """Write a frame whose payload, the parts, has `size` bytes. Return False if there is no room.

        The other end sees it after `publish`.
        """
        if len(meta) + size <= INLINE_BYTES:
            memory = self.outgoing.write(head, meta, size, INLINE)
            if memory is None:
                return False
            _copy_parts(memory, parts)
            return True
        heap = self.heap
        start = _compute_meta_room(len(meta))
        lent = None if start else heap.lend(parts)
        place = heap.take(start + size) if lent is None else lent
        if place is None:
            return False
        if self.outgoing.write(head, meta, size, place) is None:
            heap.give(place)
            return False
        if lent is None:
            view = self._view
            if start:
                view[place : place + len(meta)] = meta
            _copy_parts(view[place + start : place + start + size], parts)
        return True

    def publish(self) -> None:
        """Make the frames written so far visible to the other end, and wake it if it sleeps."""
        if self.outgoing.publish():
            self.wake()

    def wake(self) -> None:
        """Wake the other end."""
        with suppress(BlockingIOError):  # it has been woken 2**64 times and has not looked
            os.write(self._wake, _WAKE)

    def reclaim(self) -> None:
        """Free the blocks that neither end needs any more. Raises ChannelBroken."""
        try:
            for place in self._released.take():
                self.heap.give(place)
        except (KeyError, ValueError) as exc:
            raise ChannelBroken("a block was released that is not in use") from exc
        self.heap.reclaim()

    # receiving

    def frames(self, most: int) -> Iterator[Arrived]:
        """Yield up to `most` frames. Raises ValueError for what the other end cannot have written."""
        self.outgoing.check()
        self._releases.check()
        return self.incoming.frames(most)

    def open(self, arrived: Arrived) -> Iterator[ReceivedFrame]:
        """Yield frames with their metadata and payload. Raises ChannelBroken."""
        (_, kind, flags, _, template, generation, meta_size, size, place), numbers, several = arrived
        for number, data in zip(numbers, several):
            fields = kind, flags, number, template, generation
            if place == INLINE:
                yield ReceivedFrame(*fields, bytes(data[:meta_size]), bytes(data[meta_size:]))
            else:
                start = _compute_meta_room(meta_size)
                meta = self._view[place : place + meta_size] if start else bytes(data)
                # without a variable, which would hold the block until the next frame
                yield ReceivedFrame(*fields, meta, self._view_block(place, start, size))

    def _view_block(self, place: int, start: int, size: int) -> memoryview:
        """Return a view of a block from `start` on; the block is released when no view is left."""
        if place not in self._theirs or place + start + size > self._theirs.stop:
            raise ChannelBroken(f"a block of {size} bytes at {place}")
        block = np.frombuffer(self._memory, np.uint8, size, place + start)
        lease = weakref.ref(block, self._note_unviewed)
        self._blocks[id(lease)] = lease, place
        return block.data

    def _note_unviewed(self, lease: weakref.ref[Array]) -> None:
        """Release a block that is no longer viewed; called in any thread."""
        self._unviewed.append(self._blocks.pop(id(lease))[1])
        self.release()

    def release(self) -> None:
        """Release the other end's blocks that are no longer viewed; wake it only if it waits for some.

        Called in any thread, also while it is running in another one, or further up in the same one.
        """
        unviewed = self._unviewed
        while unviewed and self._releasing.acquire(blocking=False):  # otherwise that one goes on with these
            try:
                if self.closed or not self._release_all():
                    return
            finally:
                self._releasing.release()

    def _release_all(self) -> bool:
        """Release blocks; return False if there is room for no more until the other end has looked."""
        unviewed = self._unviewed
        while unviewed:
            if not self._releases.add(unviewed[0]):
                self.wake()
                return False
            unviewed.popleft()
        if self.incoming.writer_waited():
            self.wake()
        return True

    def consumed(self) -> None:
        """Release the space of the frames read."""
        if self.incoming.consumed():
            self.wake()

    def close(self) -> None:
        """Stop sending and releasing, so that `wake` can be closed. Memory that is viewed stays mapped."""
        with self._releasing:
            self.closed = True
        self.heap.close()


def _compute_meta_room(size: int) -> int:
    """Return the bytes before the payload in a block, for metadata that is too large for the ring."""
    return 0 if size <= INLINE_BYTES else -(-size // ALIGNMENT) * ALIGNMENT


def _copy_parts(memory: memoryview, parts: Sequence[Buffer]) -> None:
    if len(parts) == 1:
        memory[:] = parts[0]
        return
    at = 0
    for part in parts:
        end = at + len(part)
        memory[at:end] = part
        at = end
