"""Ring buffers in shared memory, with one writing and one reading process: of frames, and of blocks
that are no longer needed.

A frame consists of a fixed head, metadata and a payload. Data of more than `INLINE_BYTES` is in a
block of the heap, whose position is in the head.

Each counter has a single writer and its own cache line, and is updated by one aligned store. After
publishing, the writer checks if the reader sleeps; the reader sets that flag before it checks for
frames a last time. Both need a full memory barrier in between (`fence`); without it, each could miss the
other's store and the wake-up would be lost.
"""

import struct
import threading
from collections.abc import Iterator, Sequence
from functools import lru_cache

from tpx.protocol.tensors import Buffer

RING_BYTES = 1 << 20
COUNTERS_BYTES = 512
RELEASED_BYTES = 64 << 10
INLINE_BYTES = 8 << 10
HEAD = struct.Struct("=IBBxxIIIIQQ")
"""Head of a frame: size in the ring, kind, flags, number, template, generation, bytes of metadata,
bytes of payload, position of the block or INLINE.
"""
INLINE = (1 << 64) - 1
_SKIP = 255
"""Kind of a frame that fills the end of the ring."""
_ALIGNMENT = 8
_ALIKE = 64
"""Maximum number of frames that a reader gets at once."""
_fence_lock = threading.Lock()
"""Used for its memory order only: one thread of a process, the event loop's, takes it."""

FrameHead = tuple[int, int, int, int, int]
"""Kind, flags, number, template and generation of a frame, which the ring does not interpret."""
Fields = tuple[int, int, int, int, int, int, int, int, int]
Arrived = tuple[Fields, Sequence[int], Sequence[Buffer]]
"""Head, number and data of a frame, or of several plain ones whose heads differ in the number only.

The data of a frame that is not plain is in the ring, and valid until `consumed`.
"""


def fence() -> None:
    """Order all stores before it with all loads after it, as a full memory barrier.

    Python has no barrier, so an uncontended lock serves as one (0.1 us each time; on x86 the atomic exchange
    that takes it is the barrier). On ARM one lock is not enough: before 3.13, CPython's locks are glibc's
    semaphores, which are taken with acquire and left with release order, so a store from before and a load
    from after it may both move in between and pass each other. Leaving a lock and taking one again
    cannot be passed: no store moves down past a release, no load up past an acquire, and ARMv8 keeps a
    store-release before a later load-acquire in program order (Arm Architecture Reference Manual, B2.3,
    barrier-ordered-before). This follows from the memory model; it was not measured on an ARM machine.
    """
    with _fence_lock:
        pass
    with _fence_lock:
        pass


@lru_cache(maxsize=1024)
def _make_plain_layout(size: int) -> struct.Struct:
    """Return the layout of a plain frame: before its number, the number, the rest of the head, payload."""
    return struct.Struct(f"=8sI{HEAD.size - 12}s{size}s{-size % _ALIGNMENT}x")


class PlainHead:
    """Head of plain frames, which have a payload of one size in the ring and no metadata."""

    __slots__ = ("begin", "pack_into", "rest", "size")

    def __init__(self, kind: int, flags: int, template: int, generation: int, size: int) -> None:
        layout = _make_plain_layout(size)
        self.size = layout.size
        head = HEAD.pack(layout.size, kind, flags, 0, template, generation, 0, size, INLINE)
        self.begin, self.rest = head[:8], head[12:]
        self.pack_into = layout.pack_into

    def head(self, number: int) -> FrameHead:
        """Return the head of one frame."""
        _, kind, flags, _, template, generation, *_ = HEAD.unpack(self.begin + bytes(4) + self.rest)
        return kind, flags, number, template, generation


