"""Blocks in a region of shared memory, for messages that are too large for a ring.

The writing side allocates and frees blocks; the other side only reports when it has finished with one.
The region is sparse: blocks occupy memory only while in use and for some time after.
"""

import mmap
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Sequence

import numpy as np

from tpx.protocol.tensors import Array, Buffer

_SMALLEST_BYTES = 4 << 10
_STEPS = 4
"""Block sizes per power of two; at most a fifth of a block is unused."""
_KEPT_BYTES = 64 << 20
"""Maximum bytes of free blocks that keep their pages for the next requests."""
_KEPT_SHARE = 1 / 8
"""The same, as a fraction of the bytes that may be in use."""
_KEPT_TICKS = 5
"""Number of calls of `tick` without a block in use after which pages are returned to the system."""
_WORTH_BYTES = 64 << 10
"""Smallest block whose pages are returned to the system."""


def block_size(size: int) -> int:
    """Round up to a block size: 4, 5, 6 or 7 times a power of two, in whole pages."""
    step = max(_SMALLEST_BYTES, (1 << max(0, size - 1).bit_length()) // (2 * _STEPS))
    return max(1, -(-size // step)) * step


class Heap:
    """Allocates the block of a size that was freed last, because it may still be cached, or else the
    lowest unused memory.
    """

    def __init__(
        self,
        memory: mmap.mmap,
        start: int,
        size: int,
        limit_bytes: int,
        charge: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Allocate in `size` bytes of `memory` from `start` on. Up to `limit_bytes` are expected to be in
        use; `charge` is called with the bytes of every block that is allocated, or freed if negative.
        """
        self._memory = memory
        self._most_kept_bytes = min(_KEPT_BYTES, int(limit_bytes * _KEPT_SHARE))
        self._unused_ticks = 0
        self._charge = charge
        self._start = self._next = start
        self._end = start + size
        self._size = size
        self._free: defaultdict[int, list[int]] = defaultdict(list)
        self._used: dict[int, int] = {}
        self._allocated: dict[int, tuple[weakref.ref[Array], int]] = {}
        """Blocks of arrays, by the id of their weak reference: arrays are not hashable."""
        self._unviewed: deque[int] = deque()
        """Positions of blocks whose array no longer exists."""
        self._pinned: dict[int, list[Sequence[Buffer]]] = {}
        """Parts of arrays that the other side reads, by position."""
        self._address = _get_address(memoryview(memory))
        self.kept_bytes = 0
        """Size of free blocks that still have pages."""
        self.used_bytes = 0
        """Size of blocks in use."""

    @property
    def used(self) -> int:
        """Number of blocks in use."""
        return len(self._used)

    def fits(self, size: int) -> bool:
        """Return whether a block of this size can ever be allocated."""
        return block_size(size) <= self._size

    def allocate(self, size: int) -> int | None:
        """Return the position of a block of at least `size` bytes, None if there is no room now."""
        size = block_size(size)
        # free blocks of other sizes cannot be split, so start over when none is in use
        if not self._used and self._next + size > self._end:
            self._merge_free_blocks()
        free = self._free[size]
        if free:
            position = free.pop()
            self.kept_bytes = max(0, self.kept_bytes - size)
        elif self._next + size <= self._end:
            position = self._next
            self._next += size
        else:
            return None
        self._used[position] = size
        self.used_bytes += size
        self._charge(size)
        return position

    def allocate_array(self, size: int) -> Array | None:
        """Return a block as an array, None if there is no room. It is freed when nothing views the array."""
        self.reclaim()
        position = self.allocate(size)
        if position is None:
            return None
        block = np.frombuffer(self._memory, np.uint8, size, position)
        lease = weakref.ref(block, self._note_unviewed)
        self._allocated[id(lease)] = lease, position
        return block

    def reclaim(self) -> None:
        """Free the blocks of arrays that no longer exist."""
        while self._unviewed:
            self._free_block(self._unviewed.popleft())

    def _note_unviewed(self, lease: "weakref.ref[Array]") -> None:
        """Note that an array no longer exists; called in any thread."""
        self._unviewed.append(self._allocated.pop(id(lease))[1])

    def pin(self, parts: Sequence[Buffer]) -> int | None:
        """Return the position of parts that form one piece of an allocated array, and keep them until
        `free`.

        Returns None for other parts, which must be copied.
        """
        first = end = _get_address(parts[0])
        for part in parts:
            if _get_address(part) != end:
                return None
            end += len(part)
        position = first - self._address
        if not self._start <= position < self._end:
            return None
        self._pinned.setdefault(position, []).append(parts)
        return position

    def free(self, position: int) -> None:
        """Free a block, or unpin parts. Raises KeyError for any other position."""
        pinned = self._pinned.get(position)
        if pinned is None:
            self._free_block(position)
            return
        pinned.pop()
        if not pinned:
            del self._pinned[position]

    def _free_block(self, position: int) -> None:
        size = self._used.pop(position)
        self.used_bytes -= size
        self._charge(-size)
        if self.kept_bytes + size > self._most_kept_bytes and size >= _WORTH_BYTES:
            self._memory.madvise(mmap.MADV_REMOVE, position, size)
        else:
            self.kept_bytes += size
        self._free[size].append(position)

    def close(self) -> None:
        """Stop charging: what is in use belongs to the other side."""
        self._charge(-self.used_bytes)
        self._charge = lambda _: None

    def tick(self) -> None:
        """Return the pages of free blocks to the system when no block was in use for some time; called
        once per second.
        """
        self._unused_ticks = 0 if self._used else self._unused_ticks + 1
        if self._unused_ticks == _KEPT_TICKS and self.kept_bytes:
            self._merge_free_blocks()

    def _merge_free_blocks(self) -> None:
        """Merge all free blocks into one region; no block may be in use."""
        self._memory.madvise(mmap.MADV_REMOVE, self._start, self._size)
        self._next = self._start
        self._free.clear()
        self.kept_bytes = 0


def _get_address(part: Buffer) -> int:
    address: int = np.frombuffer(part, np.uint8).__array_interface__["data"][0] if len(part) else 0
    return address
