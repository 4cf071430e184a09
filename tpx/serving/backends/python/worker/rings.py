"""Shared memory between a server and the process of a model, one ring for each direction.

The memory has no name (memfd): nobody else can open it, nothing is left behind however the two end, and it
does not depend on the size of /dev/shm. The server makes every segment. Each block begins with a byte that
its writer sets and its reader clears when the last view of it is gone: freeing takes no message.
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
"""Of blocks; the first line of each has its flag."""
FIRST_SEGMENT_BYTES = 1 << 20


def create_segment(size: int) -> int:
    """A descriptor of new memory that cannot shrink under its readers. Raises OSError."""
    if not hasattr(os, "memfd_create"):
        with tempfile.TemporaryFile() as file:
            os.ftruncate(file.fileno(), size)
            return os.dup(file.fileno())
    fd = os.memfd_create("tpx_backend", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size)
        _seal(fd)
    except OSError:
        os.close(fd)
        raise
    return fd


def _seal(fd: int) -> None:
    if sys.platform == "linux":
        import fcntl

        add_seals, never_shrink, never_grow = 1033, 2, 4
        fcntl.fcntl(fd, add_seals, never_shrink | never_grow)


def segment_size_for(block: int, before: int) -> int:
    """How large the next segment is: room for a few such blocks, and at least twice the one before."""
    need = max(FIRST_SEGMENT_BYTES, 2 * before, 3 * (block + 2 * _ALIGNMENT))
    return -(-need // mmap.PAGESIZE) * mmap.PAGESIZE


class Segment:
    """A mapped piece of shared memory; it is unmapped with the last view of it."""

    __slots__ = ("address", "memory", "size")

    def __init__(self, fd: int, size: int) -> None:
        self.size = size
        mapped = mmap.mmap(fd, size)
        self.memory = memoryview(mapped)
        self.address: int = np.frombuffer(mapped, np.uint8).__array_interface__["data"][0]

    def view(self, location: int, size: int) -> memoryview:
        """The bytes of a block; it is freed when nobody looks at them any more."""
        at = location - _ALIGNMENT
        if at < 0 or at % _ALIGNMENT or location + size > self.size:
            raise ValueError(f"there is no block of {size} bytes at {at} in a segment of {self.size}")
        lease = _Lease(self, at, size)
        array: Any = np.asarray(lease)
        return memoryview(array)


class _Lease:
    """Frees a block when it goes: it is the base of every array over the block."""

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


class NoRoom(Exception):
    """The segment is full, or there is none."""


class Ring:
    """Puts blocks into a segment, oldest freed first."""

    def __init__(self) -> None:
        self._segment: Segment | None = None
        self._blocks: deque[tuple[int, int]] = deque()
        self._at = 0

    @property
    def size(self) -> int:
        """Return the size of the segment in bytes."""
        return 0 if self._segment is None else self._segment.size

    def use(self, segment: Segment) -> None:
        """Write to this one from now on. Blocks in the one before stay until they are read."""
        self._segment = segment
        self._blocks.clear()
        self._at = 0

    def put(self, data: Buffer, size: int) -> int:
        """Copy `data` into a block; returns where it is. Raises NoRoom."""
        segment = self._segment
        if segment is None:
            raise NoRoom
        memory = segment.memory
        blocks = self._blocks
        while blocks and not memory[blocks[0][0]]:
            blocks.popleft()
        at = self._place(_ALIGNMENT + -(-size // _ALIGNMENT) * _ALIGNMENT)
        start = at + _ALIGNMENT
        memory[at] = 1
        if size >= 1 << 16:
            # numpy copies without the interpreter lock
            target = np.frombuffer(memory, np.uint8, size, start)
            np.copyto(target, np.frombuffer(data, np.uint8))
        else:
            memory[start : start + size] = memoryview(data).cast("B")
        return start

    def _place(self, need: int) -> int:
        segment, blocks = self._segment, self._blocks
        assert segment is not None
        at = self._at if blocks else 0
        if blocks and at <= blocks[0][0]:
            if at + need > blocks[0][0]:
                raise NoRoom
        elif at + need > segment.size:
            if not blocks or need > blocks[0][0]:
                raise NoRoom
            at = 0
        self._at = at + need
        blocks.append((at, need))
        return at


class GrowingRing:
    """A ring that asks for a larger segment where a block finds no room."""

    def __init__(self, grow: Callable[[int], Segment]) -> None:
        """`grow` gives a segment of at least so many bytes; it may raise."""
        self._grow = grow
        self._ring = Ring()

    def forget(self) -> None:
        """Nothing is written any more: the memory goes with its last reader."""
        self._ring = Ring()

    def put(self, data: Any, size: int) -> int:
        """Raises what `grow` does."""
        try:
            return self._ring.put(data, size)
        except NoRoom:
            self._ring.use(self._grow(segment_size_for(size, self._ring.size)))
            return self._ring.put(data, size)
