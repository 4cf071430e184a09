"""Searches measure what Model Analyzer measures.

The expected trials are those that the generators of Model Analyzer 1.58 asked for (its
RunConfigGeneratorFactory opened them), given the same options, default configurations and throughputs.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.analyzer.measuring import make_measurement
from tpx.analyzer.options.file import merge_options
from tpx.analyzer.options.spec import groups_of, spec_of
from tpx.analyzer.results.measurement import LoadPoint, Outcome, Trial, TrialFailure
from tpx.analyzer.search.axes import open_grid
from tpx.analyzer.search.driver import SearchDriver
from tpx.analyzer.search.spec import Mode, SearchSpec
from tpx.analyzer.variants import facts_of

Surface = Callable[[Trial], float | None]
DEFAULT = {"max_batch_size": 8}
STEPS = {"ensemble_scheduling": {"step": [{"model_name": "a"}, {"model_name": "b"}]}}


def asked(tmp_path: Path, text: str) -> tuple[Mode, SearchSpec]:
    """The search that this file asks for."""
    path = tmp_path / "config.yml"
    path.write_text(text, encoding="utf-8")
    config = merge_options(["-f", str(path)])
    defaults: dict[str, dict[str, Any]] = dict.fromkeys(("m", "a", "b"), DEFAULT)
    defaults["ens"] = DEFAULT | STEPS
    read = {name: (facts_of(name, config, gpu=False), config) for name, config in defaults.items()}
    return spec_of(config, groups_of(config)[0], read)


def measured(tmp_path: Path, text: str, surface: Surface = lambda _: 100.0) -> list[Trial]:
    """The trials that the search of this file asks for; the surface gives a throughput, None is a failure."""
    search = SearchDriver(*asked(tmp_path, text + "\nfinal_rounds: 0"))
    trials = []
    while (trial := search.ask()) is not None:
        trials.append(trial)
        search.tell(trial, _outcome(trial, surface(trial)))
    return trials


def _outcome(trial: Trial, throughput: float | None) -> Outcome:
    if throughput is None:
        return TrialFailure(variant=trial.variant.name, load=trial.load, reason="out of memory")
    return make_measurement(variant=trial.variant.name, load=trial.load, throughput=throughput)


def shown(trials: list[Trial]) -> list[tuple[str, int, int]]:
    """Variant, client batch size and load."""
    return [(t.variant.name.removeprefix("m_config_"), t.load.batch_size, t.load.value) for t in trials]


def shape(trial: Trial) -> tuple[int, int]:
    """Instances and max_batch_size."""
    delta = trial.variant.delta
    return int(delta.get("instance_group", [{"count": 1}])[0]["count"]), int(delta.get("max_batch_size", 8))


@pytest.mark.parametrize(
    "listed",
    ["concurrency: '16,1,2,4,8'", "request_rate: [16, 1, 2, 4, 8]", "concurrency: [8, 2, 4, 1, 2, 8]"],
)
def test_listed_loads_are_measured_from_the_least_up_each_once(tmp_path: Path, listed: str) -> None:
    options = "profile_models: m\nearly_exit_enable: true\nrun_config_search_disable: true\n"
    assert [t.load.value for t in measured(tmp_path, options + listed)] == [1, 2, 4, 8]


def test_listed_batch_sizes_are_measured_from_the_least_up_each_once(tmp_path: Path) -> None:
    options = "profile_models: m\nrun_config_search_disable: true\n"
    trials = measured(tmp_path, options + "concurrency: [4, 2, 4, 2]\nbatch_sizes: [4, 1, 4]")
    assert shown(trials) == [("default", 1, 2), ("default", 1, 4), ("default", 4, 2), ("default", 4, 4)]


def test_a_failing_load_does_not_end_the_larger_batch_sizes_of_a_variant_that_works(tmp_path: Path) -> None:
    def fails_under_load(trial: Trial) -> float | None:
        instances, size = shape(trial)
        if size == 2 and trial.load.value >= 2:
            return None
        return instances * 1e6 + size * 5000 + trial.load.value * 10

    few = "run_config_search_max_instance_count: 2\nrun_config_search_max_model_batch_size: 4\n"
    trials = measured(tmp_path, few + "profile_models: m\nconcurrency: [1, 2, 4]", fails_under_load)
    assert len(trials) == 19
    assert [name for name, _, load in shown(trials) if load == 4] == ["default", "0", "2", "3", "5"]


@pytest.mark.parametrize(
    ("exits", "names"),
    [
        ("true", ["default", "0", "1", "2", "4", "5", "6"]),
        ("false", ["default", "0", "1", "2", "3", "4", "5", "6", "7"]),
    ],
)
def test_early_exit_ends_listed_max_batch_sizes_that_bring_nothing(
    tmp_path: Path, exits: str, names: list[str]
) -> None:
    fields = "{max_batch_size: [1, 2, 4, 8], instance_group: [{kind: KIND_CPU, count: [1, 2]}]}"
    models = f"profile_models: {{m: {{model_config_parameters: {fields}}}}}"
    text = f"early_exit_enable: {exits}\nconcurrency: 1\n{models}"
    trials = measured(tmp_path, text, lambda trial: min(shape(trial)[1], 2) * 100.0)
    assert [name for name, _, _ in shown(trials)] == names


TOGETHER = "run_config_profile_models_concurrently_enable: true\nrun_config_search_disable: true\n"


def members(load: LoadPoint) -> tuple[tuple[int, int], ...]:
    return tuple((member.batch_size, member.value) for member in load.members)


def test_listed_loads_of_models_together_are_all_combined(tmp_path: Path) -> None:
    trials = measured(tmp_path, TOGETHER + "profile_models: a,b\nconcurrency: [1, 2]\nbatch_sizes: [1, 2]")
    one = [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert [members(t.load) for t in trials] == [(a, b) for a in one for b in one]
    assert {t.variant.name for t in trials} == {"a,b_config_default"}


def test_listed_configurations_of_models_together_are_all_combined(tmp_path: Path) -> None:
    own = "{a: {model_config_parameters: {max_batch_size: [2, 4]}}, b: {parameters: {concurrency: [3, 5]}}}"
    trials = measured(tmp_path, TOGETHER + f"profile_models: {own}")
    assert [(t.variant.name, members(t.load)) for t in trials] == [
        (name, ((1, 1), (1, own)))
        for name in ("a,b_config_default", "a,b_config_0", "a,b_config_1")
        for own in (3, 5)
    ]


def test_without_a_search_an_ensemble_is_measured_as_listed(tmp_path: Path) -> None:
    own = "ensemble_composing_models: {a: {model_config_parameters: {max_batch_size: [2, 4]}}, b: }\n"
    text = "profile_models: ens\nrun_config_search_disable: true\nconcurrency: [1, 2]\nbatch_sizes: [1, 2]\n"
    trials = measured(tmp_path, text + own)
    assert [(t.variant.name, t.load.batch_size, t.load.value) for t in trials] == [
        (f"ens_config_{name}", size, load)
        for name in ("default", "0", "1")
        for size in (1, 2)
        for load in (1, 2)
    ]


def test_models_together_are_each_tried_under_every_listed_load(tmp_path: Path) -> None:
    text = TOGETHER.splitlines()[0] + "\nprofile_models: a,b\nconcurrency: [4, 2]\n"
    trials = measured(tmp_path, text + "run_config_search_max_instance_count: 2")
    loads: dict[str, list[Any]] = {}
    for trial in trials:
        loads.setdefault(trial.variant.name, []).append(tuple(value for _, value in members(trial.load)))
    assert len(loads) > 2
    assert all(sorted(own) == [(2, 2), (2, 4), (4, 2), (4, 4)] for own in loads.values())


@pytest.mark.parametrize(
    ("flags", "loads"),
    [
        ("{concurrency-range: 5}", {(1, "concurrency", 5)}),
        ("{concurrency-range: '2:6:2', batch-size: 4}", {(4, "concurrency", load) for load in (2, 4, 6)}),
        ("{request-rate-range: 50}", {(1, "request_rate", 50)}),
        ("{request-intervals: %s}", {(1, "request_rate", 667)}),
    ],
)
@pytest.mark.parametrize("mode", ["", "run_config_search_mode: quick\n"])
def test_flags_of_the_load_generator_give_the_loads(
    tmp_path: Path, mode: str, flags: str, loads: set[tuple[int, str, int]]
) -> None:
    (tmp_path / "gaps").write_text("1000\n2000\n")
    text = f"profile_models: m\nconcurrency_sweep_disable: true\nperf_analyzer_flags: {flags}\n"
    trials = measured(tmp_path, mode + text.replace("%s", str(tmp_path / "gaps")))
    assert {(t.load.batch_size, t.load.kind, t.load.value) for t in trials} == loads
    assert len({t.variant.name for t in trials}) > 2


QUICK = "run_config_search_mode: quick\nconcurrency_sweep_disable: true\nprofile_models: m\n"


@pytest.mark.parametrize("most", [1024, 50])
def test_quick_search_measures_at_the_load_of_the_formula(tmp_path: Path, most: int) -> None:
    def growing(trial: Trial) -> float:
        instances, size = shape(trial)
        return instances * 100.0 + size

    trials = measured(tmp_path, QUICK + f"run_config_search_max_concurrency: {most}", growing)
    tried = {shape(t): t.load.value for t in trials if not t.variant.is_default}
    assert len(tried) > 5
    assert tried == {(count, size): min(2 * count * size, most) for count, size in tried}


def only(instances: int, size: int) -> str:
    """A space of one configuration."""
    names = {"instance_count": instances, "model_batch_size": size}
    return "".join(
        f"run_config_search_{end}_{name}: {value}\n"
        for name, value in names.items()
        for end in ("min", "max")
    )


@pytest.mark.parametrize(
    ("text", "load"),
    [
        (QUICK + only(3, 2), 12),
        (QUICK.replace("quick", "optuna") + "use_concurrency_formula: true\n" + only(5, 8), 80),
    ],
)
def test_the_load_of_the_formula_is_no_power_of_two(tmp_path: Path, text: str, load: int) -> None:
    trials = measured(tmp_path, text)
    assert [t.load.value for t in trials if not t.variant.is_default] == [load]
    assert next(t.load.value for t in trials if t.variant.is_default) == 16


@pytest.mark.parametrize(
    "members",
    [
        "profile_models: ens\nensemble_composing_models: {a: {model_config_parameters: %s}, "
        "b: {model_config_parameters: %s}}\n",
        "profile_models: {m: {model_config_parameters: %s}}\n"
        "bls_composing_models: {b: {model_config_parameters: %s}}\n",
    ],
)
def test_an_ensemble_is_measured_at_the_least_load_of_its_members(tmp_path: Path, members: str) -> None:
    small = "{max_batch_size: 2, instance_group: [{count: 3}]}"
    large = "{max_batch_size: 16, instance_group: [{count: 8}]}"
    trials = measured(tmp_path, members % (small, large) + "concurrency_sweep_disable: true")
    assert [t.load.value for t in trials if not t.variant.is_default] == [12]


def test_an_ensemble_allows_the_batches_that_all_its_members_take(tmp_path: Path) -> None:
    def size(delta: dict[str, Any]) -> int:
        return int(delta.get("max_batch_size", 8))

    text = "profile_models: ens\nconcurrency_sweep_disable: true"
    trials = measured(
        tmp_path, text, lambda t: float(sum(size(member.delta) for member in t.variant.members))
    )
    found = {(size(t.variant.delta), min(size(m.delta) for m in t.variant.members)) for t in trials}
    assert len(found) > 3
    assert all(own == least for own, least in found)


FORMULA = "use_concurrency_formula: true\n"
BATCHES = FORMULA + "batch_sizes: [1, 2, 4]\n"


@pytest.mark.parametrize(
    ("options", "size", "least", "most"),
    [
        ("", 440, 22, 44),
        (FORMULA, 40, 2, 4),
        (BATCHES, 120, 6, 12),
        (FORMULA + "concurrency: [1, 2, 4]\n", 120, 6, 12),
        ("request_rate_search_enable: true\n", 400, 20, 40),
        ("optuna_min_trials: 30\n", 440, 30, 44),
        (BATCHES + "optuna_max_trials: 6\n", 120, 6, 6),
        (BATCHES + "optuna_max_trials: 6\nmax_percentage_of_search_space: 3\n", 120, 6, 3),
        (BATCHES + "min_percentage_of_search_space: 50\noptuna_min_trials: 50\n"
         "optuna_max_trials: 60\n", 120, 60, 60),
    ],
)  # fmt: skip
def test_optuna_has_as_many_trials(tmp_path: Path, options: str, size: int, least: int, most: int) -> None:
    _, question = asked(tmp_path, f"run_config_search_mode: optuna\nprofile_models: m\n{options}")
    trials, space = question.trials, question.trials.size(open_grid(question).size, question.space.loads)
    assert (space, trials.at_least(space), trials.at_most(space)) == (size, least, most)


def test_client_batch_sizes_are_a_dimension_of_optuna(tmp_path: Path) -> None:
    text = f"run_config_search_mode: optuna\nprofile_models: m\n{FORMULA}batch_sizes: [1, 2, 16]\n"
    trials = measured(
        tmp_path,
        text + "concurrency_sweep_disable: true\nmin_percentage_of_search_space: 90\n"
        "max_percentage_of_search_space: 100\n",
        lambda t: 100.0 * t.load.batch_size,
    )
    tried = {(shape(t)[1], t.load.batch_size) for t in trials if not t.variant.is_default}
    assert {size for _, size in tried} == {1, 2, 16}
    assert all(batch <= size for size, batch in tried)
    assert {t.load.batch_size for t in trials if t.variant.is_default} == {1, 2}
