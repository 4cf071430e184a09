"""Gains with their intervals, by rounds that were measured side by side."""

import math
import random

import pytest

from tpx.analyzer.conclusion import UNKNOWN, compare_scores


def logs(*values: float) -> dict[int, float]:
    return {number: math.log(value) for number, value in enumerate(values)}


def test_what_a_round_does_to_both_goes_out() -> None:
    steady = compare_scores(logs(150, 75, 300), logs(100, 50, 200))
    assert (steady.value, steady.low, steady.high) == pytest.approx((0.5, 0.5, 0.5))


def test_gains_are_symmetric_as_ratios() -> None:
    ours, theirs = logs(120, 130, 125), logs(100, 101, 99)
    there, back = compare_scores(ours, theirs), compare_scores(theirs, ours)
    assert (1 + there.value) * (1 + back.value) == pytest.approx(1)
    assert (1 + there.low) * (1 + back.high) == pytest.approx(1)


def test_gains_add_up_as_logarithms() -> None:
    a, b, c = logs(100, 110), logs(130, 120), logs(150, 170)
    assert (1 + compare_scores(c, b).value) * (1 + compare_scores(b, a).value) == pytest.approx(
        1 + compare_scores(c, a).value
    )


def test_an_interval_holds_the_truth_as_often_as_it_says() -> None:
    chance, held = random.Random(1), 0
    for _ in range(1000):
        ours = {n: math.log(1.2) + chance.gauss(0, 0.05) for n in range(5)}
        gain = compare_scores(ours, {n: chance.gauss(0, 0.05) for n in range(5)})
        held += gain.low <= 0.2 <= gain.high
    assert 930 <= held <= 970


@pytest.mark.parametrize(
    ("ours", "tied"),
    [((101, 100.5, 101), True), ((102, 100, 101), True), ((104, 104.1, 104), False), ((100, 130, 90), False)],
)
def test_tied_is_what_surely_differs_by_five_percent_at_most_and_perhaps_not_at_all(
    ours: tuple[float, ...], *, tied: bool
) -> None:
    assert compare_scores(logs(*ours), logs(100, 100, 100)).tied is tied


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [([], []), ([1.0], [2.0]), ([-math.inf, 1.0], [0.0, 0.0]), ([-math.inf] * 3, [-math.inf] * 3)],
)
def test_of_too_little_nothing_is_said(ours: list[float], theirs: list[float]) -> None:
    assert compare_scores(dict(enumerate(ours)), dict(enumerate(theirs))) is UNKNOWN


def test_a_gain_reads_with_its_interval() -> None:
    assert str(compare_scores(logs(167, 168, 166), logs(100, 100, 100))) == "+67% [65, 70]"
