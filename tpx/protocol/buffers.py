"""Memory that the network writes into and models read from."""

import numpy as np

SCRATCH_BYTES = 64 << 10
ALIGNMENT = 64


def new_scratch() -> memoryview:
    """A buffer that all connections of one event loop read into; what is kept of it is copied at once."""
    return memoryview(bytearray(SCRATCH_BYTES))


def aligned(size: int, offset: int = 0) -> memoryview:
    """`size` writable bytes, uninitialised, whose byte `offset` lies on a 64-byte boundary.

    Tensors that begin at `offset` of a message are then aligned for the model without another copy.
    """
    block = np.empty(size + ALIGNMENT, dtype=np.uint8)
    address = block.__array_interface__["data"][0] + offset
    start = -address % ALIGNMENT
    return block.data[start : start + size]
