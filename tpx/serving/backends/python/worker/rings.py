"""Shared memory between the server and a model's process, one ring for each direction.

The memory has no name (memfd): no other process can open it, nothing is left behind when either end
dies, and the size of /dev/shm does not matter. The server creates it with the process, much larger than
needed: it is sparse, and only the part that the ring has grown to is ever touched. Each block begins with
a byte that its writer sets and its reader clears with the last view, so freeing needs no message.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from bisect import bisect_left
from typing import Any, Union

import numpy as np

Buffer = Union[bytes, bytearray, memoryview]

RESERVED_BYTES = 16 << 30
"""Address space of one direction, if the process may have as much."""
_LEAST_BYTES = 32 << 20
_ALIGNMENT = 64
"""Alignment of blocks in bytes; the first 64 bytes of each hold its flag."""
START = _ALIGNMENT
"""Offset of the first block. Before it is the number of the last batch that the model has started."""
_FIRST_BYTES = 1 << 20
_KEPT_BYTES = 64 << 20
"""Bytes at the start of the memory whose pages stay with it: there are most tensors."""
_WORTH_BYTES = 1 << 20
"""Smallest block behind them whose pages are returned to the system when it is freed."""


def create_memory(size: int) -> tuple[int, TensorMemory]:
    """Return a descriptor and a mapping of new memory that cannot change its size. Raises OSError."""
    fd = os.memfd_create("tpx_backend", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        return fd, TensorMemory(fd)
    except OSError:
        os.close(fd)
        raise


def reserve_memory() -> tuple[int, TensorMemory]:
    """Return new memory, less where the size of memory or files is limited. Raises OSError."""
    size = RESERVED_BYTES
    while True:
        try:
            return create_memory(size)
        except OSError as exc:
            if exc.errno not in (errno.ENOMEM, errno.EFBIG) or size <= _LEAST_BYTES:
                raise
        size //= 8


class TensorMemory:
    """A mapping of shared memory, unmapped with its last view."""

    __slots__ = ("_mapped", "abandoned", "address", "memory", "size")

    def __init__(self, fd: int) -> None:
        """Map the memory that a descriptor refers to; the descriptor can be closed. Raises OSError."""
        self.size = os.fstat(fd).st_size
        self.abandoned = False
        """True in a fork of the process that reads the memory: no block is freed with a view of the fork."""
        mapped = self._mapped = mmap.mmap(fd, self.size)
        self.memory = memoryview(mapped)
        self.address: int = np.frombuffer(mapped, np.uint8).__array_interface__["data"][0]

    def abandon(self) -> None:
        """Free no more blocks, because this process is a fork of the one that reads them."""
        self.abandoned = True

    def drop_pages(self, start: int, end: int) -> None:
        """Return the whole pages between two offsets to the system."""
        start = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        end -= end % mmap.PAGESIZE
        if end > start:
            self._mapped.madvise(mmap.MADV_REMOVE, start, end - start)

    def view(self, location: int, size: int) -> memoryview:
        """Return the bytes of a block, which is freed with the last view of it."""
        at = location - _ALIGNMENT
        if at < START or at % _ALIGNMENT or location + size > self.size:
            raise ValueError(f"there is no block of {size} bytes at {at} in a memory of {self.size}")
        lease = _Lease(self, at, size)
        array: Any = np.asarray(lease)
        return memoryview(array)


def copy_into(memory: memoryview, data: Buffer) -> None:
    """Copy `data`, which is as long as `memory`."""
    if len(memory) >= 1 << 16:
        # numpy copies without the interpreter lock
        np.copyto(np.frombuffer(memory, np.uint8), np.frombuffer(data, np.uint8))
    else:
        memory[:] = memoryview(data).cast("B")


class _Lease:
    """Base object of every array over a block; frees the block when it is deleted."""

    __slots__ = ("__array_interface__", "_at", "_shared", "_size")

    def __init__(self, shared: TensorMemory, at: int, size: int) -> None:
        self._shared = shared
        self._at = at
        self._size = size
        self.__array_interface__ = {
            "data": (shared.address + at + _ALIGNMENT, False),
            "shape": (size,),
            "typestr": "|u1",
            "version": 3,
        }

    def __del__(self) -> None:
        if self._shared.abandoned:
            return
        end = self._at + _ALIGNMENT + self._size
        if end > _KEPT_BYTES and self._size >= _WORTH_BYTES:
            self._shared.drop_pages(self._at + _ALIGNMENT, end)
        self._shared.memory[self._at] = 0


class Ring:
    """Allocates blocks in a part of shared memory, one after another, around those that are still read.

    The part grows when there is no room. It begins again at the start whenever all blocks have been read.
    """

    def __init__(self, shared: TensorMemory) -> None:
        self._memory = shared.memory
        self._most = shared.size
        self._end = START
        """End of the part in use."""
        self._blocks: list[tuple[int, int]] = []
        """Start and end of each block, in the order of their addresses."""
        self._newest = -1
        """Index of the block that was allocated last."""
        self._unsent: list[int] = []
        """Starts of the blocks that no frame has told the reader of."""

    def put(self, data: Any, size: int) -> int:
        """Copy `data` into a block and return its offset. Raises MemoryError if all memory is in use."""
        start = self.reserve(size)
        copy_into(self._memory[start : start + size], data)
        return start

    def reserve(self, size: int) -> int:
        """Return the offset of a block to fill. Raises MemoryError if all memory is in use."""
        at = self._allocate(_ALIGNMENT + -(-size // _ALIGNMENT) * _ALIGNMENT)
        self._memory[at] = 1
        self._unsent.append(at)
        return at + _ALIGNMENT

    def block(self, start: int, size: int) -> memoryview:
        """Return the memory of a reserved block, which any thread may fill."""
        return self._memory[start : start + size]

    def close(self) -> None:
        """Stop writing; the memory is freed with its last reader."""
        self._memory = memoryview(b"")
        self._most, self._end, self._newest = 0, START, -1
        self._blocks.clear()
        self._unsent.clear()

    @property
    def free_bytes(self) -> int:
        """Bytes that no block occupies, or only one that has been read."""
        memory = self._memory
        return self._most - START - sum(end - start for start, end in self._blocks if memory[start])

    def sent(self) -> None:
        """Leave the blocks allocated since the last call to the reader."""
        self._unsent.clear()

    def take_back(self) -> None:
        """Free the blocks allocated since the last call of `sent`: their frame is not sent."""
        for at in self._unsent:
            self._memory[at] = 0
        self._unsent.clear()

    def _allocate(self, need: int) -> int:
        memory, blocks = self._memory, self._blocks
        if blocks and not memory[blocks[self._newest][0]]:
            # the newest has been read, and the others probably, too
            newest = blocks[self._newest]
            blocks[:] = [block for block in blocks if memory[block[0]]]
            self._newest = bisect_left(blocks, newest) - 1
        index = self._newest + 1
        at = blocks[index - 1][1] if index else START
        laps = 0
        while True:
            last = index == len(blocks)
            if at + need <= (self._end if last else blocks[index][0]):
                break
            if not last and not memory[blocks[index][0]]:
                del blocks[index]
            elif not last:
                at, index = blocks[index][1], index + 1
            elif laps:
                self._grow(at, need)
            else:
                at, index, laps = START, 0, 1
        blocks.insert(index, (at, at + need))
        self._newest = index
        return at

    def _grow(self, at: int, need: int) -> None:
        """Extend the part in use for a block at its end. Raises MemoryError."""
        self._newest = len(self._blocks) - 1
        if at + need > self._most:
            raise MemoryError(f"the server has no shared memory of {need} bytes for the tensors")
        self._end = min(self._most, max(_FIRST_BYTES, 2 * self._end, at + 3 * need))
