"""Confidence intervals hold the truth as often as they say."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tpx.perf.statistics.intervals import (
    Interval,
    design_effect,
    lag_one,
    needed_samples,
    quantile_interval,
    ratio_interval,
    too_few,
    widening,
)

RUNS = 400


def share_covered(interval: Callable[[np.random.Generator], Interval], truth: float) -> float:
    rng = np.random.default_rng(5)
    return sum(interval(rng).holds(truth) for _ in range(RUNS)) / RUNS


def autoregressive(rng: np.random.Generator, size: int, correlation: float) -> npt.NDArray[Any]:
    noise = rng.normal(size=size) * math.sqrt(1 - correlation**2)
    values = np.empty(size)
    values[0] = rng.normal()
    for i in range(1, size):
        values[i] = correlation * values[i - 1] + noise[i]
    return values


def test_a_mean_of_independent_batches_is_covered_as_stated() -> None:
    covered = share_covered(lambda rng: ratio_interval(rng.exponential(size=25) + 9, np.ones(25)), 10.0)
    assert 0.93 <= covered <= 0.98


def test_dependent_batches_widen_the_interval_until_it_holds_the_truth() -> None:
    def interval(rng: np.random.Generator) -> Interval:
        return ratio_interval(100 + autoregressive(rng, 30, 0.5), np.ones(30))

    assert share_covered(interval, 100.0) >= 0.9
    assert widening(np.array([1.0, -1.0] * 10)) == 1.0
    assert widening(np.repeat([1.0, -1.0], 10)) > 2


def test_a_ratio_is_weighted_by_its_weights() -> None:
    interval = ratio_interval(np.array([10.0, 90.0]), np.array([1.0, 3.0]))
    assert interval.value == 25
    assert interval.low < 25 < (interval.high or 0)


@pytest.mark.slow
@pytest.mark.parametrize(("probability", "count"), [(0.5, 60), (0.9, 150), (0.99, 800), (0.99, 20_000)])
def test_order_statistics_cover_a_quantile_as_stated(probability: float, count: int) -> None:
    def interval(rng: np.random.Generator) -> Interval:
        ordered = np.sort(rng.exponential(size=count))
        return quantile_interval(ordered, float(np.quantile(ordered, probability)), probability)

    assert share_covered(interval, -math.log(1 - probability)) >= 0.94


def test_ranks_are_those_of_the_textbook() -> None:
    # median of 20: the 6th and the 15th, with 95.9% confidence
    interval = quantile_interval(np.arange(1, 21), 10.5, 0.5)
    assert (interval.low, interval.high) == (6, 15)


@pytest.mark.parametrize(("percentile", "count"), [(90, 44), (95, 90), (99, 459), (99.9, 4603)])
def test_a_percentile_needs_as_many_samples_as_mlperf_asks_for(percentile: float, count: int) -> None:
    assert needed_samples(percentile / 100) == count
    assert too_few(percentile, count - 1) == f"n too small for p{percentile:g} (need >= {count})"
    assert too_few(percentile, count) == ""
    dependent = too_few(percentile, 2 * count, effect=3)
    assert dependent.startswith(f"too few unrelated requests for p{percentile:g} (need >= {count:,}; ")
    assert dependent.endswith(f"these {2 * count:,} tell as much as {2 * count / 3:,.0f})")
    ordered = np.arange(count, dtype=float)
    assert quantile_interval(ordered[1:], count - 2, percentile / 100).high is None
    assert quantile_interval(ordered, count - 1, percentile / 100).high is not None


def test_an_interval_without_an_upper_end_is_never_narrow() -> None:
    interval = quantile_interval(np.arange(100.0), 98, 0.99)
    assert not interval.within(1e9)
    assert interval.holds(1e12)
    assert not interval.holds(0)


def test_independent_requests_have_no_design_effect_and_bursts_have_their_length() -> None:
    rng = np.random.default_rng(1)
    requests = np.full(25, 400)
    independent = design_effect(rng.binomial(400, 0.1, 25), requests)
    assert 1 <= independent < 2
    bursts = design_effect(20 * rng.binomial(20, 0.1, 25), requests)
    assert 10 < bursts < 50
    assert design_effect(np.zeros(25), requests) == 1


def test_correlation_of_constants_is_none() -> None:
    assert lag_one(np.ones(10)) == 0
    assert lag_one(autoregressive(np.random.default_rng(2), 5000, 0.7)) == pytest.approx(0.7, abs=0.03)
