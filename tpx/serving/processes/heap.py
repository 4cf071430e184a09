"""Blocks in a stretch of shared memory: what is too large for a ring travels in them.

The side that writes takes and frees blocks; the other side only says when it has done with one. The stretch
is sparse: memory is there for what is in use, and for what was lately.
"""

import mmap
import weakref
from collections import defaultdict, deque
from collections.abc import Sequence

import numpy as np

from tpx.protocol.tensors import Array, Buffer

_SMALLEST_BYTES = 4 << 10
_STEPS = 4
"""Sizes of blocks between two powers of two: at most a fifth of a block is not used."""
_KEPT_BYTES = 64 << 20
"""Free blocks whose pages stay: the next requests take these."""
_WORTH_BYTES = 64 << 10
"""Pages of smaller blocks are never given back."""


def block_size(size: int) -> int:
    """Round up to the size of a block: 4, 5, 6 or 7 times a power of two, and whole pages."""
    step = max(_SMALLEST_BYTES, (1 << max(0, size - 1).bit_length()) // (2 * _STEPS))
    return max(1, -(-size // step)) * step


class Heap:
    """Takes the lowest unused memory, or the block of a size that was freed last and is in the caches yet."""

    def __init__(self, memory: mmap.mmap, start: int, size: int) -> None:
        self._memory = memory
        self._start = self._next = start
        self._end = start + size
        self._size = size
        self._free: defaultdict[int, list[int]] = defaultdict(list)
        self._used: dict[int, int] = {}
        self._allocated: dict[int, tuple[weakref.ref[Array], int]] = {}
        """Blocks of arrays, by the id of the reference: arrays have no hash."""
        self._unviewed: deque[int] = deque()
        """Blocks whose array is gone."""
        self._lent: dict[int, list[Sequence[Buffer]]] = {}
        """Parts of arrays that the other side views, by their place."""
        self._address = _address_of(memoryview(memory))
        self.kept_bytes = 0
        """Free blocks that have pages."""

    @property
    def used(self) -> int:
        """Blocks in use."""
        return len(self._used)

    def fits(self, size: int) -> bool:
        """Tell whether a block of this size can ever be had."""
        return block_size(size) <= self._size

    def take(self, size: int) -> int | None:
        """Return where a block of at least `size` bytes begins, None while there is no room for it."""
        size = block_size(size)
        if not self._used and self._next + size > self._end:
            self._begin_anew()
        free = self._free[size]
        if free:
            place = free.pop()
            self.kept_bytes = max(0, self.kept_bytes - size)
        elif self._next + size <= self._end:
            place = self._next
            self._next += size
        else:
            return None
        self._used[place] = size
        return place

    def allocate(self, size: int) -> Array | None:
        """Return a block as an array, None if there is no room. It is free when nothing views the array."""
        self.reclaim()
        place = self.take(size)
        if place is None:
            return None
        block = np.frombuffer(self._memory, np.uint8, size, place)
        lease = weakref.ref(block, self._gone)
        self._allocated[id(lease)] = lease, place
        return block

    def reclaim(self) -> None:
        """Free the blocks of arrays that are gone."""
        while self._unviewed:
            self._free_block(self._unviewed.popleft())

    def _gone(self, lease: "weakref.ref[Array]") -> None:
        """Called in any thread."""
        self._unviewed.append(self._allocated.pop(id(lease))[1])

    def lend(self, parts: Sequence[Buffer]) -> int | None:
        """Return where parts lie that are one piece of an allocated array, and hold them until `give`."""
        first = end = _address_of(parts[0])
        for part in parts:
            if _address_of(part) != end:
                return None
            end += len(part)
        place = first - self._address
        if not self._start <= place < self._end:
            return None
        self._lent.setdefault(place, []).append(parts)
        return place

    def give(self, place: int) -> None:
        """Free a block, or take back what was lent. Raises KeyError for what is neither."""
        lent = self._lent.get(place)
        if lent is None:
            self._free_block(place)
            return
        lent.pop()
        if not lent:
            del self._lent[place]

    def _free_block(self, place: int) -> None:
        size = self._used.pop(place)
        if self.kept_bytes + size > _KEPT_BYTES and size >= _WORTH_BYTES:
            self._memory.madvise(mmap.MADV_REMOVE, place, size)
        else:
            self.kept_bytes += size
        self._free[size].append(place)

    def _begin_anew(self) -> None:
        """Make one stretch of all blocks, however they were cut."""
        self._memory.madvise(mmap.MADV_REMOVE, self._start, self._size)
        self._next = self._start
        self._free.clear()
        self.kept_bytes = 0


def _address_of(part: Buffer) -> int:
    address: int = np.frombuffer(part, np.uint8).__array_interface__["data"][0] if len(part) else 0
    return address
