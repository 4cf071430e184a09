"""Buckets: a duration belongs to the first whose bound it does not exceed."""

from bisect import bisect_left

from hypothesis import given
from hypothesis import strategies as st

from tpx.serving.distributions.histogram import Histogram


def test_a_bound_belongs_to_its_bucket() -> None:
    histogram = Histogram([1, 2.5, 10], 1000)
    for ns in (0, 999, 1000, 1001, 2500, 2501, 10_000, 10_001, 5_000_000):
        histogram.observe(ns, 1, 0)
    assert histogram.cumulative() == [3, 5, 7]
    assert histogram.count == 9
    assert histogram.total_ns == 0 + 999 + 1000 + 1001 + 2500 + 2501 + 10_000 + 10_001 + 5_000_000


def test_many_of_one_duration_count_with_one_call() -> None:
    histogram = Histogram([1, 2], 1000)
    histogram.observe(1500, 40, 0)
    assert (histogram.cumulative(), histogram.count, histogram.total_ns) == ([0, 40], 40, 60_000)


def test_bounds_may_be_negative_and_are_shown_as_they_were_given() -> None:
    histogram = Histogram([-1, 0.0, 1, 2.5], 1_000_000)
    histogram.observe(0, 1, 0)
    assert list(histogram.bounds) == [-1, 0.0, 1, 2.5]
    assert histogram.cumulative() == [0, 1, 1, 1]


@given(
    st.lists(st.integers(-1000, 10**6), min_size=1, unique=True).map(sorted),
    st.lists(st.integers(0, 10**9), max_size=50),
)
def test_each_bucket_counts_what_does_not_exceed_its_bound(bounds: list[int], durations: list[int]) -> None:
    histogram = Histogram(bounds, 1000)
    for ns in durations:
        histogram.observe(ns, 1, 0)
    ordered = sorted(durations)
    assert histogram.cumulative() == [bisect_left(ordered, bound * 1000 + 1) for bound in bounds]
