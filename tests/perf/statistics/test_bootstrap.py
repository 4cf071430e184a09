"""Resampled differences: present where there is one, absent where there is none."""

import numpy as np
import pytest

from tpx.perf.statistics.differences import Figure, change, quantile_figure, rate_figure
from tpx.perf.statistics.summaries import Batches, cut


def measured(rng: np.random.Generator, rate: float, latency_ms: float) -> Batches:
    """Five seconds of Poisson arrivals with lognormal latencies around `latency_ms`."""
    count = rng.poisson(rate * 5)
    ends = np.sort(rng.uniform(0, 5e9, count)).astype(np.int64)
    latencies = (rng.lognormal(0, 0.5, count) * latency_ms * 1e6).astype(np.int64)
    return cut(ends, latencies, np.ones(count, bool), (0, 5_000_000_000))


def share_found(rate: float, latency: float, figure: Figure, runs: int = 60) -> float:
    rng = np.random.default_rng(8)
    found = 0
    for _ in range(runs):
        difference = change(
            measured(rng, 1000, 5),
            measured(rng, 1000 * rate, 5 * latency),
            figure,
            confidence=0.95,
            rng=rng,
            resamples=400,
        )
        found += not difference.low <= 0 <= difference.high
    return found / runs


@pytest.mark.slow
def test_a_change_of_a_tenth_is_found_and_its_size_is_in_the_interval() -> None:
    assert share_found(1.1, 1, rate_figure) > 0.9
    assert share_found(1, 1.1, quantile_figure(0.5)) > 0.9
    rng = np.random.default_rng(9)
    difference = change(measured(rng, 1000, 5), measured(rng, 1100, 5), rate_figure, confidence=0.95, rng=rng)
    assert difference.low < 0.1 < difference.high
    assert difference.p_value < 0.01


@pytest.mark.slow
def test_where_there_is_none_it_is_found_as_rarely_as_stated() -> None:
    for figure in (rate_figure, quantile_figure(0.5), quantile_figure(0.99)):
        assert share_found(1, 1, figure) <= 0.1


def test_batches_without_requests_make_a_difference_unsure_and_no_nonsense() -> None:
    rng = np.random.default_rng(10)
    ends = np.sort(rng.uniform(0, 0.5e9, 400)).astype(np.int64)
    latencies = rng.lognormal(0, 0.5, 400) * 5e6
    fell_silent = cut(ends, latencies.astype(np.int64), np.ones(400, bool), (0, 10_000_000_000))
    for figure in (rate_figure, quantile_figure(0.5)):
        found = change(fell_silent, fell_silent, figure, confidence=0.95, rng=rng)
        assert found.low <= 0 <= found.high
        assert np.isfinite([found.low, found.high]).all()
    assert change(fell_silent, fell_silent, quantile_figure(0.5), confidence=0.95, rng=rng).high < 1
