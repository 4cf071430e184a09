"""Findings against known truths: how often each is wrong, and that interval, test and finding agree."""

import math

import numpy as np
import pytest

from tpx.perf.statistics.findings import (
    Contrast,
    RoundTable,
    StandardError,
    contrast_runs,
    corrected,
    mean_error,
    moderate,
)
from tpx.perf.statistics.intervals import t_quantile

NAMES = ("default", "one", "two")


def rounds_of(
    rng: np.random.Generator,
    levels: tuple[float, ...],
    rounds: int,
    *,
    window: float,
    load: float,
    common: float,
) -> RoundTable:
    """Three windows of each item per round, with these standard deviations."""
    shared = common * rng.standard_normal(rounds)
    return RoundTable(
        {
            name: {
                number: (
                    level + shared[number] + load * rng.standard_normal() + window * rng.standard_normal(3)
                ).tolist()
                for number in range(rounds)
            }
            for name, level in zip(NAMES, levels, strict=False)
        }
    )


@pytest.mark.parametrize(
    ("window", "load", "common"), [(0.03, 0.02, 0.02), (0.15, 0.05, 0.10), (0.03, 0.03, 0.0)]
)
def test_equal_items_are_found_different_in_less_than_5_of_100(
    window: float, load: float, common: float
) -> None:
    rng = np.random.default_rng(1)
    wrong = 0
    for _ in range(300):
        table = rounds_of(rng, (0.0, 0.0, 0.0), 3, window=window, load=load, common=common)
        wrong += any(table.contrast(name, "default", comparisons=2).different for name in NAMES[1:])
    assert wrong <= 0.05 * 300


def test_a_tenth_is_never_equivalent_and_equal_items_of_a_quiet_machine_are() -> None:
    rng = np.random.default_rng(2)
    noise = {"window": 0.01, "load": 0.01, "common": 0.01}
    apart = [rounds_of(rng, (0.0, math.log(1.1)), 6, **noise).contrast("one", "default") for _ in range(100)]
    assert sum(each.finding == "different" for each in apart) >= 95
    assert not any(each.equivalent for each in apart)
    equal = [rounds_of(rng, (0.0, 0.0), 6, **noise).contrast("one", "default") for _ in range(100)]
    assert sum(each.finding == "equivalent" for each in equal) >= 90


def test_interval_and_p_value_agree_in_every_comparison() -> None:
    rng = np.random.default_rng(3)
    for _ in range(300):
        table = rounds_of(rng, (0.0, 0.05, 0.1), 3, window=0.05, load=0.03, common=0.1)
        for alpha in (0.01, 0.05):
            found = table.contrast("two", "default", alpha=alpha, comparisons=2)
            assert found.different == (found.p_value < alpha) == (not found.low <= 0 <= found.high)
            assert found.low < found.value < found.high


def test_a_round_that_is_slow_for_all_changes_no_difference() -> None:
    steady = {"a": {1: (0.0,), 2: (0.01,), 3: (0.0,)}, "b": {1: (0.3,), 2: (0.3,), 3: (0.31,)}}
    drifting = {
        name: {n: tuple(v - 0.5 * n for v in w) for n, w in own.items()} for name, own in steady.items()
    }
    plain, moved = (RoundTable(each, moderated=False).contrast("b", "a") for each in (steady, drifting))
    assert moved.change == pytest.approx(plain.change)
    assert moved.reach == pytest.approx(plain.reach)


def test_one_wild_window_does_not_move_a_level() -> None:
    steady = RoundTable({"a": {1: (0.0, 0.0, 0.01), 2: (0.0, 0.01, 0.0)}})
    lost = RoundTable({"a": {1: (0.0, 0.0, -0.9), 2: (0.0, 0.01, 0.0)}})
    assert lost.level("a") == pytest.approx(steady.level("a"), abs=0.01)


