"""Plans: the whole space counted without measuring, and how long it would take."""

import asyncio
import cProfile
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.analyzer.conftest import ALEXNET
from tests.analyzer.simulated import OfflineRunner, replayed
from tpx import examples
from tpx.analyzer.objectives import score
from tpx.analyzer.options import ProfileSpec
from tpx.analyzer.options.measuring import MeasurementSpec
from tpx.analyzer.options.models import ModelToProfile
from tpx.analyzer.options.spec import groups_of, spec_of
from tpx.analyzer.profile import ModelPlanned
from tpx.analyzer.results.goals import WeightedObjective
from tpx.analyzer.variants import facts_of
from tpx.cli.analyze import SearchProgress, main
from tpx.cli.analyze_plan import MOST_TRIALS, PlannedSearch, format_search, outlook, pace_of, plan_searches
from tpx.options import build

PACE = pace_of(MeasurementSpec(), 2)


def planned(*models: str, **options: Any) -> list[PlannedSearch]:
    named = tuple(ModelToProfile(name=name) for name in models or ("alexnet",))
    config = build(ProfileSpec, {"profile_models": named, **options})
    runner = OfflineRunner({"alexnet": ALEXNET, "second": ALEXNET}, replayed([]))
    return asyncio.run(plan_searches(config, runner, PACE))


def test_the_parameters_of_an_engine_are_told() -> None:
    config = build(
        ProfileSpec,
        {"profile_models": (ModelToProfile(name="llm"),), "max_measurements": 40, "cores": 2},
    )
    default = {"name": "llm", "backend": "llamacpp", "max_batch_size": 0}
    [found] = asyncio.run(plan_searches(config, OfflineRunner({"llm": default}, replayed([])), PACE))
    shown = format_search(found, 200)
    assert re.search(r"llm_config_0 +1:CPU, no batches, n_parallel \d+, n_batch \d+, threads \d+", shown)


def test_the_whole_space_is_counted_where_nothing_ends_it_early() -> None:
    [found] = planned(run_config_search_max_concurrency=8, run_config_search_max_instance_count=2)
    assert [each.name for each in found.variants] == [
        "alexnet_config_default",
        "alexnet_config_0",
        "alexnet_config_1",
    ]
    assert (found.searched, found.repeated, found.complete) == (3 * 4, 6 * 3, True)


@pytest.mark.slow
def test_a_plan_too_long_to_follow_leaves_the_plans_of_later_models_whole() -> None:
    first, second = planned("alexnet", "second", run_config_search_max_instance_count=300)
    assert (first.complete, second.complete) == (False, False)
    assert len(first.trials) == len(second.trials) == MOST_TRIALS


