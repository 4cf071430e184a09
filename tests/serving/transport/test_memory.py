"""Shared memory: what is written is read, until the last view of it has gone, and then it is used again."""

import gc
import os
import resource
import signal

import numpy as np
import pytest

from tpx.serving.transport.memory import (
    RESERVED_BYTES,
    BlockMemory,
    Blocks,
    block_size,
    create_memory,
    reserve_memory,
)

MIB = 1 << 20


def _pair(size: int) -> tuple[Blocks, BlockMemory]:
    """The writer's side of memory, and the memory mapped once more, as the other process has it."""
    fd, writer = create_memory(size)
    reader = BlockMemory(fd)
    os.close(fd)
    return Blocks(writer), reader


def test_what_is_written_is_read_at_the_other_end() -> None:
    blocks, reader = _pair(1 << 16)
    for data in (b"x" * 5000, bytes(range(256)), np.arange(1000, dtype=np.float64).data.cast("B")):
        view = reader.view(blocks.put(data, len(data)), len(data))
        assert bytes(view) == bytes(data)


def test_a_view_can_be_written_and_is_aligned_for_every_datatype() -> None:
    blocks, reader = _pair(1 << 16)
    for _ in range(3):
        array = np.frombuffer(reader.view(blocks.put(b"\1" * 24, 24), 24), np.int64)
        assert array.flags.writeable
        assert array.__array_interface__["data"][0] % 64 == 0


def test_a_block_is_free_when_its_last_view_has_gone() -> None:
    blocks, reader = _pair(1 << 16)
    view = reader.view(blocks.put(b"a" * 40_000, 40_000), 40_000)
    array = np.frombuffer(view, np.uint8)
    part = array[10:20].reshape(2, 5)
    del view, array
    with pytest.raises(MemoryError):
        blocks.put(b"b" * 40_000, 40_000)
    assert bytes(part.tobytes()) == b"a" * 10
    del part
    blocks.put(b"b" * 40_000, 40_000)


def test_a_fork_of_the_process_that_views_a_block_does_not_free_it() -> None:
    blocks, reader = _pair(1 << 16)
    views = [reader.view(blocks.put(b"a" * 40_000, 40_000), 40_000)]
    child = os.fork()
    if not child:
        reader.abandon()
        views.clear()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    with pytest.raises(MemoryError):
        blocks.put(b"b" * 40_000, 40_000)
    views.clear()
    blocks.put(b"b" * 40_000, 40_000)


def test_blocks_in_use_never_overlap() -> None:
    generator = np.random.default_rng(0)
    blocks, reader = _pair(1 << 18)
    held: list[tuple[bytes, memoryview]] = []
    for _ in range(2000):
        data = generator.bytes(int(generator.integers(1, 20_000)))
        while True:
            try:
                at = blocks.put(data, len(data))
                break
            except MemoryError:
                held.pop(int(generator.integers(0, len(held))) if len(held) > 3 else 0)
        held.append((data, reader.view(at, len(data))))
        if generator.random() < 0.5:
            held.pop(int(generator.integers(0, len(held))))
        assert all(bytes(view) == data for data, view in held)


def test_a_block_that_is_not_there_is_refused() -> None:
    _, reader = _pair(1 << 16)
    start = reader.start
    for location, size in ((0, 10), (start - 1, 10), (start + 1, (1 << 16) - start), (1 << 40, 1)):
        with pytest.raises(ValueError, match="there is no block"):
            reader.view(location, size)


def test_blocks_that_come_and_go_stay_in_the_same_pages() -> None:
    blocks, reader = _pair(1 << 30)
    kept = reader.view(blocks.put(b"kept" * 250, 1000), 1000)
    locations = set()
    for index in range(200):
        data = bytes([index]) * 100_000
        location = blocks.put(data, len(data))
        locations.add(location)
        assert bytes(reader.view(location, len(data))) == data
    assert len(locations) <= 2
    assert bytes(kept) == b"kept" * 250
    views = [reader.view(blocks.put(b"x" * 1_000_000, 1_000_000), 1_000_000) for _ in range(20)]
    assert blocks.put(b"y" * 20_000, 20_000) < 30_000_000
    assert all(bytes(view[:1]) == b"x" for view in views)


def test_freed_blocks_do_not_pile_up_behind_one_that_is_kept() -> None:
    blocks, reader = _pair(1 << 30)
    kept = reader.view(blocks.put(b"a" * MIB, MIB), MIB)
    for _ in range(50):
        views = [reader.view(blocks.put(b"b" * MIB, MIB), MIB) for _ in range(8)]
        del views
    assert blocks.used_bytes <= 16 * MIB
    assert bytes(kept[:1]) == b"a"


def test_pages_of_a_large_block_are_returned_when_it_is_freed() -> None:
    fd, memory = create_memory(1 << 30)
    blocks, size = Blocks(memory), 48 << 20
    views = [memory.view(blocks.put(b"x" * size, size), size) for _ in range(3)]
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


