"""One way to write figures for people."""

import math

import pytest

from tpx.report.digits import change, change_range, duration, in_unit, latency, rounded


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (34563.2, "34,600"),
        (9999.0, "10,000"),
        (1000.0, "1,000"),
        (999.6, "1,000"),
        (638.9, "639"),
        (22.31, "22.3"),
        (2.0, "2.00"),
        (0.41421, "0.414"),
        (0.0001234, "0.000123"),
        (0.0, "0"),
        (-12.345, "-12.3"),
        (1234567.0, "1,230,000"),
    ],
)
def test_people_read_three_significant_digits(value: float, text: str) -> None:
    assert rounded(value) == text


@pytest.mark.parametrize(
    ("duration_ns", "text"),
    [
        (638_900, "639 \u00b5s"),
        (999_400, "999 \u00b5s"),
        (999_600, "1.00 ms"),
        (2_414_000, "2.41 ms"),
        (850, "0.850 \u00b5s"),
    ],
)
def test_latencies_are_in_us_up_to_one_millisecond(duration_ns: int, text: str) -> None:
    assert latency(duration_ns) == text


def test_a_figure_carries_its_unit() -> None:
    assert in_unit(0.638, "ms") == "638 \u00b5s"
    assert in_unit(26430.0, "infer/s") == "26,400 infer/s"


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.468, "+47%"),
        (-0.03, "-3%"),
        (0.001, "0%"),
        (-0.001, "0%"),
        (6.69, "7.7x"),
        (-0.6, "0.4x"),
        (20, "21x"),
    ],
)
def test_changes_have_their_sign_and_large_ones_are_ratios(share: float, text: str) -> None:
    assert change(share) == text


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (-0.034, 0.16, "-3 to +16%"),
        (0.003, 0.23, "+0.3 to +23.0%"),
        (-0.22, 6.69, "0.8x to 7.7x"),
        (0.6, 1.1, "1.6x to 2.1x"),
        (0.03, 3.0, "1.03x to 4.0x"),
        (-0.999, 12.13, "0.001x to 13x"),
        (-1.0, math.inf, "unknown"),
    ],
)
def test_an_interval_beyond_half_is_one_of_ratios(low: float, high: float, text: str) -> None:
    assert change_range(low, high) == text


def test_durations_have_the_units_that_they_need() -> None:
    assert [duration(s * 1e9) for s in (40, 185, 7620)] == ["40 s", "3 min 05 s", "2 h 07 min"]