def test_missing_rounds_are_made_up_for_by_the_others() -> None:
    """The item that left early saw only slow rounds."""
    own = {"a": {n: (-0.2 if n < 3 else 0.2,) for n in range(1, 7)}, "b": {1: (-0.1,), 2: (-0.1,)}}
    table = RoundTable(own)
    assert table.contrast("b", "a").change == pytest.approx(0.1)
    assert table.contrast("b", "a").repeats == 2


@pytest.mark.parametrize(
    "measured",
    [
        {"a": {1: (0.1,)}, "b": {1: (0.2,)}},
        {"a": {1: (0.1,), 2: (0.1,)}, "b": {3: (0.2,), 4: (0.2,)}},
        {"a": {1: (0.1,), 2: (0.1,)}, "b": {1: (-math.inf,), 2: (-math.inf,)}},
        {"a": {1: (0.1,), 2: (0.1,)}},
        {},
    ],
)
def test_without_two_common_rounds_nothing_is_known(
    measured: dict[str, dict[int, tuple[float, ...]]],
) -> None:
    found = RoundTable(measured).contrast("b", "a")
    assert (found.finding, found.low, found.high, found.p_value) == ("undecided", -1.0, math.inf, 1.0)


def test_variance_that_contradicts_the_prior_is_not_shrunk() -> None:
    wild = RoundTable({"a": {1: (-0.45,), 2: (0.4,), 3: (0.0,)}, "b": {1: (0.45,), 2: (-0.4,), 3: (0.1,)}})
    found = wild.contrast("b", "a")
    differences = np.array([0.9, -0.8, 0.1])
    assert found.reach == pytest.approx(
        t_quantile(0.975, 2) * differences.std(ddof=1) / math.sqrt(3), rel=1e-6
    )


@pytest.mark.parametrize(("before", "after"), [([0.0], [0.5]), ([0.0, 0.0], [0.5, 0.5, 0.5])])
def test_fewer_than_three_runs_before_are_no_evidence(before: list[float], after: list[float]) -> None:
    found = contrast_runs(before, after)
    assert (found.finding, found.high) == ("undecided", math.inf)
    assert found.value == pytest.approx(math.expm1(0.5))


@pytest.mark.parametrize(("old", "new"), [(3, 1), (3, 3), (5, 1)])
@pytest.mark.parametrize("between", [0.0, 0.02, 0.05])
def test_runs_that_differ_by_chance_are_rarely_different(old: int, new: int, between: float) -> None:
    rng = np.random.default_rng(4)
    sd = math.hypot(between, 0.01)
    wrong = found = 0
    for _ in range(400):
        figures = [
            contrast_runs(
                (sd * rng.standard_normal(old)).tolist(), (sd * rng.standard_normal(new)).tolist(), 1e-4
            )
            for _ in range(3)
        ]
        wrong += any(each.different for each in corrected(figures, 0.05, 0.05))
        slower = (sd * rng.standard_normal(new) + math.log(1.5)).tolist()
        (found_one, *_) = corrected(
            [contrast_runs((sd * rng.standard_normal(old)).tolist(), slower, 1e-4)] * 3, 0.05, 0.05
        )
        found += found_one.different
    assert wrong <= 0.07 * 400
    assert found >= 0.8 * 400


def test_a_difference_that_is_certain_and_certainly_small_is_equivalent() -> None:
    small = Contrast(change=0.01, errors=(StandardError(0.001, 50),), repeats=6)
    assert small.different
    assert small.finding == "equivalent"
    assert corrected([small], 0.05, 0.005)[0].finding == "different"


def test_no_spread_at_all_is_no_division_by_zero() -> None:
    equal = Contrast(change=0.0, errors=(StandardError(0.0, 3),), repeats=4)
    apart = Contrast(change=0.2, errors=(StandardError(0.0, 3),), repeats=4)
    assert (equal.p_value, equal.finding) == (1.0, "equivalent")
    assert (apart.p_value, apart.finding) == (0.0, "different")


