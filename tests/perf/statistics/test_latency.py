"""Percentiles and moments by perf_analyzer's formulas."""

import numpy as np
import pytest

from tpx.perf.statistics.summaries import rank, reported_percentiles, summarize


@pytest.mark.parametrize(
    ("percentile", "count", "index"),
    [
        (50, 1, 0),
        (50, 2, 1),
        (50, 3, 1),
        (99, 100, 98),
        (99, 101, 99),
        (90, 10, 8),
        (95, 11, 10),
        (99.9, 1001, 999),
    ],
)
def test_rank_is_the_nearest_with_halves_up(percentile: float, count: int, index: int) -> None:
    assert rank(percentile, count) == index


def test_percentiles_are_values_that_occurred_whatever_the_order() -> None:
    values = np.arange(1, 101, dtype=np.int64) * 1000
    summary = summarize(np.random.default_rng(1).permutation(values))
    assert [summary.at(p) for p in (50.0, 90.0, 95.0, 99.0)] == [51_000, 90_000, 95_000, 99_000]
    assert (summary.min_ns, summary.max_ns, summary.count) == (1000, 100_000, 100)


def test_the_mean_is_integer_division_and_the_deviation_that_of_a_sample() -> None:
    summary = summarize(np.array([1000, 2000, 4000], dtype=np.int64))
    assert summary.mean_ns == 2333
    assert summary.std_ns == pytest.approx(1527.5, abs=0.1)


def test_one_request_has_no_deviation() -> None:
    assert summarize(np.array([5000], dtype=np.int64)).std_ns == 0.0


def test_large_sums_do_not_overflow() -> None:
    hour_ns = 3_600 * 10**9
    assert summarize(np.full(2_000_000, hour_ns, dtype=np.int64)).mean_ns == hour_ns


def test_a_chosen_percentile_is_computed_and_shown_in_its_place() -> None:
    summary = summarize(np.arange(1000, dtype=np.int64), [99.5])
    assert summary.at(99.5) == rank(99.5, 1000)
    assert reported_percentiles(97.0) == [50.0, 90.0, 95.0, 97.0, 99.0]
    assert reported_percentiles(None) == reported_percentiles(95.0) == [50.0, 90.0, 95.0, 99.0]
    assert summary.at(None) == summary.mean_ns
