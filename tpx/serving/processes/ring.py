"""A ring of frames in shared memory: one process writes, another one reads.

A frame is a fixed head, meta data and a payload; those of more than `INLINE_BYTES` lie in a block of the
heap, and the frame says where. Each counter has one writer and a cache line of its own, and is stored by one
aligned store. The writer looks at the reader's flag after it has published, the reader sets the flag before
it looks a last time: between the two each needs a full barrier.
"""

import struct
import threading
from collections.abc import Iterator

from tpx.protocol.tensors import Buffer

RING_BYTES = 1 << 20
COUNTERS_BYTES = 512
INLINE_BYTES = 8 << 10
HEAD = struct.Struct("=IBBxxIIIIQQ")
"""Size of the frame in the ring, kind, flags, number, template, generation, bytes of meta data and of
payload, place of the block or INLINE."""
INLINE = (1 << 64) - 1
_SKIP = 255
"""FrameKind of a frame that fills the ring's end."""
_ALIGNMENT = 8
_fence_lock = threading.Lock()

FrameHead = tuple[int, int, int, int, int]
"""FrameKind, flags, number, template, generation: their meaning is that of who writes and reads frames."""
Fields = tuple[int, int, int, int, int, int, int, int, int]
Arrived = tuple[Fields, memoryview]
"""A frame's head, and what is in the ring of it: valid until `consumed`."""


def fence() -> None:
    """Order all stores before it with all loads after it: taking a lock is an atomic exchange."""
    with _fence_lock:
        pass


class FrameRing:
    """One direction. The writer uses `write` and `publish`, the reader `frames` and `consumed`."""

    def __init__(self, memory: memoryview, start: int) -> None:
        counters = [memory[start + i * 128 : start + i * 128 + 8].cast("Q") for i in range(4)]
        self._written, self._read, self.sleeps, self.writer_waits = counters
        self._frames = memory[start + COUNTERS_BYTES : start + COUNTERS_BYTES + RING_BYTES]
        self._at = 0
        """The writer's or the reader's own position."""

    # the writer

    def write(self, head: FrameHead, meta: bytes, payload_size: int, place: int) -> memoryview | None:
        """Write a frame that the reader does not see yet; returns where its payload goes, None if the ring is
        full."""
        inline = place == INLINE
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
        """Write a frame without meta data that the reader does not see yet; returns False if the ring is
        full."""
        size = len(data)
        need = (HEAD.size + size + _ALIGNMENT - 1) & -_ALIGNMENT
        here = self._at
        at = here % RING_BYTES
        if RING_BYTES - at < need or here + need - self._read[0] > RING_BYTES:
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
        """Show the reader what was written; returns whether it has to be woken."""
        if self._written[0] == self._at:
            return False
        self._written[0] = self._at
        fence()
        if self.sleeps[0]:
            self.sleeps[0] = 0
            return True
        return False

    # the reader

    def fall_asleep(self) -> bool:
        """Have the writer wake this side from now on; False if something has come meanwhile."""
        self.sleeps[0] = 1
        fence()
        if self._written[0] == self._at:
            return True
        self.sleeps[0] = 0
        return False

    def frames(self, most: int) -> Iterator[Arrived]:
        """Yield the frames that have come and come meanwhile, `most` of them. Raises ValueError."""
        frames, unpack, written = self._frames, HEAD.unpack_from, self._written
        here = self._at
        come = written[0]
        for _ in range(most):
            if here == come:
                come = written[0]
                if here == come:
                    return
            at = here % RING_BYTES
            left = RING_BYTES - at
            if left < HEAD.size:
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
        """Let the writer use the room of what was read; returns whether it waits for it."""
        if self._read[0] == self._at:
            return False
        self._read[0] = self._at
        fence()
        if self.writer_waits[0]:
            self.writer_waits[0] = 0
            return True
        return False
