"""The sketch against exact ranks: its error is what it promises, on any order of any values."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpx.serving.distributions.quantiles import QuantileSketch, SlidingQuantiles, Summary

SHARES = (0.0, 0.001, 0.01, 0.25, 0.5, 0.9, 0.95, 0.99, 0.999, 0.9999, 1.0)
S = 1_000_000_000


def rank_error(values: Sequence[int], share: float, answer: int | None) -> int:
    """By how many ranks `answer` misses the value of this share."""
    ordered = np.sort(np.array(values, np.int64))
    rank = min(max(math.ceil(share * len(values)), 1), len(values))
    assert answer is not None
    lowest = int(np.searchsorted(ordered, answer, "left")) + 1
    highest = int(np.searchsorted(ordered, answer, "right"))
    assert lowest <= highest, f"{answer} is none of the values"
    return max(0, lowest - rank, rank - highest)


def sketch_of(values: Sequence[int], error: float, together: int) -> QuantileSketch:
    sketch = QuantileSketch(error)
    for start in range(0, len(values), together):
        sketch.add(values[start : start + together])
    return sketch


def stream(kind: str, count: int) -> list[int]:
    rng = np.random.default_rng(7)
    made: dict[str, Any] = {
        "lognormal": rng.lognormal(11, 1.5, count),
        "constant": np.full(count, 12_345),
        "rising": np.arange(count),
        "falling": np.arange(count)[::-1],
        "two modes": np.where(
            rng.random(count) < 0.97, rng.normal(1e5, 1e3, count), rng.normal(1e7, 1e5, count)
        ),
        "a late spike": np.concatenate([rng.normal(1e5, 1e3, count - 50), np.full(50, 1e9)]),
    }
    values: list[int] = made[kind].astype(np.int64).tolist()
    return values


@pytest.mark.parametrize("error", [0.001, 0.01, 0.1])
@pytest.mark.parametrize("kind", ["lognormal", "constant", "rising", "falling", "two modes", "a late spike"])
def test_every_rank_is_within_the_error_in_bounded_memory(kind: str, error: float) -> None:
    values = stream(kind, 60_000)
    sketch = sketch_of(values, error, 2048)
    for share in SHARES:
        assert rank_error(values, share, sketch.quantiles([share])[0]) <= error * len(values)
    assert len(sketch) < 3 / error


def test_memory_does_not_grow_with_the_stream() -> None:
    sketch, sizes = QuantileSketch(0.005), []
    rng = np.random.default_rng(3)
    for _ in range(200):
        sketch.add(rng.lognormal(11, 1, 1000).astype(np.int64).tolist())
        sizes.append(len(sketch))
    assert max(sizes[100:]) < 1.2 * max(sizes[:20])


@pytest.mark.slow
@given(
    st.lists(st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=60), min_size=1, max_size=12),
    st.sampled_from([0.01, 0.05, 0.2, 0.5]),
    st.floats(0, 1),
)
def test_any_batches_of_any_values_are_within_the_error(
    batches: list[list[int]], error: float, share: float
) -> None:
    sketch = QuantileSketch(error)
    for batch in batches:
        sketch.add(batch)
    values = [value for batch in batches for value in batch]
    assert rank_error(values, share, sketch.quantiles([share])[0]) <= error * len(values)
    assert sketch.count == len(values)


@given(
    st.lists(st.lists(st.integers(0, 1000), min_size=1, max_size=200), min_size=2, max_size=6),
    st.floats(0, 1),
)
def test_merging_keeps_the_error(parts: list[list[int]], share: float) -> None:
    error = 0.05
    whole = QuantileSketch(error)
    for part in parts:
        whole.merge(sketch_of(part, error, 16))
        whole.compress()
    values = [value for part in parts for value in part]
    assert rank_error(values, share, whole.quantiles([share])[0]) <= error * len(values)


def test_few_values_are_exact() -> None:
    sketch = sketch_of(list(range(100, 0, -1)), 0.001, 7)
    assert sketch.quantiles([0, 0.5, 0.9, 0.99, 1]) == [1, 50, 90, 99, 100]


def test_the_smallest_and_the_largest_are_kept() -> None:
    sketch = sketch_of(stream("lognormal", 50_000), 0.1, 512)
    values = stream("lognormal", 50_000)
    assert sketch.quantiles([0, 1]) == [min(values), max(values)]


def test_nothing_has_no_quantile() -> None:
    assert QuantileSketch(0.01).quantiles([0.5, 0.9]) == [None, None]


def test_a_value_is_forgotten_after_its_minute() -> None:
    window = SlidingQuantiles(0.01, 0)
    window.add([1000])
    seen = {}
    for second in range(0, 90, 4):
        if second * S >= window.ends_ns:
            window.expire(second * S)
        seen[second] = window.read([0.5])[0]
    assert {seen[second] for second in seen if second < 48} == {1000}
    assert {seen[second] for second in seen if second >= 60} == {None}


def test_the_window_is_all_of_its_slots() -> None:
    window = SlidingQuantiles(0.001, 0)
    for second in range(0, 60, 12):
        if second:
            window.expire(second * S)
        window.add([second] * 10)
    assert window.read([0.1, 0.5, 0.9, 1.0]) == [0, 24, 48, 48]
    window.expire(60 * S)
    assert window.read([0.1, 1.0]) == [12, 48]


def test_a_long_silence_ends_every_slot_at_once() -> None:
    window = SlidingQuantiles(0.01, 0)
    window.add([1])
    window.expire(10_000 * S)
    assert window.read([0.5]) == [None]
    assert 10_000 * S < window.ends_ns <= 10_012 * S


def test_quantiles_are_of_everything_observed_so_far() -> None:
    summary = Summary(0.001, 0)
    for ns in range(1, 5001):
        summary.observe(ns, 1, S)
    middle, high = summary.read_ns([0.5, 0.99], S)
    assert middle is not None
    assert high is not None
    assert abs(middle - 2500) <= 5
    assert abs(high - 4950) <= 5
    assert (summary.count, summary.total_ns) == (5000, 5000 * 5001 // 2)


def test_reading_changes_nothing() -> None:
    summary = Summary(0.01, 0)
    for ns in (10, 20, 30):
        summary.observe(ns, 1, S)
        assert summary.read_ns([1.0], S) == [ns]
    assert summary.read_ns([0.5], S) == [20]


def test_requests_of_one_batch_count_each() -> None:
    summary = Summary(0.01, 0)
    summary.observe(7, 3, S)
    summary.observe(1, 1, S)
    assert summary.read_ns([0.25, 0.5], S) == [1, 7]
    assert (summary.count, summary.total_ns) == (4, 22)


def test_the_totals_stay_when_the_quantiles_have_been_forgotten() -> None:
    summary = Summary(0.01, 0)
    summary.observe(7, 1, S)
    assert summary.read_ns([0.5], 30 * S) == [7]
    assert summary.read_ns([0.5], 100 * S) == [None]
    assert (summary.count, summary.total_ns) == (1, 7)


def test_a_duration_that_was_not_read_ages_from_when_it_was_observed() -> None:
    summary = Summary(0.01, 0)
    summary.observe(1000, 1, 1 * S)
    summary.observe(5, 1, 70 * S)
    assert summary.read_ns([0.0, 1.0], 70 * S) == [5, 5]
