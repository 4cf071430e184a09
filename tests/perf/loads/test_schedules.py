"""Schedules, without time."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from tpx.perf.inputs.feed import Share
from tpx.perf.levels import Intervals, Level, level_seed
from tpx.perf.loads.schedules import (
    BLOCK,
    NEVER,
    Offsets,
    Timetable,
    at_random,
    evenly,
    in_bursts,
    listed,
    offsets,
    repeated,
)
from tpx.perf.pace import Distribution, PaceSpec
from tpx.perf.settings import LevelSettings

RATE = Level("request_rate", 1000.0)


def first(blocks: Iterator[Offsets], count: int) -> Offsets:
    parts: list[Offsets] = []
    for block in blocks:
        parts.append(block)
        if sum(map(len, parts)) >= count:
            break
    return np.concatenate(parts)[:count]


def plan(distribution: Distribution, seed: int = 0, shape: float = 1.0) -> LevelSettings:
    own = shape if distribution == "gamma" else 1.0
    return LevelSettings(pace=PaceSpec(request_distribution=distribution, gamma_shape=own), seed=seed)


def test_a_constant_rate_comes_one_gap_after_the_start_and_evenly() -> None:
    assert first(evenly(1000.0), 3).tolist() == [1_000_000, 2_000_000, 3_000_000]


@pytest.mark.parametrize("rate", [3.0, 700.0, 12_345.678])
def test_a_constant_rate_does_not_drift_over_a_million_requests(rate: float) -> None:
    last = first(evenly(rate), 1_000_000)[-1]
    assert last == pytest.approx(1_000_000 * 1e9 / rate, abs=1)


def test_blocks_join_without_a_gap_or_a_fall() -> None:
    for blocks in (evenly(100.0), at_random(100.0, 1.0, level_seed(0, RATE)), repeated((5, 0, 7))):
        times = first(blocks, 3 * BLOCK)
        assert (np.diff(times) >= 0).all()
    gaps = np.diff(first(evenly(100.0), 3 * BLOCK))
    assert set(gaps.tolist()) == {10_000_000}


@pytest.mark.parametrize("shape", [0.5, 1.0, 4.0])
def test_random_arrivals_keep_the_rate_and_have_the_variation_of_their_shape(shape: float) -> None:
    times = first(at_random(500.0, shape, level_seed(1, RATE)), 100_000)
    gaps = np.diff(times)
    assert times[-1] == pytest.approx(100_000 / 500 * 1e9, rel=0.02)
    assert gaps.std() / gaps.mean() == pytest.approx(shape**-0.5, rel=0.03)


def test_poisson_arrivals_in_a_second_vary_as_much_as_their_mean() -> None:
    times = first(at_random(200.0, 1.0, level_seed(2, RATE)), 200_000)
    counts = np.bincount(times // 1_000_000_000)[:-1]
    assert counts.var() / counts.mean() == pytest.approx(1.0, abs=0.2)


def test_the_same_seed_gives_the_same_schedule_and_another_one_another() -> None:
    same = first(offsets(RATE, plan("poisson", seed=7)), 1000)
    assert (first(offsets(RATE, plan("poisson", seed=7)), 1000) == same).all()
    assert (first(offsets(RATE, plan("poisson", seed=8)), 1000) != same).any()


def test_levels_of_a_run_have_schedules_of_their_own() -> None:
    slow = first(offsets(Level("request_rate", 100.0), plan("poisson")), 1000)
    fast = first(offsets(Level("request_rate", 200.0), plan("poisson")), 1000)
    assert np.corrcoef(np.diff(slow), np.diff(fast))[0, 1] < 0.2


@pytest.mark.parametrize("distribution", ["constant", "poisson", "gamma", "burst"])
@pytest.mark.parametrize("workers", [2, 3, 7])
def test_the_workers_shares_together_are_the_whole_schedule(distribution: Distribution, workers: int) -> None:
    count = 2 * BLOCK + 5
    whole = first(offsets(RATE, plan(distribution, shape=2.0)), count)
    parts = [
        first(offsets(RATE, plan(distribution, shape=2.0), Share(i, workers)), -(-(count - i) // workers))
        for i in range(workers)
    ]
    for i, part in enumerate(parts):
        assert (part == whole[i::workers]).all()
    assert sum(map(len, parts)) == count


@pytest.mark.parametrize(("sequences", "workers"), [(3, 2), (7, 3), (4, 4), (10, 4)])
def test_sequences_that_take_turns_keep_their_times_whichever_worker_has_them(
    sequences: int, workers: int
) -> None:
    count = 2 * BLOCK + 5
    whole = first(offsets(RATE, plan("poisson")), count)
    turns = np.arange(count) % sequences
    requests = []
    for i in range(workers):
        share = Share(i, workers)
        own = share.part_in_turn(count, sequences)
        dealt = replace(plan("poisson"), sequences=sequences)
        assert (first(offsets(RATE, dealt, share), own) == whole[turns % workers == i]).all()
        requests.append(own)
    assert sum(requests) == count


def test_a_share_of_a_poisson_process_among_many_has_its_part_of_the_rate() -> None:
    part = first(offsets(RATE, plan("poisson"), Share(1, 4)), 20_000)
    assert part[-1] == pytest.approx(20_000 / 250 * 1e9, rel=0.03)


def test_intervals_are_repeated_exactly() -> None:
    intervals = Intervals(path=Path("gaps"), gaps_ns=(100, 110, 130))
    level = Level("custom_intervals", intervals.rate)
    times = first(offsets(level, LevelSettings(intervals=intervals)), 100_000)
    assert times[:7].tolist() == [100, 210, 340, 440, 550, 680, 780]
    assert times[99_998] == 33_332 * 340 + 340
    assert intervals.rate == pytest.approx(3e9 / 340)


def test_bursts_come_together_and_keep_the_rate() -> None:
    assert first(in_bursts(1000.0, 3), 7).tolist() == [0, 0, 0, 3_000_000, 3_000_000, 3_000_000, 6_000_000]


def test_a_list_is_sorted_dealt_out_and_ends() -> None:
    times = np.array([30, 10, 20, 40, 50], np.int64)
    assert [b.tolist() for b in listed(times)] == [[10, 20, 30, 40, 50]]
    assert [b.tolist() for b in listed(times, Share(1, 2))] == [[20, 40]]


@pytest.mark.parametrize(("count", "slots", "workers"), [(60, 3, 2), (7, 5, 3), (100, 4, 4), (3, 8, 3)])
def test_requests_are_split_by_the_slots_that_send_them(count: int, slots: int, workers: int) -> None:
    parts = [Share(i, workers).part_by(count, slots) for i in range(workers)]
    own = [Share(i, workers).part(slots) for i in range(workers)]
    assert sum(parts) == count
    for part, slot_count in zip(parts, own, strict=True):
        assert abs(part - count * slot_count / slots) < 1


def test_a_schedule_costs_no_more_than_is_asked_for() -> None:
    assert len(list(islice(offsets(RATE, plan("constant")), 2))) == 2


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
