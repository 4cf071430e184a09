"""Shared memory: what is written is read, until the last view of it has gone, and then it is used again."""

import gc
import os
from itertools import pairwise

import numpy as np
import pytest

from tpx.serving.backends.python.worker.rings import (
    Ring,
    Segment,
    create_segment,
    segment_size_for,
)


class NoRoom(Exception):
    """The ring had to grow."""


def _refuse(size: int) -> Segment:
    raise NoRoom


def _pair(size: int) -> tuple[Ring, Segment, Segment]:
    """A ring, its segment, and the same memory mapped once more, as the other process has it."""
    fd = create_segment(size)
    writer, reader = Segment(fd, size), Segment(fd, size)
    os.close(fd)
    segments = [writer]
    ring = Ring(lambda size: segments.pop() if segments else _refuse(size))
    return ring, writer, reader


def test_what_is_written_is_read_at_the_other_end() -> None:
    ring, _, reader = _pair(1 << 16)
    for data in (b"x" * 5000, bytes(range(256)), np.arange(1000, dtype=np.float64).data.cast("B")):
        view = reader.view(ring.put(data, len(data)), len(data))
        assert bytes(view) == bytes(data)


def test_a_view_can_be_written_and_is_aligned_for_every_datatype() -> None:
    ring, _, reader = _pair(1 << 16)
    for _ in range(3):
        array = np.frombuffer(reader.view(ring.put(b"\1" * 24, 24), 24), np.int64)
        assert array.flags.writeable
        assert array.__array_interface__["data"][0] % 64 == 0


def test_a_block_is_free_when_its_last_view_has_gone() -> None:
    ring, _, reader = _pair(1 << 16)
    view = reader.view(ring.put(b"a" * 40_000, 40_000), 40_000)
    array = np.frombuffer(view, np.uint8)
    part = array[10:20].reshape(2, 5)
    del view, array
    with pytest.raises(NoRoom):
        ring.put(b"b" * 40_000, 40_000)
    assert bytes(part.tobytes()) == b"a" * 10
    del part
    ring.put(b"b" * 40_000, 40_000)


def test_blocks_go_round_and_never_overlap() -> None:
    generator = np.random.default_rng(0)
    ring, _, reader = _pair(1 << 18)
    held: list[tuple[bytes, memoryview]] = []
    for _ in range(2000):
        data = generator.bytes(int(generator.integers(1, 20_000)))
        while True:
            try:
                at = ring.put(data, len(data))
                break
            except NoRoom:
                held.pop(int(generator.integers(0, len(held))) if len(held) > 3 else 0)
        held.append((data, reader.view(at, len(data))))
        if generator.random() < 0.5:
            held.pop(int(generator.integers(0, len(held))))
        assert all(bytes(view) == data for data, view in held)


def test_a_block_that_is_not_there_is_refused() -> None:
    _, _, reader = _pair(1 << 16)
    for location, size in ((0, 10), (63, 10), (64, 1 << 16), (1 << 40, 1), (65, 1)):
        with pytest.raises(ValueError, match="there is no block"):
            reader.view(location, size)


def test_a_ring_grows_and_old_blocks_stay_readable() -> None:
    readers: list[Segment] = []

    def grow(size: int) -> Segment:
        fd = create_segment(size)
        readers.append(Segment(fd, size))
        segment = Segment(fd, size)
        os.close(fd)
        return segment

    ring = Ring(grow)
    kept = []
    for index in range(40):
        data = bytes([index]) * 100_000
        at = ring.put(data, len(data))
        kept.append((data, readers[-1].view(at, len(data))))
    sizes = [segment.size for segment in readers]
    assert all(later >= 2 * before for before, later in pairwise(sizes))
    assert all(bytes(view) == data for data, view in kept)


def test_the_next_segment_has_room_for_what_asked_for_it() -> None:
    for block in (1, 1 << 20, 100 << 20):
        for before in (0, 1 << 20):
            assert segment_size_for(block, before) >= max(2 * before, 2 * block)


def test_a_segment_cannot_shrink_under_its_readers() -> None:
    fd = create_segment(1 << 16)
    with pytest.raises(OSError, match="not permitted"):
        os.ftruncate(fd, 10)
    os.close(fd)


def test_memory_goes_with_its_last_view() -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    ring, writer, reader = _pair(1 << 16)
    view = reader.view(ring.put(b"abc", 3), 3)
    del ring, writer, reader
    gc.collect()
    assert bytes(view) == b"abc"
    del view
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
