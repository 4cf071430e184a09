"""Shared memory for tensors and large messages, from one process to another.

The memory has no name (memfd): no other process can open it, nothing is left behind when either end
dies, and the size of /dev/shm does not matter. It is much larger than needed, but sparse: only what was
allocated is ever touched. Its first page has words that the writer sets and the reader may read at any
time. Then there is a flag for each unit of memory. The writer sets that of a block's first unit, the reader
clears it with its last view, so freeing needs no message, and any thread may do it.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections import deque
from collections.abc import Callable, Sequence
from functools import lru_cache
from heapq import heappop, heappush
from typing import Any, Union

import numpy as np

Buffer = Union[bytes, bytearray, memoryview]

RESERVED_BYTES = 32 << 30
"""Address space of one direction, if the process may have as much: two messages of gRPC's maximum size."""
_LEAST_BYTES = 32 << 20
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW  # a peer that shrinks the memory would cause SIGBUS here
_UNIT_BITS = 12
_UNIT_BYTES = 1 << _UNIT_BITS
"""Unit of block sizes, and the size of the words at the start."""
_STEPS = 4
"""Block sizes per power of two; at most a fifth of a block is unused."""
_SENT, _PINNED = 1, 2
"""Flags of a block that only the reader needs, and of a part of an array that the writer may view, too."""
_KEPT_BYTES = 64 << 20
"""Bytes at the start of the memory whose pages stay with it: most blocks are there."""
_WORTH_BYTES = 64 << 10
"""Smallest block behind them whose pages are returned to the system when it is freed."""
_KEPT_TICKS = 5
"""Number of calls of `tick` without a block in use after which all pages are returned to the system."""


