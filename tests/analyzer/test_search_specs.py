"""From options to searches: which strategy, which models, which space; and whole runs of them, simulated."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.analyzer.conftest import ALEXNET
from tests.analyzer.simulated import Noise, OfflineRunner, SimulatedServer, Surface
from tpx.analyzer.comparison import compare_runs
from tpx.analyzer.options import ProfileSpec
from tpx.analyzer.options.models import ModelToProfile
from tpx.analyzer.options.spec import groups_of, spec_of
from tpx.analyzer.profile import Event, Observer, Profile, TrialStarted
from tpx.analyzer.results.journal import Journal, read_last_run
from tpx.analyzer.results.run import Run
from tpx.analyzer.trial import TrialRunner
from tpx.analyzer.values import seconds
from tpx.analyzer.variants import ModelFacts, OutputRepository
from tpx.analyzer.verdict import Finding, judge
from tpx.errors import UsageError
from tpx.options import build
from tpx.perf.options.measuring import Strictness

BATCHING = {**ALEXNET, "name": "b", "max_batch_size": 8, "dynamic_batching": {}}
ENSEMBLE: dict[str, Any] = {
    "name": "ens",
    "platform": "ensemble",
    "max_batch_size": 0,
    "ensemble_scheduling": {"step": [{"model_name": "alexnet"}, {"model_name": "b"}]},
}


def config(*names: str, **options: Any) -> ProfileSpec:
    models = tuple(ModelToProfile(name=name) for name in names or ("alexnet",))
    return build(ProfileSpec, {"profile_models": models, **options})


def mode_of(given: ProfileSpec, **facts: Any) -> str:
    found = ModelFacts(model="alexnet", max_batch_size=0, **facts)
    read: dict[str, tuple[ModelFacts, dict[str, Any]]] = {n: (found, {}) for n in ("alexnet", "a", "b")}
    return spec_of(given, groups_of(given)[0], read)[0]


def _ignore(event: Event) -> None:
    """Nobody watches."""


def run(
    given: ProfileSpec, tmp_path: Path, surface: Surface | None = None, observe: Observer = _ignore
) -> Run:
    """The whole run on a simulated server, in its time."""
    server = SimulatedServer(surface or Surface(host_ms=9.0), noise=Noise(spread=0.005), seed=1)
    runner = OfflineRunner({"alexnet": ALEXNET, "b": BATCHING, "ens": ENSEMBLE}, server.measure)
    trials = TrialRunner(runner, OutputRepository(tmp_path / "output", None), monitoring_interval_s=1)
    with Journal(tmp_path / "run.jsonl") as journal:
        profile = Profile(given, trials, journal, observe, clock=lambda: int(server.now_s * 1e9))
        asyncio.run(profile.run(("tpx",)))
    return Run.from_records(read_last_run(tmp_path / "run.jsonl"))


@pytest.mark.parametrize(
    ("options", "mode"),
    [
        ({}, "brute"),
        ({"run_config_search_mode": "quick"}, "quick"),
        ({"run_config_search_mode": "optuna", "max_measurements": 9}, "optuna"),
        ({"budget": 60.0}, "budgeted"),
        ({"max_measurements": 30}, "budgeted"),
        ({"pareto": ("perf_throughput", "perf_latency_p99")}, "pareto"),
        ({"search_threads": True}, "budgeted"),
        ({"run_config_search_disable": True}, "manual"),
        ({"run_config_search_mode": "brute", "run_config_search_disable": True}, "manual"),
        ({"run_config_search_mode": "brute", "budget": 60.0, "search_threads": True}, "brute"),
    ],
)
def test_options_choose_the_strategy(options: dict[str, Any], mode: str) -> None:
    assert mode_of(config(**options)) == mode


def test_of_a_server_that_is_left_as_it_is_the_default_alone_is_measured() -> None:
    left = {"triton_launch_mode": "remote", "reload_model_disable": True}
    for options in ({}, {"run_config_search_mode": "quick"}, {"search_threads": True}):
        given = config(**left, **options)
        facts = ModelFacts(model="alexnet", max_batch_size=8, steps=("a",))
        mode, question = spec_of(given, groups_of(given)[0], {"alexnet": (facts, {})})
        assert (mode, question.deltas, question.members) == ("manual", (), ())
        assert len(question.space.loads.values) > 1


def test_an_ensemble_is_searched_quickly_as_in_model_analyzer() -> None:
    assert mode_of(config(), steps=("a", "b")) == "quick"
    with pytest.raises(
        UsageError, match="'alexnet' is an ensemble: brute search does not vary several models"
    ):
        mode_of(config(run_config_search_mode="brute"), steps=("a", "b"))


@pytest.mark.parametrize("mode", ["brute", "quick", "optuna", "budgeted", "pareto"])
def test_every_mode_runs_from_options_to_verdict(mode: Any, tmp_path: Path) -> None:
    given = config("b", run_config_search_mode=mode, run_config_search_max_model_batch_size=16)
    whole = run(given, tmp_path)
    (model,) = whole.models
    verdict = judge(model, whole.started.goals)
    assert whole.outcome == "complete"
    assert verdict.finding is Finding.BETTER
    assert verdict.gain is not None
    assert verdict.gain.low > 0.2
    assert len(next(v for v in model.variants if v.variant.is_default).repetitions) >= 2
    assert len([v for v in model.variants if v.repetitions]) >= 2
    assert any(d.text.startswith("final repetitions") for d in model.decisions)


def test_models_profiled_together_are_one_search_with_weights(tmp_path: Path) -> None:
    models = (ModelToProfile(name="alexnet", weighting=3.0), ModelToProfile(name="b"))
    given = build(
        ProfileSpec,
        {
            "profile_models": models,
            "run_config_profile_models_concurrently_enable": True,
            "run_config_search_mode": "quick",
            "run_config_search_max_model_batch_size": 8,
        },
    )
    whole = run(given, tmp_path)
    (model,) = whole.models
    assert model.model == "alexnet,b"
    assert whole.started.goals.weight_of("alexnet") == 3.0
    assert all(len(m.members) == 2 for v in model.variants for m in v.measurements)
    assert model.variants[0].configuration.instance_group == "1:GPU; 1:GPU"
    assert "alexnet,b_config_" in judge(model, whole.started.goals).sentence


def test_an_ensembles_steps_are_varied(tmp_path: Path) -> None:
    whole = run(config("ens", run_config_search_max_instance_count=3), tmp_path)
    (model,) = whole.models
    varied = [v.variant for v in model.variants if not v.variant.is_default]
    assert varied
    assert all([m.model for m in v.members] == ["alexnet", "b"] for v in varied)
    assert judge(model, whole.started.goals).finding is Finding.BETTER


def test_a_stranger_among_the_composing_models_is_refused(tmp_path: Path) -> None:
    given = config("ens", ensemble_composing_models=(ModelToProfile(name="mnist"),))
    with pytest.raises(UsageError, match="'mnist' is not a step of ensemble 'ens'"):
        run(given, tmp_path)


@pytest.mark.parametrize(("text", "value"), [("90", 90.0), ("90s", 90.0), ("20m", 1200.0), ("1.5h", 5400.0)])
def test_times_have_units(text: str, value: float) -> None:
    assert seconds(text) == value


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_measurements": 0}, "--max-measurements must be at least 1"),
        ({"budget": 0.0}, "--budget must be above 0"),
        ({"final_rounds": 1}, "--final-rounds must be 0"),
        ({"cores": 0}, "--cores must be at least 1"),
        ({"accuracy_tolerance": 0.0}, "--accuracy-tolerance must be above 0"),
        ({"queue_delays": (-1,)}, "--queue-delays must be at least 0, got -1"),
        ({"graph_levels": (7,)}, "--graph-levels must be between -1 and 2, got 7"),
        ({"pareto": ("perf_throughput",)}, "--pareto takes at least two metrics"),
        ({"pareto": ("perf_throughput", "perf_latencyp99")}, "did you mean 'perf_latency_p99'"),
    ],
)
def test_values_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        config(**options)


@pytest.mark.parametrize("text", ["", "20 minutes", "-5", "m"])
def test_times_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a time"):
        seconds(text)


def test_a_name_stands_for_one_change_whichever_search_gave_it(tmp_path: Path) -> None:
    """`b` is varied as a step of the ensemble, then by itself; both write into one output repository."""
    whole = run(config("ens", "b", run_config_search_max_concurrency=8), tmp_path)
    changes: dict[str, list[Any]] = {}
    for model in whole.models:
        for each in (part for v in model.variants for part in (v.variant, *v.variant.members)):
            found = changes.setdefault(each.name, [])
            if (each.delta, each.members) not in found:
                found.append((each.delta, each.members))
    assert {name for name, found in changes.items() if len(found) > 1} == set()
    assert {v.variant.name for v in whole.models[1].variants} > {"b_config_default", "b_config_0"}


def test_variants_of_an_ensemble_are_compared_by_those_of_its_steps(tmp_path: Path) -> None:
    whole = run(config("ens", run_config_search_max_concurrency=8, final_rounds=0), tmp_path)
    compared = {p.before for p in compare_runs([whole], [whole], Strictness()).pairs}
    assert compared == {v.variant.name for v in whole.models[0].measured}


def test_what_does_not_go_with_one_model_leaves_what_others_showed(tmp_path: Path) -> None:
    few = {"run_config_search_max_concurrency": 4, "final_rounds": 0}
    stranger = (ModelToProfile(name="nobody"),)
    whole = run(config("alexnet", "ens", ensemble_composing_models=stranger, **few), tmp_path)
    assert [bool(model.measured) for model in whole.models] == [True, False]
    assert whole.models[1].unavailable is not None
    assert "'nobody' is not a step of ensemble 'ens'" in whole.models[1].unavailable.reason
    assert whole.outcome == "complete"
    with pytest.raises(UsageError, match="is not a step of ensemble"):
        run(config("ens", "alexnet", ensemble_composing_models=stranger, **few), tmp_path / "first")


def test_progress_counts_the_whole_run_over_all_models(tmp_path: Path) -> None:
    given = config(
        "alexnet", "b", run_config_search_max_instance_count=2, concurrency=(4,), final_rounds=0,
        run_config_search_max_model_batch_size=1,
    )  # fmt: skip
    events: list[Event] = []
    run(given, tmp_path, observe=events.append)
    started = [event for event in events if isinstance(event, TrialStarted)]
    places = [(e.model_number, e.models, e.number, e.configurations_at_most) for e in started]
    assert places == [(1, 2, 1, 3), (1, 2, 2, 3), (1, 2, 3, 3), (2, 2, 1, 3), (2, 2, 2, 3), (2, 2, 3, 3)]
    # 7 s a configuration, of which the one in progress counts half: 4.5 were left of six after the first
    took_s = [7 * done / (done + 0.5) for done in range(1, 6)]
    wanted = [left * each for left, each in zip((4.5, 3.5, 2.5, 1.5, 0.5), took_s, strict=True)]
    assert started[0].remaining_ns is None
    assert [(e.remaining_ns or 0) / 1e9 for e in started[1:]] == pytest.approx(wanted)
