"""The final repetitions: who takes part, in which order, and when they end."""

import pytest

from tests.analyzer.measuring import changed, make_latency, make_measurement
from tests.analyzer.search.exploring import FIXED, explore, search_spec, server_for, space
from tests.analyzer.simulated import Noise, Surface
from tpx.analyzer.results.goals import Constraint, Goals
from tpx.analyzer.results.measurement import LoadPoint, Measurement, Trial, TrialFailure
from tpx.analyzer.results.pooled import point_of
from tpx.analyzer.search.driver import SearchDriver
from tpx.analyzer.search.spec import Limits
from tpx.analyzer.verdict import Finding, judge
from tpx.errors import UsageError

TIED = Surface(host_ms=4.01, device_ms=5.967, item_ms=0.0, contention=0.0)
"""Two instances keep the device busy, and more bring nothing."""


def rounds_of(limits: Limits, *, spread: float = 0.02) -> dict[int, list[str]]:
    asked = search_spec(FIXED, limits=limits)
    server = server_for(asked, surface=TIED, noise=Noise(spread=spread), seed=1)
    found: dict[int, list[str]] = {}
    for trial in explore("brute", asked, server).trials:
        if trial.round:
            found.setdefault(trial.round, []).append(trial.variant.name)
    return found


def test_each_round_has_every_finalist_once_and_rounds_differ_in_order() -> None:
    rounds = rounds_of(Limits(final_rounds=5))
    first = rounds[1]
    assert len(first) == len(set(first))
    assert all(set(names) <= set(first) for names in rounds.values())
    assert len({tuple(names) for names in rounds.values()}) > 1


def test_the_order_of_the_rounds_is_drawn_by_the_seed() -> None:
    assert rounds_of(Limits(seed=1)) == rounds_of(Limits(seed=1))
    assert rounds_of(Limits(seed=1)) != rounds_of(Limits(seed=2))


def test_the_default_and_the_cheapest_that_comes_near_take_part() -> None:
    names = rounds_of(Limits(finalists=2))[1]
    assert "m_config_default" in names
    assert "m_config_1" in names  # two instances, the fewest that keep the device busy


def test_rounds_end_once_more_of_them_would_change_nothing() -> None:
    assert max(rounds_of(Limits(final_rounds=20), spread=0.001)) < 20
    assert max(rounds_of(Limits(final_rounds=6), spread=0.5)) == 6


def test_a_clear_winner_takes_two_rounds() -> None:
    asked = search_spec(FIXED, within=space(instances=(1, 2)))
    surface = Surface(host_ms=9.0, device_ms=1.0, item_ms=0.0, contention=0.0)
    noise = Noise(spread=0.03, load=0.02, common=0.02)
    found = explore("brute", asked, server_for(asked, surface=surface, noise=noise, seed=1))
    assert max(t.round for t in found.trials) == 2
    verdict = judge(found.model, asked.goals)
    assert (verdict.finding, verdict.recommended) == (Finding.BETTER, "m_config_1")
    # the driver and the verdict ask the same of the same rounds
    assert verdict.gain is not None
    assert verdict.gain.confidence == pytest.approx(0.99)


def test_without_final_rounds_nothing_is_repeated() -> None:
    assert rounds_of(Limits(final_rounds=0)) == {}


def test_one_round_is_refused_for_it_says_nothing_of_chance() -> None:
    with pytest.raises(UsageError, match="--final-rounds must be 0"):
        Limits(final_rounds=1)


def test_finalists_are_measured_at_their_best_load() -> None:
    asked = search_spec(FIXED)
    found = explore("brute", asked, server_for(asked, seed=3))
    best = {
        v.variant.name: max(v.measurements, key=lambda m: m.throughput).load for v in found.model.variants
    }
    finals = [t for t in found.trials if t.round]
    assert finals
    assert all(trial.load == best[trial.variant.name] for trial in finals)