def create_memory(size: int) -> tuple[int, BlockMemory]:
    """Return a descriptor and a mapping of new memory that cannot change its size. Raises OSError."""
    fd = os.memfd_create("tpx-transport", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        return fd, BlockMemory(fd)
    except OSError:
        os.close(fd)
        raise


def reserve_memory() -> tuple[int, BlockMemory]:
    """Return new memory, less where the size of memory or files is limited. Raises OSError."""
    size = RESERVED_BYTES
    while True:
        try:
            return create_memory(size)
        except OSError as exc:
            if exc.errno not in (errno.ENOMEM, errno.EFBIG) or size <= _LEAST_BYTES:
                raise
        size //= 8


class BlockMemory:
    """A mapping of shared memory, unmapped with its last view; the reader uses `view`."""

    __slots__ = ("_abandoned", "_mapped", "address", "flags", "memory", "size", "start", "words")

    def __init__(self, fd: int) -> None:
        """Map the memory that a descriptor refers to; the descriptor can be closed.

        Raises OSError, and ValueError if another process could change the size.
        """
        self.size = os.fstat(fd).st_size
        if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS != _SEALS or self.size < 2 * _UNIT_BYTES:
            raise ValueError("the shared memory is too small, or its size can change")
        self._abandoned = False
        mapped = self._mapped = mmap.mmap(fd, self.size)
        self.memory = memoryview(mapped)
        self.words = self.memory[:_UNIT_BYTES].cast("Q")
        """Words that the writer sets and the reader may read at any time."""
        end = _UNIT_BYTES + (self.size >> _UNIT_BITS)
        self.flags = self.memory[_UNIT_BYTES:end]
        self.start = -(-end // _UNIT_BYTES) * _UNIT_BYTES
        """Offset of the first block."""
        self.address = _get_address(self.memory)

    def view(self, location: int, size: int) -> memoryview:
        """Return the bytes of a block, which is freed with the last view of it. Raises ValueError."""
        if location < self.start or location + size > self.size:
            raise ValueError(f"there is no block of {size} bytes at {location} in a memory of {self.size}")
        array: Any = np.asarray(_Lease(self, location, size, self._release))
        return memoryview(array)

    def _release(self, location: int, size: int) -> None:
        """Free a block that is no longer viewed; called in any thread."""
        if not self._abandoned:
            if location + size > _KEPT_BYTES and self.flags[location >> _UNIT_BITS] == _SENT:
                self.drop_pages(location, size)
            self.flags[location >> _UNIT_BITS] = 0

    def abandon(self) -> None:
        """Free no more blocks, because this process is a fork of the one that reads them."""
        self._abandoned = True

    def drop_pages(self, location: int, size: int, kept: int = _KEPT_BYTES) -> None:
        """Return the pages of a large block to the system, unless it is in the first `kept` bytes."""
        start, end = -(-location // mmap.PAGESIZE) * mmap.PAGESIZE, location + size
        if end > kept and size >= _WORTH_BYTES:
            self._mapped.madvise(mmap.MADV_REMOVE, start, end - end % mmap.PAGESIZE - start)


class _Lease:
    """Base object of every array over a block; reports when none is left."""

    __slots__ = ("__array_interface__", "_ended", "_location", "_size")

    def __init__(
        self, memory: BlockMemory, location: int, size: int, ended: Callable[[int, int], None]
    ) -> None:
        """`ended` keeps the memory mapped, and is called in any thread."""
        self._location, self._size, self._ended = location, size, ended
        self.__array_interface__ = {
            "data": (memory.address + location, False),
            "shape": (size,),
            "typestr": "|u1",
            "version": 3,
        }

    def __del__(self) -> None:
        self._ended(self._location, self._size)


@lru_cache(maxsize=1024)
def block_size(size: int) -> int:
    """Round up to a block size: 4, 5, 6 or 7 times a power of two, in whole units."""
    step = max(_UNIT_BYTES, (1 << max(0, size - 1).bit_length()) // (2 * _STEPS))
    return max(1, -(-size // step)) * step


def copy_into(memory: memoryview, data: Buffer) -> None:
    """Copy `data`, which is as long as `memory`."""
    if len(memory) >= 1 << 16:
        # numpy copies without the interpreter lock
        np.copyto(np.frombuffer(memory, np.uint8), np.frombuffer(data, np.uint8))
    else:
        memory[:] = memoryview(data).cast("B")


class Blocks:
    """The writer's side of shared memory: allocates the free block of a size with the lowest offset, or else
    the lowest unused memory. It begins again at the start whenever no block is in use.
    """

    def __init__(self, memory: BlockMemory, charge: Callable[[int], None] = lambda _: None) -> None:
        """`charge` is called with the bytes of every block that is allocated, or freed if negative."""
        self._memory = memory
        self._charge = charge
        self._next = memory.start
        self._free: dict[int, list[int]] = {}
        """Heaps of the free blocks, by size."""
        self._read: deque[tuple[int, int, Sequence[Buffer]]] = deque()
        """Blocks that the reader has not freed, as far as known: location, size, and pinned parts."""
        self._unsent: list[int] = []
        """Blocks that no frame has told the reader of."""
        self._unviewed: deque[tuple[int, int]] = deque()
        """Blocks whose array no longer exists."""
        self._unused_ticks = 0
        self.used_bytes = 0
        """Size of blocks in use, as far as known."""

    def put(self, data: Buffer, size: int) -> int:
        """Copy `data` into a block and return its location. Raises MemoryError."""
        location = self.reserve(size)
        copy_into(self._memory.memory[location : location + size], data)
        return location

    def reserve(self, size: int) -> int:
        """Return the location of a block to fill, which is freed by the reader. Raises MemoryError."""
        size = block_size(size)
        location = self._allocate(size)
        self._memory.flags[location >> _UNIT_BITS] = _SENT
        self._read.append((location, size, ()))
        self._unsent.append(location)
        return location

    def block(self, location: int, size: int) -> memoryview:
        """Return the memory of a reserved block, which any thread may fill."""
        return self._memory.memory[location : location + size]

    def allocate_array(self, size: int) -> Any:
        """Return a block as an array, which is freed when nothing views it. Raises MemoryError."""
        location = self._allocate(block_size(size))
        return np.asarray(_Lease(self._memory, location, size, self._note_unviewed))

    def _note_unviewed(self, location: int, size: int) -> None:
        """Note that an array no longer exists; called in any thread."""
        self._unviewed.append((location, block_size(size)))

    def pin(self, parts: Sequence[Buffer]) -> int | None:
        """Return the location of parts that form one piece of an allocated array, and keep them until the
        reader has freed them.

        Returns None for other parts, which must be copied.
        """
        first = end = _get_address(parts[0])
        for part in parts:
            if _get_address(part) != end:
                return None
            end += len(part)
        location = first - self._memory.address
        if not self._memory.start <= location < self._next or self._memory.flags[location >> _UNIT_BITS]:
            return None
        self._memory.flags[location >> _UNIT_BITS] = _PINNED
        self._read.append((location, 0, parts))
        self._unsent.append(location)
        return location

    def sent(self) -> None:
        """Leave the blocks reserved since the last call to the reader."""
        self._unsent.clear()

    def take_back(self) -> None:
        """Free the blocks reserved since the last call of `sent`: their frame is not sent."""
        for location in self._unsent:
            self._memory.flags[location >> _UNIT_BITS] = 0
        self._unsent.clear()

    @property
    def free_bytes(self) -> int:
        """Bytes that no block occupies, or only one that has been freed."""
        self.collect()
        return self._memory.size - self._memory.start - self.used_bytes

    def collect(self, in_use: int | None = None) -> None:
        """Free the blocks that neither side needs any more, from those checked longest ago on, until `in_use`
        others were found.
        """
        read, flags = self._read, self._memory.flags
        left = len(read) if in_use is None else in_use
        while left and read:
            location, size, parts = read.popleft()
            if flags[location >> _UNIT_BITS]:
                read.append((location, size, parts))
                left -= 1
            elif size:
                self._free_block(location, size)
            del parts  # an array may end with its pinned parts
        while self._unviewed:
            location, size = self._unviewed.popleft()
            self._memory.drop_pages(location, size)
            self._free_block(location, size)

    def _free_block(self, location: int, size: int) -> None:
        self.used_bytes -= size
        self._charge(-size)
        heappush(self._free.setdefault(size, []), location)

    def _allocate(self, size: int) -> int:
        self.collect(1)
        location = self._find(size)
        if location is None:
            self.collect()
            location = self._find(size)
        if location is None:
            raise MemoryError(f"the server has no shared memory of {size} bytes for the tensors")
        self.used_bytes += size
        self._charge(size)
        return location

    def _find(self, size: int) -> int | None:
        if not self.used_bytes:  # free blocks of other sizes cannot be split
            self._next = self._memory.start
            self._free.clear()
        free = self._free.get(size)
        if free:
            return heappop(free)
        if self._next + size > self._memory.size:
            return None
        location, self._next = self._next, self._next + size
        return location

    def tick(self) -> None:
        """Return all pages when no block was in use for some time; called once per second."""
        self.collect()
        self._unused_ticks = 0 if self.used_bytes else self._unused_ticks + 1
        if self._unused_ticks == _KEPT_TICKS:
            self._memory.drop_pages(self._memory.start, self._memory.size - self._memory.start, kept=0)

    def close(self) -> None:
        """Stop allocating and charging: the memory is unmapped with its last view."""
        self._charge(-self.used_bytes)
        self._charge = lambda _: None
        self.used_bytes = 0
        self._read.clear()
        del self._memory


def _get_address(part: Buffer) -> int:
    address: int = np.frombuffer(part, np.uint8).__array_interface__["data"][0] if len(part) else 0
    return address
