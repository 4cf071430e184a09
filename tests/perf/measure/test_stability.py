"""perf_analyzer's stability rule, on made-up windows."""

import pytest

from tests.perf.conftest import make_window
from tpx.perf.measure.rules import describe_spread, is_stable
from tpx.perf.results import Window


def seen(*windows: tuple[float, int]) -> list[Window]:
    return [make_window(throughput, latency) for throughput, latency in windows]


def test_two_windows_are_never_stable() -> None:
    assert not is_stable(seen((100, 10), (100, 10)), 1.0)


@pytest.mark.parametrize(
    ("throughputs", "stable"),
    [
        ((100, 105, 110), True),  # 1.10 is exactly the limit
        ((100, 105, 110.1), False),
        ((110, 100, 100), True),
        ((95, 100, 105), False),  # within 10% of the mean, but 105/95 is more than 1.1
    ],
)
def test_throughput_may_spread_by_one_plus_tolerance(throughputs: tuple[float, ...], stable: bool) -> None:
    assert is_stable(seen(*((t, 10) for t in throughputs)), 0.1) is stable


def test_latency_is_held_to_the_same_spread() -> None:
    assert is_stable(seen((100, 100), (100, 105), (100, 110)), 0.1)
    assert not is_stable(seen((100, 100), (100, 105), (100, 111)), 0.1)


def test_only_the_last_three_windows_count() -> None:
    restless = seen((10, 900), (500, 1), (0, 0))
    assert is_stable(restless + seen((100, 10), (100, 10), (100, 10)), 0.0)
    assert not is_stable(restless + seen((100, 10), (100, 10)), 0.5)


def test_a_window_without_a_valid_request_is_not_stable() -> None:
    assert not is_stable(seen((0, 0), (0, 0), (0, 0)), 1e9)


def test_the_description_says_what_moved_and_by_how_much() -> None:
    text = describe_spread(seen((100, 1000), (112, 1000), (100, 1030)))
    assert text == "throughput moved by 12.0%, latency by 3.0%"
    assert describe_spread(seen((100, 1), (0, 0))) == "only 1 of the last 2 windows had valid requests"