def test_all_pages_are_returned_when_no_block_was_used_for_some_time() -> None:
    fd, memory = create_memory(1 << 26)
    blocks = Blocks(memory)
    view = memory.view(blocks.put(bytes(4 * MIB), 4 * MIB), 4 * MIB)
    for _ in range(10):
        blocks.tick()
    assert os.fstat(fd).st_blocks * 512 > 4 * MIB
    del view
    kept = []
    for _ in range(6):
        kept.append(os.fstat(fd).st_blocks * 512 > 4 * MIB)
        blocks.tick()
    assert kept == [True] * 5 + [False]
    os.close(fd)


def test_blocks_are_charged_while_they_are_in_use_and_until_the_end() -> None:
    fd, memory = create_memory(8 * MIB)
    os.close(fd)
    charged: list[int] = []
    blocks = Blocks(memory, charged.append)
    view = memory.view(blocks.reserve(MIB - 1), MIB - 1)
    blocks.reserve(MIB)
    del view
    blocks.collect()
    assert charged == [MIB, MIB, -MIB]
    blocks.close()
    assert sum(charged) == 0


@pytest.mark.parametrize(
    ("size", "block"), [(0, 4096), (1, 4096), (4096, 4096), (4097, 8192), (600_000, 655_360), (MIB, MIB)]
)
def test_a_block_is_at_most_a_quarter_larger_than_what_is_in_it(size: int, block: int) -> None:
    assert block_size(size) == block


def test_an_array_is_free_again_when_nothing_views_it_and_what_was_pinned_is_freed() -> None:
    blocks, reader = _pair(MIB + (MIB >> 1))
    array = blocks.allocate_array(MIB)
    array[:] = 7
    view = array.data[100:200]
    location = blocks.pin([view[:40], view[40:]])
    assert location is not None
    assert blocks.pin([view[40:], view[:40]]) is None
    assert blocks.pin([view]) is None, "its flag is in use"
    assert blocks.pin([bytes(40)]) is None
    del array, view
    read = reader.view(location, 100)
    with pytest.raises(MemoryError):
        blocks.allocate_array(MIB)
    assert bytes(read) == b"\7" * 100
    del read
    blocks.allocate_array(MIB)


def test_a_pinned_array_keeps_its_pages_when_the_reader_has_freed_it() -> None:
    blocks, reader = _pair(1 << 30)
    first = blocks.allocate_array(100 * MIB)  # beyond what stays anyway
    array = blocks.allocate_array(MIB)
    array[:] = 7
    location = blocks.pin([array.data])
    assert location is not None
    reader.view(location, MIB)
    assert (array == 7).all()
    assert len(first) == 100 * MIB


def test_memory_in_which_nothing_is_used_has_room_for_blocks_of_any_size() -> None:
    blocks, reader = _pair(4 * MIB)
    for _ in range(2):
        views = [reader.view(blocks.reserve(4096), 4096) for _ in range(1022)]
        with pytest.raises(MemoryError):
            blocks.reserve(4096)
        del views
        reader.view(blocks.reserve(3 * MIB), 3 * MIB)


def test_blocks_of_a_frame_that_is_not_sent_are_free_again() -> None:
    blocks, _ = _pair(1 << 16)
    for _ in range(3):
        blocks.put(b"a" * 40_000, 40_000)
        with pytest.raises(MemoryError):
            blocks.put(b"b" * 40_000, 40_000)
        blocks.take_back()
    blocks.put(b"a" * 40_000, 40_000)
    blocks.sent()
    blocks.take_back()
    with pytest.raises(MemoryError):
        blocks.put(b"b" * 40_000, 40_000)


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
    assert bytes(memory.view(Blocks(memory).put(data, len(data)), len(data))) == data


def test_memory_cannot_shrink_under_its_readers() -> None:
    fd, _ = create_memory(1 << 16)
    with pytest.raises(OSError, match="not permitted"):
        os.ftruncate(fd, 10)
    os.close(fd)


def test_memory_that_may_shrink_is_refused() -> None:
    fd = os.memfd_create("small", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 1 << 16)
    with pytest.raises(ValueError, match="its size can change"):
        BlockMemory(fd)
    os.close(fd)


@pytest.mark.slow
def test_memory_goes_with_its_last_view() -> None:
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    blocks, reader = _pair(1 << 16)
    view = reader.view(blocks.put(b"abc", 3), 3)
    del blocks, reader
    gc.collect()
    assert bytes(view) == b"abc"
    del view
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_what_is_free_shrinks_while_a_block_is_read() -> None:
    blocks, reader = _pair(1 << 16)
    free = blocks.free_bytes
    view = reader.view(blocks.put(b"x" * 5000, 5000), 5000)
    assert free - blocks.free_bytes == block_size(5000)
    del view
    assert blocks.free_bytes == free
