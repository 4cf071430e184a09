"""How good the strategies are, on many simulated servers whose best configuration is known."""

from dataclasses import replace
from functools import lru_cache

import pytest

from tests.analyzer.measuring import make_measurement
from tests.analyzer.search.exploring import FIXED, Explored, explore, search_spec, server_for, space
from tests.analyzer.simulated import Noise, SimulatedServer, Surface
from tpx.analyzer.results.goals import Constraint, Goals, WeightedObjective
from tpx.analyzer.results.measurement import LoadPoint, Measurement, Trial
from tpx.analyzer.search.axes import open_grid
from tpx.analyzer.search.driver import STRATEGIES, SearchDriver
from tpx.analyzer.search.explorer import nearest_step
from tpx.analyzer.search.local_search import dominates, figures_of, front
from tpx.analyzer.search.ranges import LoadSpace
from tpx.analyzer.search.spec import Extras, Limits, Mode, OptunaTrials
from tpx.analyzer.search.tpe import worth

NOISY = Noise(spread=0.02, drift=0.03)
SEARCHES: tuple[Mode, ...] = ("brute", "quick", "optuna", "pareto", "budgeted")


@lru_cache(maxsize=100)
def brute_measurements(seed: int) -> int:
    """Without final repetitions, and without noise."""
    asked = search_spec(limits=Limits(final_rounds=0))
    return len(explore("brute", asked, server_for(asked, seed=seed)).trials)


@pytest.mark.slow
@pytest.mark.parametrize("facts_are_fixed", [False, True])
def test_brute_search_finds_the_best_configuration_of_twenty_servers(facts_are_fixed: bool) -> None:
    asked = search_spec(FIXED) if facts_are_fixed else search_spec()
    assert [explore("brute", asked, server_for(asked, seed=s)).quality for s in range(20)] == [1.0] * 20


@pytest.mark.slow
def test_budgeted_search_comes_within_two_percent_with_half_of_brutes_measurements() -> None:
    asked = search_spec()
    good, shares = 0, []
    for seed in range(20):
        limit = brute_measurements(seed) // 2
        budgeted = search_spec(limits=Limits(max_measurements=limit, seed=seed))
        found = explore("budgeted", budgeted, server_for(asked, seed=seed, noise=NOISY))
        assert len(found.trials) <= limit
        good += found.quality >= 0.98
        shares.append(len(found.trials) / brute_measurements(seed))
    assert good >= 19
    assert sum(shares) / len(shares) < 0.25


