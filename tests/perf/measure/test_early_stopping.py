"""MLPerf's bound: how many queries show a percentile."""

import pytest

from tpx.perf.measure.collectors import least_queries, most_over, shown


@pytest.mark.parametrize(
    ("percentile", "on_time"),
    [
        (90, [44, 63, 79, 94, 122, 187, 305, 631]),
        (95, [90, 129, 163, 195, 254, 388, 636, 1322]),
        (99, [459, 661, 836, 998, 1302, 2000, 3284, 6848]),
        (99.9, [4603, 6635, 8401, 10039, 13100, 20130, 33077, 69008]),
    ],
)
def test_the_bound_is_mlperfs(percentile: float, on_time: list[int]) -> None:
    late = [0, 1, 2, 3, 5, 10, 20, 50]
    assert [least_queries(t, percentile) - t for t in late] == on_time


@pytest.mark.parametrize("percentile", [50, 90, 99])
def test_as_many_may_be_late_as_the_queries_still_show(percentile: float) -> None:
    for queries in (459, 1000, 5000):
        over = most_over(queries, percentile)
        assert over is not None
        assert shown(queries, over, percentile)
        assert not shown(queries, over + 1, percentile)


def test_too_few_queries_show_nothing() -> None:
    assert most_over(458, 99) is None
    assert most_over(459, 99) == 0
    assert most_over(0, 90) is None
