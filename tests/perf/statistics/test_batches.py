"""Batches count what ended in them, and their histograms know its quantiles."""

import numpy as np
import pytest

from tpx.perf.statistics.summaries import BATCHES, batch_count, bin_of, cut, quantiles


def test_every_request_is_in_the_batch_of_its_end() -> None:
    ends = np.array([0, 5, 10, 19, 20, 39, 40])
    ok = np.array([True, True, True, False, True, True, True])
    batches = cut(ends, np.full(7, 1000), ok, (0, 40), 4)
    assert batches.requests.tolist() == [2, 1, 1, 2]
    assert batches.failed.tolist() == [0, 1, 0, 0]
    assert batches.latency_sum_ns.tolist() == [2000, 1000, 1000, 2000]
    assert batches.seconds == pytest.approx(10e-9)
    assert (batches.requests / batches.seconds).sum() == pytest.approx(6 / 10e-9)


def test_a_histogram_has_a_row_a_batch_and_only_bins_that_occur() -> None:
    latencies = np.array([1000, 1000, 50_000, 1000])
    batches = cut(np.array([1, 2, 3, 9]), latencies, np.ones(4, bool), (0, 10), 2)
    assert batches.bins.tolist() == bin_of(np.array([1000, 50_000])).tolist()
    assert batches.histogram.tolist() == [[2, 1], [1, 0]]


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9, 0.99])
def test_quantiles_of_a_histogram_are_those_of_the_values_within_half_a_bin(probability: float) -> None:
    latencies = np.random.default_rng(3).lognormal(13, 0.7, 20_000)
    batches = cut(np.arange(20_000), latencies, np.ones(20_000, bool), (0, 20_000), 1)
    (quantile,) = quantiles(batches.histogram, batches.bins, probability)
    assert quantile == pytest.approx(np.quantile(latencies, probability), rel=0.006)


def test_a_batch_without_requests_has_no_quantile() -> None:
    batches = cut(np.array([1]), np.array([500]), np.array([True]), (0, 10), 2)
    first, second = quantiles(batches.histogram, batches.bins, 0.5)
    assert 490 < first < 512
    assert np.isnan(second)
    nothing = cut(np.array([]), np.array([]), np.array([], dtype=bool), (0, 10), 5)
    assert np.isnan(quantiles(nothing.histogram, nothing.bins, 0.5)).all()
    assert nothing.requests.tolist() == [0] * 5


def test_few_requests_make_few_batches() -> None:
    assert [batch_count(n) for n in (0, 50, 90, 250, 10**6)] == [5, 5, 9, BATCHES, BATCHES]
