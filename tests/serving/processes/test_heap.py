import mmap
import random

import pytest

from tpx.serving.processes.heap import Heap, block_size

MIB = 1 << 20


def _heap(size: int) -> Heap:
    return Heap(mmap.mmap(-1, size), 0, size, size)


def test_blocks_are_charged_while_they_are_in_use_and_until_the_heap_is_closed() -> None:
    charged: list[int] = []
    heap = Heap(mmap.mmap(-1, 4 * MIB), 0, 4 * MIB, 4 * MIB, charged.append)
    position = heap.allocate(MIB - 1)
    assert position is not None
    assert heap.allocate(MIB) is not None
    heap.free(position)
    assert charged == [MIB, MIB, -MIB]
    heap.close()
    heap.allocate(MIB)
    assert sum(charged) == 0


def test_pages_of_free_blocks_are_given_back_when_none_was_used_for_some_time() -> None:
    heap = _heap(64 * MIB)
    position = heap.allocate(4 * MIB)
    assert position is not None
    for _ in range(10):
        heap.tick()
    heap.free(position)
    kept = []
    for _ in range(5):
        kept.append(heap.kept_bytes)
        heap.tick()
    assert kept == [4 * MIB] * 5
    assert heap.kept_bytes == 0
    assert heap.allocate(64 * MIB) == 0


@pytest.mark.parametrize(
    ("size", "block"), [(0, 4096), (1, 4096), (4096, 4096), (4097, 8192), (600_000, 655_360), (MIB, MIB)]
)
def test_a_block_is_at_most_a_quarter_larger_than_what_is_in_it(size: int, block: int) -> None:
    assert block_size(size) == block


def test_blocks_in_use_do_not_overlap() -> None:
    heap, rng = _heap(64 * MIB), random.Random(7)
    used: dict[int, int] = {}
    for _ in range(3000):
        if used and rng.random() < 0.5:
            given = rng.choice(list(used))
            del used[given]
            heap.free(given)
            continue
        size = rng.randrange(1, 2 * MIB)
        position = heap.allocate(size)
        if position is None:
            continue
        for other, other_size in used.items():
            assert position + size <= other or other + other_size <= position
        used[position] = size


def test_an_array_is_free_again_when_nothing_views_it_and_what_was_pinned_is_freed() -> None:
    heap = _heap(MIB)
    block = heap.allocate_array(MIB)
    assert block is not None
    view = block.data[100:200]
    position = heap.pin([view[:40], view[40:]])
    assert position == 100
    assert heap.pin([view[40:], view[:40]]) is None
    assert heap.pin([bytes(40)]) is None
    del block, view
    assert heap.allocate_array(MIB) is None
    heap.free(position)
    assert heap.allocate_array(MIB) is not None


def test_a_heap_that_is_full_has_room_again_when_a_block_is_freed() -> None:
    heap = _heap(4 * MIB)
    places = [heap.allocate(MIB) for _ in range(4)]
    assert None not in places
    assert heap.allocate(MIB) is None
    assert places[2] is not None
    heap.free(places[2])
    assert heap.allocate(MIB) == places[2]


def test_a_heap_in_which_nothing_is_used_allocates_blocks_of_any_size() -> None:
    heap = _heap(4 * MIB)
    for _ in range(2):
        places = [heap.allocate(4096) for _ in range(1024)]
        assert heap.allocate(4096) is None
        for position in places:
            assert position is not None
            heap.free(position)
        whole = heap.allocate(4 * MIB)
        assert whole is not None
        heap.free(whole)


def test_what_can_never_be_had_does_not_fit() -> None:
    heap = _heap(4 * MIB)
    assert heap.fits(4 * MIB)
    assert not heap.fits(4 * MIB + 1)


def test_a_block_is_freed_once() -> None:
    heap = _heap(MIB)
    position = heap.allocate(10)
    assert position is not None
    heap.free(position)
    with pytest.raises(KeyError):
        heap.free(position)


def test_blocks_that_come_and_go_stay_in_the_same_pages() -> None:
    heap = _heap(1024 * MIB)
    places = set()
    for _ in range(500):
        position = heap.allocate(600_000)
        assert position is not None
        places.add(position)
        heap.free(position)
    assert len(places) == 1
    assert heap.kept_bytes < MIB