def test_a_finalist_whose_mean_misses_a_constraint_goes_on_where_it_keeps_it() -> None:
    limit = Constraint(tag="perf_latency_p99", bound="max", limit=100.0)
    asked = search_spec(
        FIXED, within=space(instances=(1, 2), loads=(1, 2)), goals=Goals(constraints=(limit,))
    )
    search, server = SearchDriver("brute", asked), server_for(asked, seed=3, noise=Noise(spread=0.1))
    finals: list[Trial] = []
    while (trial := search.ask()) is not None:
        outcome = server.measure(trial.variant, trial.load, trial.round)
        if trial.round:
            finals.append(trial)
            if trial.load.value == 2 and trial.variant.is_default:
                outcome = changed(outcome, latency=make_latency(p99_ns=500_000_000))
        search.tell(trial, outcome)
    own = [trial.load.value for trial in finals if trial.variant.is_default]
    assert own[:4] == [2, 2, 1, 1]
    assert {trial.load.value for trial in finals if not trial.variant.is_default} == {2}
    told = "final repetitions go on at concurrency 1: the mean at concurrency 2 misses a constraint"
    assert told in [d.text for d in search.history.decisions if d.variant == "m_config_default"]


def test_a_finalist_that_fails_leaves_and_the_others_go_on() -> None:
    asked = search_spec(FIXED, within=space(instances=(1, 3)))
    search, server = SearchDriver("brute", asked), server_for(asked, seed=3, noise=Noise(spread=0.05))
    failed, after = "", []
    while (trial := search.ask()) is not None:
        breaks = trial.round == 1 and not failed and not trial.variant.is_default
        failed = trial.variant.name if breaks else failed
        if trial.round > 1:
            after.append(trial.variant.name)
        search.tell(
            trial,
            TrialFailure(variant=trial.variant.name, load=trial.load, round=trial.round, reason="it died")
            if breaks
            else server.measure(trial.variant, trial.load, trial.round),
        )
    assert after
    assert failed not in after
    assert any(d.text == "out of the final repetitions: it died" for d in search.history.decisions)


def test_who_is_certainly_worse_leaves_the_race() -> None:
    """Five and six instances are equal, which takes long to show; four are certainly worse before."""
    asked = search_spec(FIXED, within=space(instances=(1, 6)), limits=Limits(final_rounds=10, finalists=5))
    surface = Surface(host_ms=9.0, device_ms=2.4, item_ms=0.0, contention=0.0)
    noise = Noise(spread=0.02, load=0.02)
    found = explore("brute", asked, server_for(asked, surface=surface, noise=noise, seed=6))
    (left,) = (d for d in found.decisions if "out of the race" in d.text)
    assert left.variant == "m_config_3"
    assert max(t.round for t in found.trials if t.variant.name == "m_config_3") < 10


def test_a_finalist_far_behind_what_the_search_saw_is_not_measured_again() -> None:
    asked = search_spec(FIXED, limits=Limits(finalists=4))
    surface = Surface(host_ms=9.0, device_ms=1.0, item_ms=0.0, contention=0.0)
    found = explore("brute", asked, server_for(asked, surface=surface, noise=Noise(spread=0.02), seed=1))
    assert {t.variant.name for t in found.trials if t.round} == {
        "m_config_4",
        "m_config_3",
        "m_config_default",
    }


def test_what_the_search_measured_does_not_count_beside_the_rounds() -> None:
    def measured(throughput: float, number: int = 0) -> Measurement:
        return make_measurement(
            variant="m_config_0", load=LoadPoint(value=1), throughput=throughput, round=number
        )

    rounds = [measured(100.0, 1), measured(101.0, 2)]
    for lucky in (102.0, 400.0):
        assert point_of([measured(lucky)], rounds).throughput == pytest.approx(100.5, rel=1e-4)
    unstable = changed(measured(102.0), stable=False, reason="its throughput was known to \u00b19% only")
    assert (point_of([unstable], rounds).stable, point_of([unstable], rounds).note) == (True, "")
    assert not point_of([unstable], []).stable


