"""Options of `tpx analyze profile`: Model Analyzer's flags and YAML, and what is refused."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tpx.analyzer.options import ProfileSpec, read_options
from tpx.analyzer.options.models import ModelToProfile
from tpx.analyzer.options.spec import groups_of, spec_of
from tpx.analyzer.results.goals import Constraint
from tpx.analyzer.results.run import Run
from tpx.analyzer.variants import ModelFacts
from tpx.cli.analyze import main
from tpx.errors import UsageError
from tpx.options import build


@pytest.fixture
def models(tmp_path: Path) -> Path:
    for name in ("alexnet", "mnist"):
        (tmp_path / "models" / name).mkdir(parents=True)
    return tmp_path / "models"


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_model_analyzers_flags_are_understood(models: Path) -> None:
    config = read_options(
        [
            *("-m", str(models), "--profile-models=alexnet,mnist", "-b", "1,4", "-c", "2,8", "-e", "out"),
            *("--triton-launch-mode=local", "--client-protocol", "http", "--latency-budget", "0.5"),
            *("--run-config-search-max-instance-count", "2", "--collect-cpu-metrics"),
            *("--override-output-model-repository", "-d", "1", "-i", "0.2", "-r", "10"),
        ]
    )
    assert config.models.names == ("alexnet", "mnist")
    assert config.space.loads.values == (2, 8)
    assert config.space.loads.batch_sizes == (1, 4)
    assert not config.space.loads.until_plateau
    assert config.space.strategy.instances == (1, 2)
    assert config.goals.constraints == (Constraint(tag="perf_latency_p99", bound="max", limit=0.5),)
    assert (config.server.client_protocol, config.watch.collect_cpu_metrics) == ("http", True)


def test_concurrency_doubles_up_to_1024_unless_told_otherwise(models: Path) -> None:
    config = read_options(["-m", str(models), "--profile-models", "alexnet"])
    assert config.space.loads.values == (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
    assert config.space.loads.until_plateau
    assert config.space.strategy.max_batch_sizes == (1, 2, 4, 8, 16, 32, 64, 128)


def test_the_command_line_wins_over_the_file(models: Path, tmp_path: Path) -> None:
    file = written(
        tmp_path / "config.yml",
        f"model_repository: {models}\nprofile_models: [alexnet, mnist]\nconcurrency: [1, 2]\n"
        "run_config_search_max_instance_count: 3\nduration_seconds: 0\ncollect_cpu_metrics: true\n",
    )
    config = read_options(["-f", str(file), "--profile-models", "mnist", "-c", "16"])
    assert config.models.names == ("mnist",)
    assert config.loads.concurrency == (16,)
    assert config.strategy.run_config_search_max_instance_count == 3
    assert config.watch.duration_seconds == 0
    assert config.watch.collect_cpu_metrics


def test_a_minimum_of_the_file_may_be_raised_with_a_maximum_of_the_command_line(
    models: Path, tmp_path: Path
) -> None:
    file = written(
        tmp_path / "config.yml", "profile_models: alexnet\nrun_config_search_min_instance_count: 8\n"
    )
    words = ["-f", str(file), "-m", str(models), "--run-config-search-max-instance-count", "9"]
    assert read_options(words).space.strategy.instances == (8, 9)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("{start: 2, stop: 8, step: 3}", (2, 5, 8)),
        ("{start: 1, stop: 3}", (1, 2, 3)),
        ("'1,4'", (1, 4)),
        ("7", (7,)),
    ],
)
def test_numbers_of_the_file_may_be_lists_ranges_or_text(
    models: Path, tmp_path: Path, text: str, values: tuple[int, ...]
) -> None:
    file = written(tmp_path / "config.yml", f"profile_models: {{alexnet: }}\nconcurrency: {text}\n")
    assert read_options(["-f", str(file), "-m", str(models)]).loads.concurrency == values


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("concurency: 1", r"unknown key 'concurency' \(did you mean 'concurrency'\?\)"),
        (
            "concurrency: 1\nmodel_names: x",
            r"config.yml:2: 'model_names' is of an old .*: 'profile_models' replaced it",
        ),
        ("concurrency: {start: 4, stop: 1}", "concurrency: start 4 to stop 1 by step 1 has no values"),
        ("concurrency: {first: 4}", "expected a value, a list, or start, stop and step"),
        ("concurrency: {start: a, stop: b}", "start, stop and step are integers"),
        ("concurrency: [1, x]", "expected an integer"),
        ("profile_models: {alexnet: {genai_perf_flags: {x: y}}}", "genai_perf_flags: unknown option 'x'"),
        ("concurrency: [1", "not YAML"),
        ("- a\n- b", "expected options as"),
    ],
)
def test_a_bad_file_is_refused_with_its_place(models: Path, tmp_path: Path, text: str, message: str) -> None:
    file = written(tmp_path / "config.yml", text)
    with pytest.raises(UsageError, match=message):
        read_options(["-f", str(file), "-m", str(models), "--profile-models", "alexnet"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--run-config-search-min-concurrency=64", "--run-config-search-max-concurrency=2"],
         "--run-config-search-min-concurrency 64 is above --run-config-search-max-concurrency 2"),
        (["-b", "-1"], "every batch size must be at least 1"),
        (["--execution-providers=cuda,tpu"], "expected one of: openvino, cuda, tensorrt"),
        (["--profile-models", "alexnett"], r"'alexnett' \(did you mean 'alexnet'\?\) \(has: "),
        (["--profile-models", ".."], r"has no model '\.\.'"),
        (["-m", "/nowhere/at/all"], "no such directory"),
        (["-f", "/nowhere/at/all.yml"], "No such file"),
    ],
)  # fmt: skip
def test_bad_options_are_refused_by_name(models: Path, words: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_options(["-m", str(models), "--profile-models", "alexnet", *words])


@pytest.mark.parametrize("words", [["-m", "alexnet,mnist"], ["--profile-models", "alexnet,mnist"]])
def test_a_model_may_be_given_as_to_perf(models: Path, words: list[str]) -> None:
    for repository in ("-m", "--model-repository"):
        config = read_options([repository, str(models), *words])
        assert config.models.names == ("alexnet", "mnist")
        assert config.models.model_repository == models


def test_what_is_missing_is_named(models: Path) -> None:
    with pytest.raises(UsageError, match="missing: --profile-models"):
        read_options(["-m", str(models)])
    with pytest.raises(UsageError, match="missing: --model-repository"):
        read_options(["--profile-models", "alexnet"])


def test_settings_hold_what_was_changed_as_plain_values() -> None:
    config = build(
        ProfileSpec,
        {
            "profile_models": (ModelToProfile(name="alexnet"),),
            "export_path": Path("/tmp/out"),
            "concurrency": (1, 2),
        },
    )
    assert config.as_settings() == {
        "profile_models": ["alexnet"],
        "export_path": "/tmp/out",
        "concurrency": [1, 2],
    }


def test_listed_loads_end_early_where_they_are_told_to(models: Path) -> None:
    words = ["-m", str(models), "--profile-models", "alexnet", "-c", "1,2,4"]
    assert not read_options(words).space.loads.until_plateau
    assert read_options([*words, "--early-exit-enable"]).space.loads.until_plateau


def test_the_least_throughput_is_a_constraint(models: Path) -> None:
    words = ["-m", str(models), "--profile-models", "alexnet", "--min-throughput", "99.5"]
    assert read_options(words).goals.constraints == (
        Constraint(tag="perf_throughput", bound="min", limit=99.5),
    )


def test_what_optuna_is_told_reaches_the_search(models: Path) -> None:
    words = ["-m", str(models), "--profile-models", "alexnet", "--run-config-search-mode", "optuna"]
    more = ["--min-percentage-of-search-space=7", "--max-percentage-of-search-space=30"]
    last = ["--optuna-early-exit-threshold=3", "--use-concurrency-formula", "--concurrency-sweep-disable"]
    config = read_options([*words, *more, *last])
    facts = ModelFacts(model="alexnet", max_batch_size=0)
    mode, question = spec_of(config, groups_of(config)[0], {"alexnet": (facts, {})})
    trials = question.trials
    assert mode == "optuna"
    assert (trials.min_percentage_of_search_space, trials.max_percentage_of_search_space) == (7, 30)
    assert trials.optuna_early_exit_threshold == 3
    assert trials.use_concurrency_formula
    assert question.space.strategy.concurrency_sweep_disable


def test_as_many_configurations_as_told_are_shown(replay: Callable[..., Run]) -> None:
    assert replay(num_configs_per_model=0).started.top == 0
    assert replay(num_configs_per_model=2).started.top == 2


def test_a_shown_configuration_has_the_variables_and_the_settings_of_models(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "profile_models: {alexnet: {cpu_only: true}}\nconstraints: {perf_latency_p99: {max: 1}}\n"
    file = written(tmp_path / "config.yml", text)
    monkeypatch.setenv("TPX_ANALYZE_MODEL_REPOSITORY", str(models))
    monkeypatch.setenv("TPX_ANALYZE_CONCURRENCY", "1,2")
    assert main(["plan", "-f", str(file), "--batch-sizes=4", "--show-config"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line and not line.startswith("#")]
    assert {line.partition("  # ")[0].strip(): line.rpartition("# ")[2] for line in lines} == {
        f"model_repository: {models}": "TPX_ANALYZE_MODEL_REPOSITORY",
        "profile_models: {alexnet: {cpu_only: true}}": str(file),
        "batch_sizes: 4": "--batch-sizes",
        "concurrency: 1,2": "TPX_ANALYZE_CONCURRENCY",
        "constraints: {perf_latency_p99: {max: 1}}": str(file),
    }
    again = written(tmp_path / "shown.yml", "\n".join(lines))
    config = read_options(["-f", str(again)])
    assert (config.space.loads.values, config.space.loads.batch_sizes) == ((1, 2), (4,))
    assert config.models.profile_models[0].cpu_only
