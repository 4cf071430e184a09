"""When requests are due, without a clock."""

from collections.abc import Iterable, Iterator

import numpy as np

from tpx.perf.loads.schedules import NEVER, Offsets, Timetable


def blocks(*of: Iterable[int]) -> Iterator[Offsets]:
    return iter([np.array(list(block), np.int64) for block in of])


def due(timetable: Timetable) -> list[int]:
    """All times that are left."""
    times = []
    while timetable.due_ns != NEVER:
        times.append(timetable.due_ns)
        timetable.advance()
    return times


def test_blocks_follow_each_other_from_the_origin_and_empty_ones_hold_nothing_up() -> None:
    timetable = Timetable(blocks([1, 2], [], [3]))
    assert (timetable.due_ns, timetable.over) == (NEVER, True)
    timetable.begin(None, 100)
    assert (timetable.due_ns, timetable.over) == (101, False)
    assert due(timetable) == [101, 102, 103]
    assert (timetable.due_ns, timetable.over) == (NEVER, True)


def test_a_count_ends_within_a_block_and_takes_no_further_one() -> None:
    schedule = blocks([1, 2], [3, 4], [5])
    timetable = Timetable(schedule)
    timetable.begin(3, 0)
    assert due(timetable) == [1, 2, 3]
    assert [block.tolist() for block in schedule] == [[5]]


def test_what_is_skipped_is_counted_across_blocks_and_against_the_count() -> None:
    timetable = Timetable(blocks([1, 2], [3, 4, 5]))
    timetable.begin(4, 0)
    assert timetable.skip(4) == 3
    assert due(timetable) == [4]


def test_an_end_leaves_nothing_due() -> None:
    timetable = Timetable(blocks([1, 2]))
    timetable.begin(None, 0)
    timetable.end()
    assert (timetable.due_ns, timetable.over) == (NEVER, True)
