"""Shared memory: what is written is read, until the last view of it has gone, and then it is used again."""

import gc
import os
import resource
import signal

import numpy as np
import pytest

from tpx.serving.backends.python.worker.rings import (
    RESERVED_BYTES,
    Ring,
    TensorMemory,
    create_memory,
    reserve_memory,
)


def _pair(size: int) -> tuple[Ring, TensorMemory]:
    """A ring, and its memory mapped once more, as the other process has it."""
    fd, writer = create_memory(size)
    reader = TensorMemory(fd)
    os.close(fd)
    return Ring(writer), reader


def test_what_is_written_is_read_at_the_other_end() -> None:
    ring, reader = _pair(1 << 16)
    for data in (b"x" * 5000, bytes(range(256)), np.arange(1000, dtype=np.float64).data.cast("B")):
        view = reader.view(ring.put(data, len(data)), len(data))
        assert bytes(view) == bytes(data)


def test_a_view_can_be_written_and_is_aligned_for_every_datatype() -> None:
    ring, reader = _pair(1 << 16)
    for _ in range(3):
        array = np.frombuffer(reader.view(ring.put(b"\1" * 24, 24), 24), np.int64)
        assert array.flags.writeable
        assert array.__array_interface__["data"][0] % 64 == 0


def test_a_block_is_free_when_its_last_view_has_gone() -> None:
    ring, reader = _pair(1 << 16)
    view = reader.view(ring.put(b"a" * 40_000, 40_000), 40_000)
    array = np.frombuffer(view, np.uint8)
    part = array[10:20].reshape(2, 5)
    del view, array
    with pytest.raises(MemoryError):
        ring.put(b"b" * 40_000, 40_000)
    assert bytes(part.tobytes()) == b"a" * 10
    del part
    ring.put(b"b" * 40_000, 40_000)


def test_a_fork_of_the_process_that_views_a_block_does_not_free_it() -> None:
    ring, reader = _pair(1 << 16)
    views = [reader.view(ring.put(b"a" * 40_000, 40_000), 40_000)]
    child = os.fork()
    if not child:
        reader.abandon()
        views.clear()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    with pytest.raises(MemoryError):
        ring.put(b"b" * 40_000, 40_000)
    views.clear()
    ring.put(b"b" * 40_000, 40_000)


def test_blocks_go_round_and_never_overlap() -> None:
    generator = np.random.default_rng(0)
    ring, reader = _pair(1 << 18)
    held: list[tuple[bytes, memoryview]] = []
    for _ in range(2000):
        data = generator.bytes(int(generator.integers(1, 20_000)))
        while True:
            try:
                at = ring.put(data, len(data))
                break
            except MemoryError:
                held.pop(int(generator.integers(0, len(held))) if len(held) > 3 else 0)
        held.append((data, reader.view(at, len(data))))
        if generator.random() < 0.5:
            held.pop(int(generator.integers(0, len(held))))
        assert all(bytes(view) == data for data, view in held)


def test_a_block_that_is_not_there_is_refused() -> None:
    _, reader = _pair(1 << 16)
    for location, size in ((0, 10), (64, 10), (127, 10), (128, 1 << 16), (1 << 40, 1), (129, 1)):
        with pytest.raises(ValueError, match="there is no block"):
            reader.view(location, size)


def test_a_ring_goes_on_around_a_block_that_is_kept() -> None:
    ring, reader = _pair(1 << 16)
    ring.put(b"a" * 1000, 1000)
    kept = reader.view(ring.put(b"kept" * 250, 1000), 1000)
    for index in range(500):
        data = bytes([index & 255]) * 10_000
        assert bytes(reader.view(ring.put(data, len(data)), len(data))) == data
        assert bytes(kept) == b"kept" * 250


def test_only_as_much_memory_is_touched_as_is_in_use_at_a_time() -> None:
    ring, reader = _pair(1 << 30)
    for index in range(200):
        data = bytes([index]) * 100_000
        location = ring.put(data, len(data))
        assert location < 1_000
        assert bytes(reader.view(location, len(data))) == data
    views = [reader.view(ring.put(b"x" * 1_000_000, 1_000_000), 1_000_000) for _ in range(20)]
    assert ring.put(b"y" * 20_000, 20_000) < 30_000_000
    assert all(bytes(view[:1]) == b"x" for view in views)


def test_pages_of_a_large_block_are_returned_when_it_is_freed() -> None:
    fd, memory = create_memory(1 << 30)
    ring, size = Ring(memory), 48 << 20
    views = [memory.view(ring.put(b"x" * size, size), size) for _ in range(3)]
    used = os.fstat(fd).st_blocks * 512
    assert used >= 3 * size
    last = bytes(views[2][-8:])
    views.pop(1)
    gc.collect()
    assert os.fstat(fd).st_blocks * 512 < used - size + (64 << 10)
    assert bytes(views[1][-8:]) == last
    views.clear()
    gc.collect()
    assert size <= os.fstat(fd).st_blocks * 512 < size + (128 << 10)  # the first one stays
    os.close(fd)


def test_less_is_reserved_where_sizes_are_limited() -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, before[1]))
    try:
        fd, memory = reserve_memory()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    os.close(fd)
    assert memory.size == RESERVED_BYTES // 64
    data = b"x" * 100_000
    assert bytes(memory.view(Ring(memory).put(data, len(data)), len(data))) == data


def test_memory_cannot_shrink_under_its_readers() -> None:
    fd, _ = create_memory(1 << 16)
    with pytest.raises(OSError, match="not permitted"):
        os.ftruncate(fd, 10)
    os.close(fd)


@pytest.mark.slow
def test_memory_goes_with_its_last_view() -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    ring, reader = _pair(1 << 16)
    view = reader.view(ring.put(b"abc", 3), 3)
    del ring, reader
    gc.collect()
    assert bytes(view) == b"abc"
    del view
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_what_is_free_shrinks_while_a_block_is_read() -> None:
    ring, reader = _pair(1 << 16)
    free = ring.free_bytes
    view = reader.view(ring.put(b"x" * 5000, 5000), 5000)
    assert 5000 <= free - ring.free_bytes < 5200
    del view
    assert ring.free_bytes == free