class FrameRing:
    """One direction. The writer uses `write` and `publish`, the reader `frames` and `consumed`."""

    def __init__(self, memory: memoryview, start: int) -> None:
        counters = [memory[start + i * 128 : start + i * 128 + 8].cast("Q") for i in range(4)]
        self._written, self._read, self.sleeps, self.writer_waits = counters
        self._frames = memory[start + COUNTERS_BYTES : start + COUNTERS_BYTES + RING_BYTES]
        self._at = 0
        """Position of this side, the writer or the reader."""
        self._checked = 0
        """The writer's position when it last checked if the reader sleeps."""

    # the writer

    def write(self, head: FrameHead, meta: bytes, payload_size: int, position: int) -> memoryview | None:
        """Write a frame that is not yet visible to the reader.

        Returns the memory for its payload, None if the ring is full.
        """
        inline = position == INLINE
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
        HEAD.pack_into(frames, at, need, *head, len(meta), payload_size, position)
        self._at += need
        at += HEAD.size
        if meta and in_ring:
            frames[at : at + len(meta)] = meta
            at += len(meta)
        return frames[at : at + payload_size] if inline else frames[at:at]

    def append(self, plain: PlainHead, number: int, data: bytes) -> bool:
        """Write a plain frame that is not yet visible to the reader. Returns False if the ring is full."""
        start, size = self._at, plain.size
        at = start % RING_BYTES
        if RING_BYTES - at < size or start + size - self._read[0] > RING_BYTES:  # at the end, or full
            memory = self.write(plain.head(number), b"", len(data), INLINE)
            if memory is None:
                return False
            memory[:] = data
            return True
        plain.pack_into(self._frames, at, plain.begin, number, plain.rest, data)
        self._at = start + size
        return True

    def show(self) -> None:
        """Make the written frames visible to a reader that is awake. Another one needs `publish`."""
        self._written[0] = self._at

    def publish(self) -> bool:
        """Make the written frames visible to the reader. Returns whether it must be woken."""
        if self._checked == self._at:
            return False
        self._written[0] = self._checked = self._at
        fence()  # before loading the flag
        if self.sleeps[0]:
            self.sleeps[0] = 0
            return True
        return False

    def check(self) -> None:
        """Raise ValueError if the reader's position is none: the writer would wait for room forever."""
        _check_count(self._at - self._read[0], RING_BYTES)

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
        frames = self._frames
        start = come = self._at
        while most > 0:
            if start == come:
                come = self._written[0]  # more may have arrived meanwhile
                if start == come:
                    return
                _check_count(come - start, RING_BYTES)
            at = start % RING_BYTES
            left = min(RING_BYTES - at, come - start)
            if RING_BYTES - at < HEAD.size:  # too little room for the head of a skipping frame
                self._at = start = start + RING_BYTES - at
                continue
            fields: Fields = HEAD.unpack_from(frames, at)
            size = fields[0]
            if not HEAD.size <= size <= left:
                raise ValueError(f"a frame of {size} bytes in the last {left} of the ring")
            if fields[1] == _SKIP:
                self._at = start = start + size
                continue
            numbers, data = self._read_frames(at, fields, left, min(most, _ALIKE))
            most -= len(numbers)
            self._at = start = start + size * len(numbers)
            yield fields, numbers, data

    def _read_frames(
        self, at: int, fields: Fields, left: int, most: int
    ) -> tuple[Sequence[int], Sequence[Buffer]]:
        """Return number and data of a frame; of a plain one, also those of the next with the same head."""
        size, _, _, number, _, _, meta_size, payload_size, position = fields
        in_ring = meta_size if meta_size <= INLINE_BYTES else 0
        if position == INLINE:
            in_ring = meta_size + payload_size
        if HEAD.size + in_ring > size:
            raise ValueError(f"a frame of {size} bytes with {meta_size} and {payload_size} bytes in it")
        if position != INLINE or meta_size:
            return (number,), (self._frames[at + HEAD.size : at + HEAD.size + in_ring],)
        layout = _make_plain_layout(payload_size)
        if layout.size != size:
            raise ValueError(f"a frame of {size} bytes with a payload of {payload_size}")
        several = layout.iter_unpack(self._frames[at : at + size * min(left // size, most)])
        begin, number, rest, payload = next(several)
        numbers, payloads = [number], [payload]
        for other_begin, number, other_rest, payload in several:
            if other_rest != rest or other_begin != begin:
                break
            numbers.append(number)
            payloads.append(payload)
        return numbers, payloads

    def unread(self, fields: Fields, count: int) -> None:
        """Take back the last `count` of the frames that `frames` has just yielded; they come again with its
        next call.
        """
        self._at -= fields[0] * count

    def consumed(self) -> bool:
        """Release the space of the frames read. Returns whether the writer waits for it."""
        if self._read[0] == self._at:
            return False
        self._read[0] = self._at
        return self.writer_waited()

    def writer_waited(self) -> bool:
        """Return whether the writer waits for room and must be woken, after some was made."""
        fence()  # before loading the flag
        if self.writer_waits[0]:
            self.writer_waits[0] = 0
            return True
        return False


class ReleasedBlocks:
    """Positions of blocks that the process which reads them no longer needs.

    Nothing is ahead of them: the process that owns the blocks looks here before it allocates one, however
    many frames it has yet to read.
    """

    def __init__(self, memory: memoryview, start: int) -> None:
        words = memory[start : start + RELEASED_BYTES].cast("Q")
        self._added, self._taken, self._positions = words[:1], words[16:17], words[32:]
        self._at = 0
        """Number of positions that this side has added or taken."""

    def check(self) -> None:
        """Raise ValueError if the owner's position is none."""
        _check_count(self._at - self._taken[0], len(self._positions))

    def add(self, position: int) -> bool:
        """Add the position of a block. Returns False if there is no room."""
        if self._at - self._taken[0] >= len(self._positions):
            return False
        self._positions[self._at % len(self._positions)] = position
        self._at += 1
        self._added[0] = self._at
        return True

    def take(self) -> Sequence[int]:
        """Return the positions added since the last call. Raises ValueError if there cannot be as many."""
        added = self._added[0]
        if added == self._at:
            return ()
        count = len(self._positions)
        _check_count(added - self._at, count)
        places = [self._positions[number % count] for number in range(self._at, added)]
        self._taken[0] = self._at = added
        return places


def _check_count(count: int, most: int) -> None:
    """Raise ValueError for a difference of two counters that cannot be."""
    if not 0 <= count <= most:
        raise ValueError(f"{count} bytes or blocks ahead, of at most {most}")