def test_a_search_without_a_single_measurement_has_no_finals() -> None:
    search = SearchDriver("brute", search_spec(FIXED))
    rounds = 0
    while (trial := search.ask()) is not None:
        rounds += trial.round
        search.tell(trial, TrialFailure(variant=trial.variant.name, load=trial.load, reason="no GPU"))
    assert rounds == 0


def test_telling_what_was_not_asked_is_refused() -> None:
    search = SearchDriver("quick", search_spec())
    trial = search.ask()
    assert isinstance(trial, Trial)
    other = Trial(variant=trial.variant, load=LoadPoint(value=999))
    with pytest.raises(ValueError, match="asked for"):
        search.tell(other, make_measurement(variant="x", load=other.load, throughput=1.0))


def test_a_small_budget_has_fewer_finalists_instead_of_half_a_round() -> None:
    asked = search_spec(limits=Limits(max_measurements=18))
    trials = explore("budgeted", asked, server_for(asked, seed=2)).trials
    finals = [t.variant.name for t in trials if t.round]
    assert len(trials) <= 18
    assert len({finals.count(name) for name in finals}) == 1
    assert len(set(finals)) == 3


def test_a_time_budget_keeps_time_for_the_rounds() -> None:
    asked = search_spec(limits=Limits(budget=300.0))
    found = explore("budgeted", asked, server_for(asked, seed=2))
    assert sum(bool(t.round) for t in found.trials) >= 6


@pytest.mark.parametrize("budget_s", [120, 200, 300])
def test_rounds_that_take_longer_than_the_search_are_whole_nonetheless(budget_s: int) -> None:
    asked = search_spec(limits=Limits(budget=budget_s, final_rounds=5))
    search, server = SearchDriver("budgeted", asked), server_for(asked, seed=2)
    finals: list[str] = []
    while (trial := search.ask()) is not None:
        outcome = server.measure(trial.variant, trial.load, trial.round)
        if trial.round:
            finals.append(trial.variant.name)
        search.tell(trial, outcome)
    (rounds,) = {finals.count(name) for name in finals}
    assert rounds >= 2
    assert "m_config_default" in finals


def test_a_budget_pays_for_no_more_rounds_than_were_asked_for() -> None:
    asked = search_spec(limits=Limits(max_measurements=24, final_rounds=2))
    trials = explore("budgeted", asked, server_for(asked, seed=2)).trials
    finals = [t.variant.name for t in trials if t.round]
    assert {finals.count(name) for name in finals} == {2}
    assert len(set(finals)) == 3


def lone_finals(limits: Limits) -> list[Trial]:
    """The final rounds of a search whose other configurations cannot be loaded."""
    asked = search_spec(
        FIXED, within=space(instances=(1, 2), loads=(1, 2, 4), until_plateau=False), limits=limits
    )
    search, server = SearchDriver("brute", asked), server_for(asked, seed=3)
    finals: list[Trial] = []
    while (trial := search.ask()) is not None:
        finals += [trial] if trial.round else []
        search.tell(
            trial,
            server.measure(trial.variant, trial.load, trial.round)
            if trial.variant.is_default
            else TrialFailure(variant=trial.variant.name, load=trial.load, reason="no memory"),
        )
    return finals


def test_of_an_only_configuration_each_load_is_measured_again_in_turns() -> None:
    finals = lone_finals(Limits(final_rounds=5))
    assert [trial.round for trial in finals] == [1, 1, 1, 2, 2, 2]
    assert all(sorted(t.load.value for t in finals if t.round == number) == [1, 2, 4] for number in (1, 2))
    assert lone_finals(Limits(final_rounds=0)) == []


def test_of_an_only_configuration_nothing_is_measured_again_that_the_budget_does_not_cover() -> None:
    assert len(lone_finals(Limits(max_measurements=24))) == 6
    assert lone_finals(Limits(max_measurements=8)) == []
