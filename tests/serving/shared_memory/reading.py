"""Reading regions in tests."""

from tpx.serving.shared_memory.regions import RegionMemory


def read(memory: RegionMemory, offset: int, size: int) -> bytes:
    """A copy of a part of a region."""
    target = bytearray(size)
    memory.read_into(memoryview(target), offset)
    return bytes(target)
