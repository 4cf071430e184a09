"""Summaries: totals since the start, quantiles of the last minute."""

from tpx.serving.distributions.summary import Summary

S = 1_000_000_000


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