def test_the_repeats_that_would_decide_grow_with_the_noise() -> None:
    def needed(change: float, error: float) -> int:
        return Contrast(change=change, errors=(StandardError(error, 5),), repeats=4).needed

    assert needed(0.1, 0.05) < needed(0.1, 0.1) < needed(0.05, 0.1)
    assert needed(0.0, 0.03) < needed(0.024, 0.03)  # as far from zero as from the margin is the hardest
    assert Contrast(change=0.1).needed == 0


def test_noise_of_more_than_half_has_no_bounds_worth_showing() -> None:
    assert Contrast(change=0.1, errors=(StandardError(0.3, 5),), repeats=2).too_noisy
    assert not Contrast(change=0.1, errors=(StandardError(0.1, 5),), repeats=2).too_noisy
    assert not Contrast(change=2.0, errors=(StandardError(0.3, 5),), repeats=2).too_noisy
    assert not Contrast(change=0.1).too_noisy


def test_a_mean_of_two_is_not_known_as_badly_as_one_degree_of_freedom_says() -> None:
    (error,) = mean_error([0.0, 0.01])
    assert error.reach(0.025) < 0.1
    wild = mean_error([0.0, 0.7])
    assert max(each.reach(0.025) for each in wild) == pytest.approx(t_quantile(0.975, 1) * 0.35, rel=1e-6)


def test_the_error_of_a_difference_is_that_of_the_specification() -> None:
    """Two items in two rounds of three windows: residual, windows, loads and rounds by hand."""
    windows = {
        "a": {1: (0.00, 0.02, 0.05), 2: (0.10, 0.13, 0.12)},
        "b": {1: (0.30, 0.33, 0.31), 2: (0.45, 0.40, 0.44)},
    }
    a1, a2, b1, b2 = 0.02, 0.12, 0.31, 0.44
    residual = ((a1 - a2) - (b1 - b2)) ** 2 / 4  # one degree of freedom
    rounds = ((a2 + b2) / 2 - (a1 + b1) / 2) ** 2 / 2
    scatter = np.median([np.var(each, ddof=1) for item in windows.values() for each in item.values()])
    prior = scatter / (1 - 2 / 18) ** 3 * 1.35 / 3 + 0.03**2 + rounds
    found = RoundTable(windows).contrast("b", "a")
    assert found.change == pytest.approx((b1 + b2 - a1 - a2) / 2)
    (error,) = found.errors
    assert error.degrees == 4
    assert error.error == pytest.approx(math.sqrt((3 * prior + residual) / 4))
    assert found.repeats == 2


@pytest.mark.parametrize(("times", "counts"), [(2.9, 1), (3.1, 2)])
def test_a_variance_of_three_times_the_prior_contradicts_it(times: float, counts: int) -> None:
    found = moderate(times * 0.01, 2, 0.01)
    assert len(found) == counts
    variance, degrees = found[0]
    assert (variance, degrees) == pytest.approx(((3 * 0.01 + 2 * times * 0.01) / 5, 5))
    assert found[1:] == ((times * 0.01, 2),) * (counts - 1)


def test_a_difference_that_no_two_rounds_have_seen_is_unknown() -> None:
    seen = {"a": {1: (0.0,), 2: (0.0,), 3: (0.0,)}, "b": {1: (0.5,)}, "c": {2: (0.5,), 3: (0.5,)}}
    table = RoundTable(seen)
    assert (table.contrast("b", "a").reach, table.contrast("b", "a").repeats) == (math.inf, 1)
    assert table.contrast("b", "c").finding == "undecided"
    assert math.isfinite(table.contrast("c", "a").reach)
    for pair in (("a", "nothing"), ("nothing", "a")):
        missing = table.contrast(*pair)
        assert (missing.change, missing.errors, missing.comparisons) == (0.0, (), 1)


def test_runs_are_as_many_as_the_side_with_fewer_has() -> None:
    assert contrast_runs([0.0, 0.1, 0.2], [0.5]).repeats == 1
    assert contrast_runs([0.0], [0.5, 0.6]).repeats == 1
