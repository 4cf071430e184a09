"""Memory that the network writes into and models read from."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

SCRATCH_BYTES = 64 << 10
ALIGNMENT = 64

Allocator = Callable[[int], npt.NDArray[np.uint8]]
"""Returns so many bytes, uninitialised. Raises MemoryError."""


class _Process:
    """The memory of this process, which is another one where a message goes on to another process."""

    allocate: Allocator = staticmethod(lambda size: np.empty(size, np.uint8))


def allocate_with(allocate: Allocator) -> None:
    """Receive messages that come in pieces into other memory from now on, in this process."""
    _Process.allocate = staticmethod(allocate)


def new_scratch() -> memoryview:
    """A buffer that all connections of one event loop read into; what is kept of it is copied at once."""
    return memoryview(bytearray(SCRATCH_BYTES))


def aligned(size: int, offset: int = 0) -> memoryview:
    """`size` writable bytes, uninitialised, whose byte `offset` lies on a 64-byte boundary.

    Tensors that begin at `offset` of a message are then aligned for the model without another copy.
    """
    block = _Process.allocate(size + ALIGNMENT)
    address = block.__array_interface__["data"][0] + offset
    start = -address % ALIGNMENT
    return block.data[start : start + size]
