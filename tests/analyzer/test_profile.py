"""The whole analyzer over recorded tables: the published headline, interruptions, failures, constraints."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.analyzer.measuring import changed, make_latency, make_measurement
from tpx.analyzer.results.goals import Goals, WeightedObjective
from tpx.analyzer.results.measurement import LoadPoint, Measurement
from tpx.analyzer.results.run import Run
from tpx.analyzer.verdict import Finding, judge
from tpx.errors import UsageError

Replay = Callable[..., Run]


def measured(variant: str, concurrency: int, throughput: float, p99_ms: float = 10.0) -> Measurement:
    return make_measurement(
        variant=variant,
        load=LoadPoint(value=concurrency),
        throughput=throughput,
        latency=make_latency(p99_ns=round(p99_ms * 1e6)),
    )


def test_the_published_headline_is_replayed_exactly(replay: Replay) -> None:
    run = replay()
    (model,) = run.models
    verdict = judge(model, run.started.goals)

    assert verdict.sentence == (
        "In 41 measurements across 6 configurations, `alexnet_config_4` gives 1,680 infer/s, a 67% gain "
        "(95% interval 1.6x to 1.7x, 6 rounds) over the default configuration (1,000 infer/s) at "
        "concurrency 32 instead of 8; p99 2.7x"
    )
    assert verdict.detail == (
        "at concurrency 32, p99 22.3 ms; under equal load, measured once each: +55% at concurrency 8, "
        "+68% at concurrency 32"
    )
    assert [len(v.measurements) for v in model.variants] == [6, 6, 7, 7, 7, 8]
    assert [r.name for r in verdict.ranking[:3]] == [
        "alexnet_config_4",
        "alexnet_config_3",
        "alexnet_config_2",
    ]
    assert [(round(r.figures.throughput, 2), r.figures.load.value) for r in verdict.ranking[:3]] == [
        (1675.98, 32),
        (1612.95, 64),
        (1563.16, 64),
    ]
    assert verdict.best is not None
    assert verdict.best.run.configuration.instance_group == "5:GPU"
    assert run.outcome == "complete"


def test_a_latency_budget_is_a_bound_on_what_may_be_recommended(replay: Replay) -> None:
    run = replay(latency_budget=6.0)
    verdict = judge(run.models[0], run.started.goals)
    assert verdict.finding is Finding.BETTER
    assert verdict.sentence == (
        "In 41 measurements across 6 configurations, `alexnet_config_3` gives 1,540 infer/s, a 60% gain "
        "(95% interval 1.5x to 1.6x, 6 rounds) over the default configuration (965 infer/s) at "
        "concurrency 8 instead of 4; p99 +27%, with a p99 latency of at most 6 ms"
    )
    assert verdict.detail == (
        "at concurrency 8, p99 5.80 ms; under equal load, measured once each: +38% at concurrency 4, "
        "+54% at concurrency 8; not told apart from: alexnet_config_4, alexnet_config_2; recommended: "
        "the cheapest that is certainly within 5% of the best"
    )


def test_a_budget_that_nothing_meets_names_the_nearest(replay: Replay) -> None:
    run = replay(latency_budget=2.0)
    verdict = judge(run.models[0], run.started.goals)
    assert verdict.finding is Finding.NONE_SATISFIES
    assert verdict.sentence == (
        "In 41 measurements across 6 configurations, no configuration satisfies a p99 latency of at most 2 "
        "ms; closest: `alexnet_config_1` (p99 latency 2.61 ms, 30% over)"
    )


@pytest.mark.parametrize(
    ("tags", "why"),
    [
        (("gpu_used_memory",), r"objective gpu_used_memory of model 'alexnet' was not measured \(no GPU"),
        (
            ("perf_throughput", "cpu_used_ram"),
            "objective cpu_used_ram of model 'alexnet' was not measured;",
        ),
    ],
)
def test_an_objective_that_nothing_measures_is_refused(tags: Sequence[str], why: str, replay: Replay) -> None:
    with pytest.raises(UsageError, match=why):
        replay(objectives=tuple(WeightedObjective(tag=tag) for tag in tags))


def test_no_verdict_rests_on_an_objective_that_nothing_measured(replay: Replay) -> None:
    run = replay()
    verdict = judge(run.models[0], Goals(objectives=(WeightedObjective(tag="gpu_used_memory"),)))
    assert verdict.finding is Finding.UNDECIDED
    assert verdict.sentence.endswith(
        "nothing was shown to beat the default configuration, which stays for now: 1,000 infer/s; GPU Memory "
        "Usage was not measured"
    )


def test_a_default_that_nothing_beats_is_said_to_be_best(replay: Replay) -> None:
    table = [measured("alexnet_config_default", c, 100.0) for c in (1, 2, 4, 8)]
    table += [measured("alexnet_config_0", c, 70.0) for c in (1, 2, 4, 8)]
    run = replay(table, run_config_search_max_instance_count=1)
    verdict = judge(run.models[0], run.started.goals)
    assert verdict.sentence == (
        "In 8 measurements across 2 configurations, the default configuration is best: 100 infer/s"
    )


def test_a_default_that_nothing_was_compared_with_is_not_said_to_be_best(replay: Replay) -> None:
    run = replay([measured("alexnet_config_default", 1, 100.0)], max_measurements=1)
    verdict = judge(run.models[0], run.started.goals)
    assert verdict.finding is Finding.DEFAULT
    assert verdict.badge == "Default was the only one measured"
    assert verdict.sentence.endswith("the default configuration was the only one measured: 100 infer/s")


def test_a_default_over_the_budget_is_said_to_miss_it(replay: Replay) -> None:
    table = [measured("alexnet_config_default", 1, 100.0, 30.0), measured("alexnet_config_0", 1, 90.0, 5.0)]
    run = replay(table, concurrency=(1,), run_config_search_max_instance_count=1, latency_budget=20.0)
    verdict = judge(run.models[0], run.started.goals)
    assert verdict.finding is Finding.DEFAULT_FAILS
    assert verdict.sentence == (
        "In 2 measurements across 2 configurations, `alexnet_config_0` gives 90.0 infer/s, with a p99 "
        "latency of at most 20 ms; the default configuration misses it (p99 latency 30.0 ms, 50% over)"
    )


def test_a_failed_configuration_is_kept_with_its_reason_and_the_run_goes_on(replay: Replay) -> None:
    table = [measured("alexnet_config_default", c, 100.0) for c in (1, 2, 4, 8)]
    table += [measured("alexnet_config_1", c, 190.0) for c in (1, 2, 4, 8)]
    run = replay(table, run_config_search_max_instance_count=2)
    (model,) = run.models
    (failure,) = model.failures
    assert (failure.variant, failure.load.value) == ("alexnet_config_0", 1)
    assert failure.reason == "'alexnet_config_0' at concurrency 1 was not recorded"
    verdict = judge(model, run.started.goals)
    assert verdict.sentence.startswith(
        "In 8 measurements across 2 configurations, `alexnet_config_1` gives 190"
    )


def test_what_kept_every_load_from_being_measured_is_told(replay: Replay) -> None:
    run = replay([], batch_sizes=(64,), run_config_search_disable=True)
    verdict = judge(run.models[0], run.started.goals)
    assert verdict.sentence == "No configuration of `alexnet` could be measured"
    assert verdict.detail.startswith("batch size 64 left out: max_batch_size is ")


def test_a_default_that_fails_is_said_not_to_have_been_measured(replay: Replay) -> None:
    table = [measured("alexnet_config_0", c, 100.0) for c in (1, 2, 4, 8)]
    run = replay(table, run_config_search_max_instance_count=1)
    sentence = judge(run.models[0], run.started.goals).sentence
    assert sentence.endswith("gives 100 infer/s; the default configuration could not be measured")


def test_nothing_measured_says_why(replay: Replay) -> None:
    run = replay([], run_config_search_max_instance_count=1)
    verdict = judge(run.models[0], run.started.goals)
    assert verdict.finding is Finding.NOTHING
    assert verdict.detail == "'alexnet_config_default' at concurrency 1 was not recorded"


def test_a_model_that_cannot_be_served_ends_up_in_the_run(replay: Replay) -> None:
    run = replay(default={"name": "alexnet", "max_batch_size": "many"})
    (model,) = run.models
    assert model.unavailable is not None
    assert "max_batch_size" in model.unavailable.reason
    assert judge(model, run.started.goals).sentence == "`alexnet` cannot be profiled"


def test_an_interrupted_run_keeps_what_it_measured(replay: Replay) -> None:
    run = replay(stop_after=8)
    assert run.outcome == "interrupted"
    assert run.models[0].measurement_count == 8
    assert judge(run.models[0], run.started.goals).finding is Finding.UNDECIDED


def test_every_configuration_is_written_to_the_output_repository(replay: Replay, tmp_path: Path) -> None:
    run = replay()
    for variant in run.models[0].variants:
        text = (tmp_path / "output" / variant.variant.name / "config.pbtxt").read_text()
        assert text == variant.configuration.text
    assert "count: 5" in text
    assert "\nname:" not in f"\n{text}".split("input {")[0]


@pytest.mark.parametrize("loads", [(1,), (2, 8)])
def test_listed_concurrencies_are_measured_as_listed(replay: Replay, loads: tuple[int, ...]) -> None:
    run = replay(concurrency=loads)
    assert [[m.load.value for m in v.measurements] for v in run.models[0].variants] == [list(loads)] * 6


def test_the_same_table_gives_the_same_run(replay: Replay) -> None:
    first, second = replay(), replay()
    strip = [
        [replace(m, duration_ns=0, cost_ns=0) for v in r.models[0].variants for m in v.measurements]
        for r in (first, second)
    ]
    assert strip[0] == strip[1]
    assert first.models[0].decisions == second.models[0].decisions


def test_an_unstable_winner_and_failed_trials_are_cautioned_against(replay: Replay) -> None:
    table = [measured("alexnet_config_default", c, 100.0) for c in (1, 2, 4, 8)]
    table += [
        changed(measured("alexnet_config_1", c, 190.0), stable=False, reason="drifts") for c in (1, 2, 4, 8)
    ]
    run = replay(table, run_config_search_max_instance_count=2)
    verdict = judge(run.models[0], run.started.goals)
    assert verdict.detail == "at concurrency 1, p99 10.0 ms, not stable"
    assert verdict.caution == (
        "A measurement of the best did not become stable: drifts. "
        "1 trial failed, with the reasons in the report."
    )


def test_a_clear_and_stable_gain_needs_no_caution(replay: Replay) -> None:
    run = replay()
    verdict = judge(run.models[0], run.started.goals)
    assert verdict.caution == ""