@pytest.mark.parametrize(
    ("budget", "max_trials", "time"),
    [
        (None, None, "about 1 min 12 s"),
        (60.0, None, "about 1 min 12 s; the budget of 1 min 00 s may end it sooner"),
        (None, 2, "1 min 12 s if each is stable at once, 1 min 26 s if none ever is"),
    ],
)
def test_a_run_tells_before_it_measures_what_its_plan_counts(
    budget: float | None, max_trials: int | None, time: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {
        "max_trials": max_trials,
        "run_config_search_max_concurrency": 8,
        "run_config_search_max_instance_count": 2,
    }
    config = build(ProfileSpec, {"profile_models": (ModelToProfile(name="alexnet"),), **options})
    facts = facts_of("alexnet", ALEXNET, gpu=False)
    mode, spec = spec_of(config, groups_of(config)[0], {"alexnet": (facts, ALEXNET)})
    event = ModelPlanned(model="alexnet", mode=mode, spec=spec)
    config = replace(config, budget=replace(config.budget, budget=budget))
    for quiet in (False, True):
        with SearchProgress(quiet=quiet, outlook=lambda search: outlook(search, config)) as progress:
            progress.observe(event)
    assert capsys.readouterr().err == (
        f"alexnet: at most 12 measurements of 3 configurations and 18 final repetitions, {time}\n"
    )


@pytest.mark.parametrize(("given", "most"), [({}, 1), ({"final_rounds": 0}, 2), ({"max_trials": 3}, 3)])
def test_what_the_final_rounds_repeat_is_measured_for_one_window(given: dict[str, int], most: int) -> None:
    config = build(ProfileSpec, {"profile_models": (ModelToProfile(name="alexnet"),), **given})
    assert config.most_windows == most


def test_within_a_budget_as_many_configurations_are_possible_as_measurements() -> None:
    [found] = planned(max_measurements=9)
    assert (found.searched, found.configurations) == (6, 6)
    assert len(found.variants) < found.configurations
    [small] = planned(max_measurements=90, run_config_search_max_instance_count=2, concurrency=(1, 2))
    assert small.configurations == len(small.variants) == 2


@pytest.mark.parametrize("mode", ["budgeted", "pareto", "quick"])
def test_a_search_judges_each_measurement_a_few_times_not_at_every_step(mode: str) -> None:
    options = {"run_config_search_mode": mode, "run_config_search_max_concurrency": 64}
    profiler = cProfile.Profile()
    [found] = profiler.runcall(planned, "alexnet", final_rounds=0, **options)
    judged = sum(entry.callcount for entry in profiler.getstats() if entry.code is score.__code__)
    assert found.searched > 15
    assert judged <= 2 * found.searched


def test_a_plan_tells_what_it_leaves_out() -> None:
    [found] = planned(batch_sizes=(1, 4), concurrency=(1,), run_config_search_max_instance_count=2)
    text = "batch size 4 left out: max_batch_size is 0 (alexnet_config_default and 2 more)\n"
    assert format_search(found, None).endswith(text)


def test_listed_loads_are_planned_as_listed() -> None:
    [found] = planned(concurrency=(4, 16), run_config_search_max_instance_count=1, final_rounds=0)
    assert [t.load.value for t in found.trials if t.variant.is_default] == [4, 16]
    assert found.searched == 4


def test_a_model_that_cannot_be_read_is_told_with_its_reason() -> None:
    other, alexnet = planned("other", "alexnet", concurrency=(4,))
    assert "is not known" in other.reason
    assert not other.trials
    assert alexnet.trials


def test_a_plan_without_a_measurement_says_why() -> None:
    [found] = planned(batch_sizes=(4,))
    assert found.reason == "batch size 4 left out: max_batch_size is 0"


def test_a_plan_needs_no_figures_that_only_a_measurement_has() -> None:
    asked = (WeightedObjective(tag="gpu_used_memory"),)
    [found] = planned(objectives=asked, concurrency=(1,), final_rounds=0)
    assert found.searched == 6


@pytest.mark.slow
@pytest.mark.parametrize("words", [["plan"], ["profile", "--dry-run"]])
def test_both_ways_to_a_plan_warn_and_check_the_export_path(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    examples.write(tmp_path / "models", ["add_sub"])
    (tmp_path / "file").touch()
    options = ["-m", str(tmp_path / "models"), "--profile-models", "add_sub", "--optuna-max-trials", "9"]
    for flag, name in (("--export-path", "file"), ("--checkpoint-directory", "file/below")):
        assert main([*words, *options, flag, str(tmp_path / name)]) == 1
        fault = f"{flag} {tmp_path / name}: {tmp_path / 'file'} is not a directory"
        assert fault in capsys.readouterr().err
    measured = [*options, "-b", "999", "-e", str(tmp_path / "out")]
    assert main([*words, *measured]) == 1
    told = capsys.readouterr()
    assert "warning: --optuna-max-trials has no effect: it is for" in told.err
    assert told.out.startswith("add_sub cannot be profiled: batch size 999 left out: max_batch_size is")


def test_a_measurement_takes_one_window_at_least_and_two_at_most() -> None:
    assert (PACE.stable_ns, PACE.longest_ns) == (1_200_000_000, 2_400_000_000)
    short = pace_of(MeasurementSpec(perf_analyzer_timeout=2), 2)
    assert (short.stable_ns, short.longest_ns) == (1_200_000_000, 2_000_000_000)
    assert pace_of(MeasurementSpec(), 1).longest_ns == 1_200_000_000
    assert pace_of(MeasurementSpec(), 5).longest_ns == 6_000_000_000


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.parametrize("words", [["plan"], ["profile", "--dry-run"]])
def test_a_dry_run_tells_configurations_loads_and_time_and_writes_nothing(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    examples.write(tmp_path / "models", ["add_sub"])
    options = ["-m", "models", "--profile-models", "add_sub", "-c", "1,2", "--final-rounds", "0"]
    more = ["--run-config-search-max-instance-count", "2", "--run-config-search-max-model-batch-size", "1"]
    assert main([*words, *options, *more]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "add_sub: at most 6 measurements of 3 configurations, and 0 final repetitions"
    assert lines[1] == "  each under concurrency 1, 2"
    assert [line.split()[0] for line in lines[3:6]] == [
        "add_sub_config_default",
        "add_sub_config_0",
        "add_sub_config_1",
    ]
    assert any(line.startswith("In total: at most 6 measurements, ") for line in lines)
    assert any(line.startswith("The server is started once") for line in lines)
    assert [path.name for path in tmp_path.iterdir()] == ["models"]


@pytest.mark.e2e
@pytest.mark.slow
def test_a_plan_of_models_together_names_the_loads_and_batches_of_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    examples.write(tmp_path / "models", ["add_sub"])
    shutil.copytree(tmp_path / "models" / "add_sub", tmp_path / "models" / "other")
    config = tmp_path / "models" / "other" / "config.pbtxt"
    config.write_text(re.sub(r"^name: .*\n", "", config.read_text(), flags=re.MULTILINE))
    together = ["--run-config-profile-models-concurrently-enable", "--run-config-search-disable"]
    options = ["-m", str(tmp_path / "models"), "--profile-models", "add_sub,other", "--final-rounds", "0"]
    assert main(["plan", *options, *together, "-c", "1,2", "-b", "1,2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("add_sub,other: at most 16 measurements of 1 configuration, ")
    assert "concurrency 1+1, 1+2, 2+1, 2+2 with batch 1+2; " in lines[1]
