"""Shared memory between the server and a model's process, one ring for each direction.

The memory has no name (memfd): no other process can open it, nothing is left behind when either end
dies, and the size of /dev/shm does not matter. The server creates every segment. Each block begins with
a byte that its writer sets and its reader clears with the last view, so freeing needs no message.
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
from collections import deque
from collections.abc import Callable
from typing import Any, Union

import numpy as np

Buffer = Union[bytes, bytearray, memoryview]

_ALIGNMENT = 64
"""Alignment of blocks in bytes; the first 64 bytes of each hold its flag."""
FIRST_SEGMENT_BYTES = 1 << 20


def create_segment(size: int) -> int:
    """Return a descriptor of new memory that cannot shrink under its readers. Raises OSError."""
    if not hasattr(os, "memfd_create"):
        with tempfile.TemporaryFile() as file:
            os.ftruncate(file.fileno(), size)
            return os.dup(file.fileno())
    fd = os.memfd_create("tpx_backend", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size)
        if sys.platform == "linux":
            import fcntl

            add_seals, never_shrink, never_grow = 1033, 2, 4
            fcntl.fcntl(fd, add_seals, never_shrink | never_grow)
    except OSError:
        os.close(fd)
        raise
    return fd


def segment_size_for(block: int, before: int) -> int:
    """Return the size of the next segment: several blocks of this size, and at least twice the one before."""
    need = max(FIRST_SEGMENT_BYTES, 2 * before, 3 * (block + 2 * _ALIGNMENT))
    return -(-need // mmap.PAGESIZE) * mmap.PAGESIZE


class Segment:
    """A mapped piece of shared memory, unmapped with its last view."""

    __slots__ = ("address", "memory", "size")

    def __init__(self, fd: int, size: int) -> None:
        self.size = size
        mapped = mmap.mmap(fd, size)
        self.memory = memoryview(mapped)
        self.address: int = np.frombuffer(mapped, np.uint8).__array_interface__["data"][0]

    def view(self, location: int, size: int) -> memoryview:
        """Return the bytes of a block, which is freed with the last view of it."""
        at = location - _ALIGNMENT
        if at < 0 or at % _ALIGNMENT or location + size > self.size:
            raise ValueError(f"there is no block of {size} bytes at {at} in a segment of {self.size}")
        lease = _Lease(self, at, size)
        array: Any = np.asarray(lease)
        return memoryview(array)


class _Lease:
    """Base object of every array over a block; frees the block when it is deleted."""

    __slots__ = ("__array_interface__", "_at", "_segment")

    def __init__(self, segment: Segment, at: int, size: int) -> None:
        self._segment = segment
        self._at = at
        self.__array_interface__ = {
            "data": (segment.address + at + _ALIGNMENT, False),
            "shape": (size,),
            "typestr": "|u1",
            "version": 3,
        }

    def __del__(self) -> None:
        self._segment.memory[self._at] = 0


class Ring:
    """Allocates blocks in a segment, the oldest freed first; grows when a block does not fit."""

    def __init__(self, grow: Callable[[int], Segment]) -> None:
        """Create a ring; `grow` returns a segment of at least the given size, and may raise."""
        self._grow = grow
        self._segment: Segment | None = None
        self._blocks: deque[tuple[int, int]] = deque()
        self._at = 0

    def forget(self) -> None:
        """Stop writing; the memory is freed with its last reader."""
        self._segment = None
        self._blocks.clear()

    def put(self, data: Any, size: int) -> int:
        """Copy `data` into a block and return its offset. Raises what `grow` raises."""
        need = _ALIGNMENT + -(-size // _ALIGNMENT) * _ALIGNMENT
        segment = self._segment
        at = None if segment is None else self._find_room(segment, need)
        if segment is None or at is None:
            # blocks in the segment before remain until they are read
            before = 0 if segment is None else segment.size
            segment = self._segment = self._grow(segment_size_for(size, before))
            self._blocks.clear()
            at = 0
        self._at = at + need
        self._blocks.append((at, need))
        start = at + _ALIGNMENT
        memory = segment.memory
        memory[at] = 1
        if size >= 1 << 16:
            # numpy copies without the interpreter lock
            target = np.frombuffer(memory, np.uint8, size, start)
            np.copyto(target, np.frombuffer(data, np.uint8))
        else:
            memory[start : start + size] = memoryview(data).cast("B")
        return start

    def _find_room(self, segment: Segment, need: int) -> int | None:
        """Return where the next block of this size goes, None if there is no room."""
        blocks, memory = self._blocks, segment.memory
        while blocks and not memory[blocks[0][0]]:
            blocks.popleft()
        if not blocks:
            return 0 if need <= segment.size else None
        at, oldest = self._at, blocks[0][0]
        if at <= oldest:
            return at if at + need <= oldest else None
        if at + need <= segment.size:
            return at
        return 0 if need <= oldest else None
