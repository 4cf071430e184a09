"""Refinement of constraints: the greatest load that keeps them, by bisection."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.analyzer.measuring import make_latency, make_measurement
from tests.analyzer.search.exploring import FIXED, search_spec, space
from tpx.analyzer.results.goals import Constraint, Goals
from tpx.analyzer.results.measurement import Outcome, Trial, TrialFailure
from tpx.analyzer.search.driver import SearchDriver
from tpx.analyzer.search.ranges import LoadSpace
from tpx.analyzer.search.spec import Limits, SearchSpace


def loads_measured(
    p99_ms: Callable[[int], float],
    *,
    within: SearchSpace | None = None,
    limit: float = 10.0,
    steps: int = 5,
    throughput: Callable[[int], float] = float,
) -> list[int]:
    """The loads of the default, in their order, of a model whose only variant fails."""
    goals = Goals(constraints=(Constraint(tag="perf_latency_p99", bound="max", limit=limit),))
    asked = search_spec(
        FIXED,
        within=within or space(instances=(1, 1), loads=(1, 2, 4, 8, 16, 32)),
        goals=goals,
        limits=Limits(final_rounds=0),
        run_config_search_max_binary_search_steps=steps,
    )
    search = SearchDriver("brute", asked)
    loads = []
    while (trial := search.ask()) is not None:
        if trial.variant.is_default:
            loads.append(trial.load.value)
        search.tell(trial, _outcome(trial, p99_ms, throughput))
    return loads


def _outcome(trial: Trial, p99_ms: Callable[[int], float], throughput: Callable[[int], float]) -> Outcome:
    name, load = trial.variant.name, trial.load
    if not trial.variant.is_default:
        return TrialFailure(variant=name, load=load, reason="no memory")
    latency = make_latency(p99_ns=round(p99_ms(load.value) * 1e6))
    return make_measurement(variant=name, load=load, throughput=throughput(load.value), latency=latency)


def test_the_boundary_between_two_loads_is_bisected() -> None:
    assert loads_measured(lambda c: c * 0.5) == [1, 2, 4, 8, 16, 32, 24, 20, 22, 21]


def test_a_boundary_between_the_first_two_loads_is_not_missed() -> None:
    within = space(instances=(1, 1), loads=(4, 8, 16))
    assert loads_measured(lambda c: c * 2.0, within=within) == [4, 8, 16, 6, 5]


def test_below_the_least_load_smaller_ones_are_tried_down_to_one_and_never_zero() -> None:
    within = space(instances=(1, 1), loads=(8, 16))
    assert loads_measured(lambda c: c * 3.0, within=within) == [8, 16, 4, 2, 3]
    assert loads_measured(lambda c: c * 99.0, within=within) == [8, 16, 4, 2, 1]


def test_where_one_request_is_too_much_nothing_is_refined() -> None:
    assert loads_measured(lambda c: c * 99.0) == [1, 2, 4, 8, 16, 32]


def test_where_every_load_passes_nothing_is_refined() -> None:
    assert loads_measured(lambda _: 1.0) == [1, 2, 4, 8, 16, 32]


def test_steps_are_bounded() -> None:
    assert loads_measured(lambda c: c * 0.5, steps=1) == [1, 2, 4, 8, 16, 32, 24]
    assert loads_measured(lambda c: c * 0.5, steps=0) == [1, 2, 4, 8, 16, 32]


@pytest.mark.parametrize("early_exit", [False, True])
def test_listed_loads_are_not_refined_whatever_ends_them(early_exit: bool) -> None:
    listed = LoadSpace(values=(4, 8), until_plateau=early_exit, listed=True)
    within = replace(space(instances=(1, 1)), loads=listed)
    assert loads_measured(lambda c: c * 2.0, within=within) == [4, 8]


@pytest.mark.parametrize("loads", [(1,), (1, 2)])
def test_a_first_failure_in_a_short_sweep_ends_it_without_an_error(loads: tuple[int, ...]) -> None:
    within = space(instances=(1, 1), loads=loads)
    assert loads_measured(lambda _: 1.0, within=within, throughput=lambda _: 0.0) == [1]


def test_the_least_throughput_that_is_asked_is_no_reason_to_try_less_load() -> None:
    goals = Goals(constraints=(Constraint(tag="perf_throughput", bound="min", limit=1e9),))
    asked = search_spec(FIXED, within=space(instances=(1, 1), loads=(8, 16)), goals=goals)
    search = SearchDriver("brute", asked)
    loads = []
    while (trial := search.ask()) is not None:
        if trial.variant.is_default and not trial.round:
            loads.append(trial.load.value)
        search.tell(trial, _outcome(trial, lambda _: 1.0, float))
    assert loads == [8, 16]