ALL_LOADS = tuple(2**i for i in range(11))
PEER_S, OURS_S = 6.0, 1.3
"""Seconds per measurement with windows of 1 s: Model Analyzer's, of three windows in a process of its own,
and ours, of one window behind its warm-up (1.24 to 1.30); both with the loading of a small model."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loads", "instances", "measurements", "share"),
    [((4, 8), 2, (6, 6), 1.0), ((1, 2, 4, 8, 16), 5, (24, 40), 0.5), (ALL_LOADS, 8, (41, 90), 1 / 3)],
)
def test_an_answer_takes_a_share_of_model_analyzers_time_and_is_as_good(
    loads: tuple[int, ...], instances: int, measurements: tuple[int, int], share: float
) -> None:
    """Model Analyzer recommends the best single measurement of the same search."""
    shares, ours, theirs = [], [], []
    within = space(loads=loads, instances=(1, instances))
    for seed in range(20):
        asked = search_spec(FIXED, within=within, limits=Limits(seed=seed))
        found = explore("brute", asked, server_for(asked, seed=seed, noise=NOISY))
        searched = [m for m in found.measurements if not m.round]
        assert measurements[0] <= len(searched) <= measurements[1]
        shares.append(len(found.trials) * OURS_S / (len(searched) * PEER_S))
        best = max(searched, key=lambda m: m.throughput)
        variant = next(t.variant for t in found.trials if t.variant.name == best.variant)
        ours.append(found.quality)
        ratio = found.server.truth(variant, best.load) / found.server.truth(*found.found)
        theirs.append(found.quality * ratio)
    assert sum(shares) / len(shares) <= share
    assert sum(ours) >= sum(theirs) - 0.001 * len(ours)
    assert min(ours) >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "share", "within"), [("quick", 0.25, 0.95), ("optuna", 0.3, 0.95), ("pareto", 0.5, 0.95)]
)
def test_other_strategies_stay_within_their_bounds(mode: Mode, share: float, within: float) -> None:
    asked = search_spec()
    for seed in range(10):
        wanted = search_spec(limits=Limits(seed=seed))
        found = explore(mode, wanted, server_for(asked, seed=seed, noise=NOISY))
        assert found.quality >= within
        assert len(found.trials) <= share * brute_measurements(seed)


@pytest.mark.parametrize("mode", SEARCHES)
def test_the_same_seed_asks_for_the_same_trials(mode: Mode) -> None:
    asked = search_spec(limits=Limits(seed=3))
    runs = [explore(mode, asked, server_for(asked, seed=1, noise=NOISY)) for _ in range(2)]
    assert runs[0].trials == runs[1].trials
    assert runs[0].decisions == runs[1].decisions


@pytest.mark.parametrize("mode", SEARCHES)
def test_nothing_is_measured_twice_while_searching(mode: Mode) -> None:
    asked = search_spec()
    trials = [t for t in explore(mode, asked, server_for(asked, seed=5)).trials if not t.round]
    assert len(trials) == len({(t.variant.name, t.load) for t in trials})


@pytest.mark.parametrize("mode", SEARCHES)
def test_the_default_comes_first_and_is_in_the_final_rounds(mode: Mode) -> None:
    asked = search_spec()
    trials = explore(mode, asked, server_for(asked, seed=2)).trials
    assert trials[0].variant.is_default
    assert {t.round for t in trials if t.variant.is_default} >= {0, 1, 2}


@pytest.mark.parametrize("mode", SEARCHES)
def test_every_bound_of_the_space_is_kept(mode: Mode) -> None:
    asked = search_spec(within=space(loads=(2, 4, 8), instances=(2, 3), max_batch_sizes=(4, 16)))
    for trial in explore(mode, asked, server_for(asked, seed=4)).trials:
        assert trial.load.value in (2, 4, 8)
        if not trial.variant.is_default:
            assert trial.variant.delta["instance_group"][0]["count"] in (2, 3)
            assert trial.variant.delta["max_batch_size"] in (4, 8, 16)


@pytest.mark.parametrize("mode", SEARCHES)
def test_a_latency_limit_holds_for_what_is_found(mode: Mode) -> None:
    limit = Constraint(tag="perf_latency_p99", bound="max", limit=40.0)
    asked = search_spec(goals=Goals(constraints=(limit,)))
    found = explore(mode, asked, server_for(asked, seed=8))
    variant, load = found.found
    assert limit.satisfied_by((found.server.measure(variant, load).p99_ns or 0) / 1e6)


def test_a_measured_budget_is_never_exceeded_however_small() -> None:
    for limit in (1, 2, 3, 5, 10, 20):
        asked = search_spec(limits=Limits(max_measurements=limit))
        found = explore("budgeted", asked, server_for(asked, seed=1))
        assert len(found.trials) <= limit


def test_a_time_budget_is_kept_up_to_one_measurement() -> None:
    asked = search_spec(limits=Limits(budget=180.0))
    found = explore("budgeted", asked, server_for(asked, seed=1))
    assert 120 < found.server.now_s <= 187


def test_a_model_without_batching_is_searched_over_instances() -> None:
    asked = search_spec(FIXED)
    for mode in SEARCHES:
        assert explore(mode, asked, server_for(asked, seed=6)).quality >= 0.98


def test_the_pilot_of_a_model_without_batches_waits_behind_few_requests() -> None:
    asked = search_spec(FIXED)
    pilots = explore("budgeted", asked, server_for(asked, seed=6)).trials[:2]
    assert [trial.load.value for trial in pilots] == [1, 8]


def test_instances_times_threads_never_exceed_the_cores() -> None:
    extras = Extras(search_threads=True, cores=4)
    asked = search_spec(within=space(extras=extras))
    for mode in ("quick", "optuna", "pareto", "budgeted"):
        for trial in explore(mode, asked, server_for(asked, seed=7)).trials:
            if not trial.variant.is_default:
                instances = trial.variant.delta["instance_group"][0]["count"]
                text = trial.variant.delta["parameters"]["intra_op_thread_count"]["string_value"]
                assert int(text) == 1 or instances * int(text) <= 4


def test_optuna_tries_as_many_configurations_as_it_is_told() -> None:
    six = OptunaTrials(optuna_max_trials=6, use_concurrency_formula=True)
    asked = search_spec(trials=six, concurrency_sweep_disable=True)
    trials = [t for t in explore("optuna", asked, server_for(asked, seed=1)).trials if not t.round]
    configurations = {t.variant.name for t in trials if not t.variant.is_default}
    assert len(configurations) <= 6
    assert len([t for t in trials if not t.variant.is_default]) == len(configurations)


def test_for_optuna_whatever_keeps_the_constraints_is_above_what_does_not() -> None:
    told = [worth(merit) for merit in ((False, -400.0), (False, -0.1), (True, -9.0), (True, 7.0))]
    assert told == sorted(told)
    assert len(set(told)) == 4


def test_quick_search_with_noise_ends() -> None:
    asked = search_spec()
    noise = Noise(spread=0.3)
    assert len(explore("quick", asked, server_for(asked, seed=9, noise=noise)).trials) < 200


def test_the_pareto_front_found_is_nearly_the_whole_one() -> None:
    tags = ("perf_throughput", "perf_latency_p99", "gpu_used_memory")
    asked = search_spec(limits=Limits(final_rounds=0, pareto=tags))
    for seed in range(5):
        found = explore("pareto", asked, server_for(asked, seed=seed))
        ours = front(found.measurements, tags, Goals())
        for truth in _all(found):
            theirs = figures_of(truth, tags)
            assert theirs is not None
            assert any(_nearly(figures_of(m, tags), theirs) for m in ours)


def test_energy_is_a_metric_of_compromises() -> None:
    tags = ("perf_throughput", "gpu_power_usage")
    asked = search_spec(limits=Limits(pareto=tags))
    found = explore("pareto", asked, server_for(asked, seed=3))
    best = front(found.measurements, tags, Goals())
    assert len(best) > 1
    known = [figures for m in best if (figures := figures_of(m, tags))]
    assert not any(dominates(one, other) for one in known for other in known)


def test_weights_move_what_is_best() -> None:
    surface = Surface(host_ms=8.0, device_ms=2.0, item_ms=0.3)

    def found(latency: float) -> int:
        goals = Goals(
            objectives=(
                WeightedObjective(tag="perf_throughput", weight=1.0),
                WeightedObjective(tag="perf_latency_p99", weight=latency),
            )
        )
        asked = search_spec(goals=goals)
        return explore("budgeted", asked, server_for(asked, surface=surface)).found[1].value

    assert found(10.0) < found(0.1)


def test_every_mode_can_be_opened() -> None:
    for mode in STRATEGIES:
        asked = search_spec()
        assert len(explore(mode, asked, server_for(asked, seed=1)).trials) > 3


def _all(found: Explored) -> list[Measurement]:
    """The true front, over the whole grid at the loads that were looked at."""
    grid = open_grid(found.asked)
    tags = found.asked.limits.pareto
    everything = []
    for point in grid.points():
        ladder = grid.ladder(point)
        steps = {nearest_step(ladder, grid.expected(point) * factor) for factor in (1.0, 0.5, 0.25)}
        everything += [found.server.measure(grid.variant(point), ladder[step]) for step in steps]
    return front(everything, tags, Goals())


def _nearly(ours: tuple[float, ...] | None, theirs: tuple[float, ...]) -> bool:
    """Whether a compromise is at most 15% worse than another in each figure."""
    if ours is None:
        return False
    return all(a >= b - 0.15 * abs(b) for a, b in zip(ours, theirs, strict=True))


def test_virtual_time_passes_with_measurements_and_drift_follows_it() -> None:
    server = SimulatedServer(Surface(), noise=Noise(drift=0.1, drift_period_s=100), measurement_s=10)
    asked = search_spec(FIXED)
    variant = open_grid(asked).default
    seen = [server.measure(variant, LoadPoint(value=8)).throughput for _ in range(10)]
    assert 100 <= server.now_s <= 102
    assert max(seen) / min(seen) > 1.15
    assert Trial(variant=variant, load=LoadPoint(value=8)).round == 0


@pytest.mark.parametrize("mode", SEARCHES)
def test_request_rates_stay_request_rates_through_all_phases(mode: Mode) -> None:
    rates = tuple(16 * 2**i for i in range(10))
    loads = LoadSpace(values=rates, kind="request_rate")
    asked = search_spec(within=replace(space(instances=(1, 2), max_batch_sizes=(1, 4)), loads=loads))
    server = server_for(asked, seed=1)
    search, seen = SearchDriver(mode, asked), set()
    while (trial := search.ask()) is not None:
        assert trial.load.kind == "request_rate"
        seen.add(trial.load.value)
        reached = min(server.truth(trial.variant, LoadPoint(value=64)), trial.load.value)
        search.tell(
            trial,
            make_measurement(
                variant=trial.variant.name, load=trial.load, throughput=reached, round=trial.round
            ),
        )
    assert seen <= set(rates)
    assert max(seen) > 64


def test_a_budget_never_leaves_fewer_configurations_than_were_tried() -> None:
    asked = search_spec(limits=Limits(max_measurements=6, final_rounds=0))
    search, server = SearchDriver("budgeted", asked), server_for(asked, seed=1)
    tried: set[str] = set()
    while (trial := search.ask()) is not None:
        tried.add(trial.variant.name)
        assert len(tried) <= search.history.configurations_at_most
        search.tell(trial, server.measure(trial.variant, trial.load))
    assert len(tried) > 2
