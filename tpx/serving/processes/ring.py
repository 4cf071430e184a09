"""Ring buffer of frames in shared memory, with one writing and one reading process.

A frame consists of a fixed head, metadata and a payload. Data of more than `INLINE_BYTES` is in a
block of the heap, whose position is in the head.

Each counter has a single writer and its own cache line, and is updated by one aligned store. After
publishing, the writer checks if the reader sleeps; the reader sets that flag before it checks for
frames a last time. Both need a full memory barrier in between; without it, each could miss the other's
store and the wake-up would be lost.
"""

import struct
import threading
from collections.abc import Iterator

from tpx.protocol.tensors import Buffer

RING_BYTES = 1 << 20
COUNTERS_BYTES = 512
INLINE_BYTES = 8 << 10
HEAD = struct.Struct("=IBBxxIIIIQQ")
"""Head of a frame: size in the ring, kind, flags, number, template, generation, bytes of metadata,
bytes of payload, position of the block or INLINE.
"""
INLINE = (1 << 64) - 1
_SKIP = 255
"""Kind of a frame that fills the end of the ring."""
_ALIGNMENT = 8
_fence_lock = threading.Lock()

FrameHead = tuple[int, int, int, int, int]
"""Kind, flags, number, template and generation of a frame, which the ring does not interpret."""
Fields = tuple[int, int, int, int, int, int, int, int, int]
Arrived = tuple[Fields, memoryview]
"""Head of a frame and its data in the ring; valid until `consumed`."""


def fence() -> None:
    """Order all stores before it with all loads after it: acquiring a lock is an atomic exchange."""
    with _fence_lock:
        pass


class FrameRing:
    """One direction. The writer uses `write` and `publish`, the reader `frames` and `consumed`."""

    def __init__(self, memory: memoryview, start: int) -> None:
        counters = [memory[start + i * 128 : start + i * 128 + 8].cast("Q") for i in range(4)]
        self._written, self._read, self.sleeps, self.writer_waits = counters
        self._frames = memory[start + COUNTERS_BYTES : start + COUNTERS_BYTES + RING_BYTES]
        self._at = 0
        """Position of this side, the writer or the reader."""

    # the writer

    def write(self, head: FrameHead, meta: bytes, payload_size: int, place: int) -> memoryview | None:
        """Write a frame that is not yet visible to the reader.

        Returns the memory for its payload, None if the ring is full.
        """
        inline = place == INLINE
        # with a block, only metadata is in the ring, unless it is too large and in the block, too
        in_ring = len(meta) + payload_size if inline else len(meta) if len(meta) <= INLINE_BYTES else 0
        need = HEAD.size + in_ring
        need = (need + _ALIGNMENT - 1) & -_ALIGNMENT
        at = self._at % RING_BYTES
        left = RING_BYTES - at
        skipped = left if left < need else 0
        if self._at + skipped + need - self._read[0] > RING_BYTES:
            return None
        frames = self._frames
        if skipped:
            if left >= HEAD.size:
                HEAD.pack_into(frames, at, left, _SKIP, 0, 0, 0, 0, 0, 0, 0)
            self._at += left
            at = 0
        HEAD.pack_into(frames, at, need, *head, len(meta), payload_size, place)
        self._at += need
        at += HEAD.size
        if meta and in_ring:
            frames[at : at + len(meta)] = meta
            at += len(meta)
        return frames[at : at + payload_size] if inline else frames[at:at]

    def append(self, head: FrameHead, data: Buffer) -> bool:
        """Write a frame without metadata that is not yet visible to the reader. Returns False if full."""
        size = len(data)
        need = (HEAD.size + size + _ALIGNMENT - 1) & -_ALIGNMENT
        here = self._at
        at = here % RING_BYTES
        if RING_BYTES - at < need or here + need - self._read[0] > RING_BYTES:  # at the end, or full
            room = self.write(head, b"", size, INLINE)
            if room is None:
                return False
            room[:] = data
            return True
        frames = self._frames
        HEAD.pack_into(frames, at, need, *head, 0, size, INLINE)
        at += HEAD.size
        frames[at : at + size] = data
        self._at = here + need
        return True

    def publish(self) -> bool:
        """Make the written frames visible to the reader. Returns whether it must be woken."""
        if self._written[0] == self._at:
            return False
        self._written[0] = self._at
        fence()  # before loading the flag
        if self.sleeps[0]:
            self.sleeps[0] = 0
            return True
        return False

    # the reader

    def fall_asleep(self) -> bool:
        """Ask to be woken by the next frame. Returns False if one has arrived meanwhile."""
        self.sleeps[0] = 1
        fence()  # before loading the writer's position
        if self._written[0] == self._at:
            return True
        self.sleeps[0] = 0
        return False

    def frames(self, most: int) -> Iterator[Arrived]:
        """Yield up to `most` frames, also ones that arrive meanwhile. Raises ValueError for invalid ones."""
        frames, unpack, written = self._frames, HEAD.unpack_from, self._written
        here = self._at
        come = written[0]
        for _ in range(most):
            if here == come:
                come = written[0]  # more may have arrived meanwhile
                if here == come:
                    return
            at = here % RING_BYTES
            left = RING_BYTES - at
            if left < HEAD.size:  # too little room for the head of a skipping frame
                self._at = here = here + left
                continue
            fields: Fields = unpack(frames, at)
            size = fields[0]
            if not HEAD.size <= size <= left:
                raise ValueError(f"a frame of {size} bytes, {left} before the end of the ring")
            self._at = here = here + size
            if fields[1] == _SKIP:
                continue
            start = end = at + HEAD.size
            if fields[8] == INLINE:
                end += fields[6] + fields[7]
            elif fields[6] <= INLINE_BYTES:
                end += fields[6]
            if end > at + size:
                raise ValueError(f"a frame of {size} bytes with {fields[6]} and {fields[7]} bytes in it")
            yield fields, frames[start:end]

    def consumed(self) -> bool:
        """Release the space of the frames read. Returns whether the writer waits for it."""
        if self._read[0] == self._at:
            return False
        self._read[0] = self._at
        fence()
        if self.writer_waits[0]:
            self.writer_waits[0] = 0
            return True
        return False
