"""Models that are varied as parts of others, or measured together: each with settings of its own."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.analyzer.reports.rendered import render, view_of
from tests.analyzer.test_search_specs import ENSEMBLE, run
from tpx.analyzer.objectives import rank
from tpx.analyzer.options import ProfileSpec
from tpx.analyzer.options.file import merge_options
from tpx.analyzer.options.spec import groups_of, spec_of
from tpx.analyzer.reports.files import junit_text
from tpx.analyzer.reports.tables import inference_table
from tpx.analyzer.reports.view import ReportView
from tpx.analyzer.results.measurement import Variant
from tpx.analyzer.results.run import ModelRun
from tpx.analyzer.search.axes import open_grid
from tpx.analyzer.search.space import SearchGrid
from tpx.analyzer.variants import ModelFacts, facts_of
from tpx.analyzer.verdict import Finding, judge

FEW = "run_config_search_max_instance_count: 2\nrun_config_search_max_model_batch_size: 4\n"
TOGETHER = FEW + "run_config_profile_models_concurrently_enable: true\n"


def read(tmp_path: Path, text: str) -> ProfileSpec:
    path = tmp_path / "config.yml"
    path.write_text(text, encoding="utf-8")
    return merge_options(["-f", str(path)])


def grid_of(given: ProfileSpec, *, kind: str = "KIND_GPU") -> SearchGrid:
    """The grid of the first subject; every model batches, and `ens` is made of `a` and `b`."""
    known: dict[str, tuple[ModelFacts, dict[str, Any]]] = {
        name: (ModelFacts(model=name, max_batch_size=8, instance_kind=kind), {}) for name in ("a", "b", "net")
    }
    steps = [{"model_name": "a"}, {"model_name": "b"}]
    ensemble = {**ENSEMBLE, "ensemble_scheduling": {"step": steps}}
    known["ens"] = facts_of("ens", ensemble, gpu=True), ensemble
    return open_grid(spec_of(given, groups_of(given)[0], known)[1])


def choices(grid: SearchGrid) -> dict[str, list[str]]:
    return {f"{d.model} {d.name}".strip(): [c.label for c in d.choices] for d in grid.dimensions}


def variants(grid: SearchGrid) -> list[Variant]:
    return [grid.variant(point) for point in grid.points()]


def deltas(grid: SearchGrid, model: str) -> list[dict[str, Any]]:
    """Each change to a member once."""
    found: list[dict[str, Any]] = []
    for variant in variants(grid):
        for member in variant.members:
            if member.model == model and member.delta not in found:
                found.append(member.delta)
    return found


@pytest.mark.parametrize(
    "text",
    [
        FEW + "profile_models: ens\nensemble_composing_models: {a: {model_config_parameters: %s}, b: }",
        FEW + "profile_models: net\nbls_composing_models: {a: {model_config_parameters: %s}, b: }",
        TOGETHER + "profile_models: {a: {model_config_parameters: %s}, b: }",
    ],
)
def test_the_fields_that_are_listed_of_a_member_vary_as_listed_and_the_others_in_the_ranges(
    tmp_path: Path, text: str
) -> None:
    listed = "{max_batch_size: [8, 2], dynamic_batching: {max_queue_delay_microseconds: [100, 0]}}"
    found = choices(grid_of(read(tmp_path, text % listed)))
    assert found["a instances"] == ["1", "2"]
    assert found["a max_batch_size"] == ["2", "8"]
    assert found["a dynamic_batching.max_queue_delay_microseconds"] == ["0", "100"]
    assert found["b max_batch_size"] == ["1", "2", "4"]


def test_instance_groups_vary_as_a_whole_and_keep_their_kind(tmp_path: Path) -> None:
    groups = "[{kind: KIND_CPU, count: [1, 4]}, {count: 2}]"
    own = f"{{a: {{model_config_parameters: {{instance_group: {groups}}}}}}}"
    grid = grid_of(read(tmp_path, FEW + f"profile_models: ens\nensemble_composing_models: {own}"))
    assert choices(grid)["a instances"] == ["1:CPU + 2:GPU", "4:CPU + 2:GPU"]
    first = {"count": 1, "kind": "KIND_CPU"}, {"count": 2, "kind": "KIND_GPU"}
    assert tuple(deltas(grid, "a")[0]["instance_group"]) == first
    assert grid.in_flight((1, 0)) == (12,)


@pytest.mark.parametrize(
    "text",
    [
        "ensemble_composing_models: {a: {cpu_only: true}, b: }",
        "ensemble_composing_models: a,b\ncpu_only_composing_models: a",
    ],
)
def test_a_composing_model_may_stay_on_the_cpu(tmp_path: Path, text: str) -> None:
    grid = grid_of(read(tmp_path, FEW + "profile_models: ens\n" + text))
    kinds = [[d["instance_group"][0]["kind"] for d in deltas(grid, model)] for model in ("a", "b")]
    assert [set(found) for found in kinds] == [{"KIND_CPU"}, {"KIND_GPU"}]


def test_what_is_listed_of_the_ensemble_itself_is_varied_too(tmp_path: Path) -> None:
    own = "{model_config_parameters: {response_cache: {enable: [true, false]}}}"
    grid = grid_of(read(tmp_path, FEW + f"profile_models: {{ens: {own}}}\nensemble_composing_models: a"))
    assert choices(grid)["ens response_cache.enable"] == ["True", "False"]
    assert {v.delta["response_cache"]["enable"] for v in variants(grid)} == {True, False}
    assert all([m.model for m in v.members] == ["a"] for v in variants(grid))


def test_quick_search_keeps_what_is_listed_of_its_model_and_varies_the_rest(tmp_path: Path) -> None:
    delay = "{dynamic_batching: {max_queue_delay_microseconds: 100}}"
    text = f"run_config_search_mode: quick\nprofile_models: {{a: {{model_config_parameters: {delay}}}}}"
    grid = grid_of(read(tmp_path, FEW + text))
    assert grid.size == 2 * 3
    batchers = [variant.delta["dynamic_batching"] for variant in variants(grid)]
    assert batchers == [{"max_queue_delay_microseconds": 100}] * 6


def loads_of(model: ModelRun, place: int) -> set[tuple[int, int]]:
    """Value and batch size of every load that one of the models was under."""
    measured = [m for v in model.measured for m in (*v.measurements, *v.repetitions)]
    return {(m.load.members[place].value, m.load.members[place].batch_size) for m in measured}


def searched(tmp_path: Path, text: str) -> ModelRun:
    (model,) = run(read(tmp_path, text), tmp_path).models
    assert model.failures == ()
    return model


def test_models_together_are_each_under_the_loads_that_are_listed_for_them(tmp_path: Path) -> None:
    text = TOGETHER + "profile_models:\n  alexnet: {parameters: {concurrency: [3, 5]}}\n"
    model = searched(tmp_path, text + "  b: {parameters: {concurrency: 7, batch_sizes: 2}}")
    assert loads_of(model, 0) <= {(3, 1), (5, 1)}
    assert len(loads_of(model, 0)) == 2
    assert loads_of(model, 1) == {(7, 2)}


def test_a_model_without_loads_of_its_own_is_climbed_beside_one_that_has_them(tmp_path: Path) -> None:
    text = TOGETHER + "profile_models: {alexnet: {parameters: {concurrency: 3}}, b: }"
    model = searched(tmp_path, text)
    assert loads_of(model, 0) == {(3, 1)}
    assert len(loads_of(model, 1)) >= 3


def test_a_list_of_the_run_is_every_models_list(tmp_path: Path) -> None:
    model = searched(tmp_path, TOGETHER + "concurrency: [2, 4]\nprofile_models: [alexnet, b]")
    for place in (0, 1):
        assert loads_of(model, place) <= {(2, 1), (4, 1)}


def test_without_a_search_models_together_are_measured_as_they_are(tmp_path: Path) -> None:
    model = searched(tmp_path, TOGETHER + "run_config_search_disable: true\nprofile_models: [alexnet, b]")
    assert [v.variant.name for v in model.measured] == ["alexnet,b_config_default"]
    assert loads_of(model, 0) == loads_of(model, 1) == {(1, 1)}


def test_each_of_several_models_keeps_constraints_of_its_own(tmp_path: Path) -> None:
    text = (
        TOGETHER
        + "profile_models:\n  alexnet: {constraints: {perf_latency_p99: {max: 40}}}\n  b: {weighting: 3}"
    )
    whole = run(read(tmp_path, text), tmp_path)
    (model,) = whole.models
    verdict = judge(model, whole.started.goals)
    assert verdict.best is not None
    assert "with a p99 latency of at most 40 ms for alexnet" in verdict.sentence
    assert all(m.load.members for v in model.variants for m in v.measurements)
    assert model.failures == (), "between two loads each model keeps its part"
    page = render(whole)
    assert "Satisfies" in page
    files = [f"output/{each.name}/config.pbtxt" for each in verdict.best.run.variant.members]
    assert ", ".join(files) in page
    assert 'name="p99 latency of at most 40 ms for alexnet"' in junit_text(view_of(whole))


def test_a_constraint_that_one_of_several_models_misses_is_told_with_its_model(tmp_path: Path) -> None:
    text = TOGETHER + "profile_models: {alexnet: , b: {constraints: {perf_throughput: {min: 1000000}}}}"
    whole = run(read(tmp_path, text), tmp_path)
    verdict = judge(whole.models[0], whole.started.goals)
    assert verdict.finding is Finding.NONE_SATISFIES
    assert "satisfies a throughput of at least 1e+06 infer/sec for b" in verdict.sentence
    assert "(b: throughput " in verdict.sentence
    assert "alexnet: " not in verdict.sentence


def test_objectives_of_one_of_several_models_are_its_own(tmp_path: Path) -> None:
    """With its latency as the only objective of one model, and much weight, less load is better."""

    sentences = []

    def load(objectives: str) -> int:
        text = TOGETHER + f"profile_models: {{alexnet: {{weighting: 9{objectives}}}, b: }}"
        directory = tmp_path / str(bool(objectives))
        directory.mkdir()
        whole = run(read(directory, text), directory)
        verdict = judge(whole.models[0], whole.started.goals)
        sentences.append(verdict.sentence)
        assert verdict.best is not None
        return verdict.best.figures.load.value

    assert load(", objectives: [perf_latency_p99]") < load("")
    assert "at minimizing p99 latency of alexnet and maximizing throughput of b" in sentences[0]
    assert "the throughput" in sentences[1]


def test_repetitions_of_several_models_are_pooled_model_by_model(tmp_path: Path) -> None:
    whole = run(read(tmp_path, TOGETHER + "profile_models: [alexnet, b]"), tmp_path)
    settled = [r.settled for r in rank(whole.models[0], whole.started.goals) if r.settled is not None]
    assert settled
    for mean in settled:
        means = _means([[m.throughput for m in each.members] for each in mean.samples])
        assert [m.throughput for m in mean.members] == pytest.approx(means, rel=1e-3)


def _means(rows: Sequence[Sequence[float]]) -> list[float]:
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


def test_a_batch_size_that_requests_do_not_fit_is_not_tried(tmp_path: Path) -> None:
    text = TOGETHER + "profile_models: {a: {parameters: {batch_sizes: 2}}, b: }"
    sizes = [[d["max_batch_size"] for d in deltas(grid_of(read(tmp_path, text)), model)] for model in "ab"]
    assert [set(found) for found in sizes] == [{2, 4}, {1, 2, 4}]
    alone = grid_of(read(tmp_path, FEW + "profile_models: a\nbatch_sizes: 4\nmax_measurements: 9"))
    assert {variant.delta["max_batch_size"] for variant in variants(alone)} == {4}


def cells(tmp_path: Path, text: str, *headers: str) -> list[tuple[str, ...]]:
    """These columns of the table of inferences, a row of each configuration."""
    place = tmp_path / str(len(list(tmp_path.iterdir())))
    place.mkdir()
    table = inference_table(ReportView.of(run(read(place, text + "\nfinal_rounds: 0"), place)))
    places = [table.headers.index(header) for header in headers]
    return list(dict.fromkeys(tuple(row[place] for place in places) for row in table.rows))


def test_tables_name_the_variants_of_all_models_as_model_analyzers_do(tmp_path: Path) -> None:
    """The forms are those of Model Analyzer's ResultTableManager, as its documentation shows them."""
    shown = ("Model Config Path", "Instance Group", "Max Batch Size")
    few = "run_config_search_max_concurrency: 4\n" + FEW
    rows = cells(tmp_path, few + TOGETHER.removeprefix(FEW) + "profile_models: [alexnet, b]", *shown)
    assert ("alexnet_config_default,b_config_default", "1:GPU,1:GPU", "0,8") in rows
    assert ("alexnet_config_0,b_config_2", "2:GPU,1:GPU", "0,4") in rows
    rows = cells(tmp_path, few + "profile_models: ens", *shown)
    assert ("ens_config_default: alexnet_config_default, b_config_default", "1:GPU,1:GPU", "0,8") in rows
    assert all(len(groups.split(",")) == len(sizes.split(",")) == 2 for _, groups, sizes in rows)
    rows = cells(tmp_path, few + "profile_models: b\nbls_composing_models: alexnet", *shown)
    assert ("b_config_default", "1:GPU", "8") in rows
    assert any(row[1:] == ("2:GPU", "4") for row in rows)
