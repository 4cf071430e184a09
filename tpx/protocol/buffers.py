"""Memory that the network writes into and models read from."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

SCRATCH_BYTES = 64 << 10
ALIGNMENT = 64

Allocator = Callable[[int], npt.NDArray[np.uint8]]
"""Returns uninitialized memory of the given size in bytes. Raises MemoryError."""


class _Process:
    """Allocator of this process; one that forwards messages to another process uses shared memory."""

    allocate: Allocator = staticmethod(lambda size: np.empty(size, np.uint8))


def allocate_with(allocate: Allocator) -> None:
    """Allocate buffers for messages that arrive in pieces with `allocate` from now on, in this process."""
    _Process.allocate = staticmethod(allocate)


def new_scratch() -> memoryview:
    """Return a read buffer for all connections of one event loop, which copy out what they keep."""
    return memoryview(bytearray(SCRATCH_BYTES))


def aligned(size: int, offset: int = 0) -> memoryview:
    """Return `size` writable, uninitialized bytes whose byte `offset` is on a 64-byte boundary.

    Tensors at `offset` of a message are then aligned for the model without another copy.
    """
    block = _Process.allocate(size + ALIGNMENT)
    address = block.__array_interface__["data"][0] + offset
    start = -address % ALIGNMENT
    return block.data[start : start + size]
