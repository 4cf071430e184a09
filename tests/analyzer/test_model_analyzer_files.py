"""Files as users of Model Analyzer write them, of every kind that its documentation shows, and its command
lines: each is read as it is meant there."""

import csv
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.child import tpx
from tpx import examples
from tpx.analyzer.options import ProfileSpec
from tpx.analyzer.options.file import merge_options
from tpx.analyzer.results.journal import read_last_run
from tpx.analyzer.results.run import Run
from tpx.options import given
from tpx.perf.settings import Shape

FILES = Path(__file__).parent / "model_analyzer"


def read(name: str, *words: str) -> ProfileSpec:
    return merge_options(["-f", str(FILES / f"{name}.yml"), *words])


def test_every_file_is_read() -> None:
    names = sorted(path.stem for path in FILES.glob("*.yml"))
    assert len(names) >= 14
    for name in names:
        assert read(name).models.profile_models


def test_the_automatic_search_is_the_whole_space() -> None:
    config = read("automatic")
    space = config.space_of(config.models.profile_models[0])
    assert config.models.names == ("add_sub", "resnet")
    assert (len(space.strategy.instances), len(space.strategy.max_batch_sizes)) == (5, 8)
    assert space.loads.values[-1] == 1024
    assert space.loads.until_plateau


def test_a_smaller_space_is_as_small_as_the_file_says() -> None:
    space = read("limited").space
    assert space.strategy.instances == (1, 2, 3)
    assert space.strategy.max_batch_sizes == (2, 4, 8, 16)
    assert space.loads.values == (1, 2, 4, 8)


def test_listed_configurations_are_combined() -> None:
    [model] = read("manual").models.profile_models
    deltas = list(model.sweep.deltas())
    assert len(deltas) == 2 * 3 * 2 * 2
    assert deltas[0] == {
        "max_batch_size": 6,
        "dynamic_batching": {"preferred_batch_size": [1], "max_queue_delay_microseconds": 200},
        "instance_group": [{"kind": "KIND_CPU", "count": 1}],
    }
    loads = read("manual").space_of(model).loads
    assert (loads.values, loads.batch_sizes, loads.until_plateau) == ((1, 2, 4), (2, 4, 6), False)


def test_groups_as_alternatives_are_not_groups_side_by_side() -> None:
    [model] = read("alternatives").models.profile_models
    deltas = list(model.sweep.deltas())
    assert len(deltas) == 3 * 2 * 2
    assert {len(delta["instance_group"]) for delta in deltas} == {1}
    assert read("alternatives").space_of(model).loads.values == (1,)  # no search, and no load listed


def test_goals_of_a_model_replace_those_of_the_run() -> None:
    config = read("goals")
    run, own = config.goals.of("add_sub"), config.goals.of("resnet")
    assert [(aim.tag, aim.weight) for aim in own.objectives] == [
        ("perf_throughput", 3),
        ("perf_latency_p99", 2),
    ]
    assert [limit.tag for limit in run.constraints] == ["perf_latency_p99", "gpu_used_memory"]
    assert [(limit.tag, limit.bound) for limit in own.constraints] == [("perf_throughput", "min")]
    assert (config.goal.num_configs_per_model, config.goal.num_top_model_configs) == (2, 5)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("quick", {"run_config_search_mode": "quick", "latency_budget": 7.0}),
        ("together", {"run_config_profile_models_concurrently_enable": True}),
        ("optuna", {"use_concurrency_formula": True, "optuna_early_exit_threshold": 5}),
        ("language", {"model_type": "LLM", "triton_launch_mode": "remote"}),
        (
            "bls",
            {
                "triton_launch_mode": "docker",
                "triton_docker_shm_size": "2G",
                "triton_docker_mounts": ("/data:/data:ro",),
                "triton_docker_args": {"mem_limit": "8g", "network_mode": "host"},
                "triton_docker_labels": {"team": "vision"},
                "override_output_model_repository": True,
            },
        ),
        ("ensemble", {"cpu_only_composing_models": ("add", "sub")}),
        (
            "remote",
            {
                "triton_http_endpoint": "triton:8000",
                "monitoring_interval": 0.5,
                "dcgm_disable": True,
            },
        ),
    ],
)
def test_values_are_those_of_the_file(name: str, expected: dict[str, Any]) -> None:
    config = read(name)
    told = given(config)
    assert {key: told[key] for key in expected} == expected


def test_composing_models_are_models() -> None:
    assert [model.name for model in read("bls").models.bls_composing_models] == ["add_sub"]
    assert [model.name for model in read("ensemble").models.ensemble_composing_models] == ["add", "sub"]


def test_weights_are_of_their_model() -> None:
    assert read("together").goals.weight_of("resnet") == 3


def test_rates_are_loads_of_their_own_kind() -> None:
    loads = read("rates").space.loads
    assert (loads.kind, loads.values) == ("request_rate", (32, 64, 128))


def test_flags_reach_whom_they_are_for_and_what_changes_nothing_is_said() -> None:
    config = read("flags")
    own, other = config.models.profile_models
    assert own.triton_server_flags == {"strict-model-config": ("false",), "log-verbose": ("true",)}
    assert other.triton_server_flags is None
    assert config.server.triton_server_flags == {"exit-timeout-secs": ("120",)}
    assert own.parameters.batch_sizes == (4, 5, 6, 7, 8, 9)
    assert config.sessions["add_sub"].windows.percentile == 95
    assert config.sessions["resnet"].inputs.shape == (
        Shape("INPUT0", (1024, 1024)),
        Shape("INPUT1", (1024, 1024)),
    )
    assert [line.split(" has no effect")[0] for line in config.warnings] == [
        "--perf-analyzer-cpu-util",
        "--perf-analyzer-path",
        "perf_analyzer_flags: latency-report-file",
    ]


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_command_of_the_quick_start_measures_five_configurations_twice(tmp_path: Path) -> None:
    examples.write(tmp_path / "quick-start", ["add_sub"])
    words = [
        *("--model-repository", "quick-start", "--profile-models", "add_sub"),
        *("--triton-launch-mode=local", "--output-model-repository-path", "variants/add_sub"),
        *("--export-path", "analysis_results", "--run-config-search-max-concurrency", "2"),
        *("--run-config-search-max-model-batch-size", "2", "--run-config-search-max-instance-count", "2"),
    ]
    short = ["--measurement-interval=50", "--max-trials=3", "--duration-seconds=0", "--final-rounds=0"]
    done = tpx("analyze", "-m", "online", "profile", *words, *short, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    results = tmp_path / "analysis_results" / "results"
    run = Run.from_records(read_last_run(results / "run.jsonl"))
    [model] = run.models
    assert [variant.variant.name for variant in model.variants][:2] == [
        "add_sub_config_default",
        "add_sub_config_0",
    ]
    assert len(model.variants) <= 5
    assert {m.load.value for v in model.variants for m in v.measurements} == {1, 2}
    with (results / "metrics-model-inference.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == model.measurement_count
    assert {"Model", "Concurrency", "Model Config Path", "Throughput (infer/sec)"} <= set(rows[0])


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_listed_configurations_of_a_file_are_measured_as_listed(tmp_path: Path) -> None:
    examples.write(tmp_path / "models", ["add_sub"])
    text = (FILES / "manual.yml").read_text(encoding="utf-8").replace("resnet", "add_sub")
    text = text.replace("[6, 8]", "[8]").replace("[[1], [2], [3]]", "[4]").replace("[200, 300]", "[200, 0]")
    text = text.replace("concurrency: 1,2,4", "concurrency: 1").replace("stop: 6", "stop: 2")
    (tmp_path / "config.yml").write_text(text, encoding="utf-8")
    names = ["-s", "checkpoints", "--filename-model-inference=a.csv", "--filename-model-gpu=b.csv"]
    names += ["--filename-server-only=c.csv", "--perf-output", "--perf-output-path=levels.txt"]
    short = ["--measurement-interval=50", "--max-trials=3", "--duration-seconds=0", "--final-rounds=0"]
    done = tpx("analyze", "profile", "-f", "config.yml", *short, *names, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    [model] = Run.from_records(read_last_run(tmp_path / "checkpoints" / "run.jsonl")).models
    assert {path.name for path in (tmp_path / "results").iterdir()} >= {"a.csv", "b.csv", "c.csv"}
    levels = (tmp_path / "levels.txt").read_text(encoding="utf-8")
    assert levels.count("add_sub_config_0 at concurrency 1") == 1
    assert "Request count: " in levels
    assert "Request count: " in done.stderr
    texts = [variant.configuration.text for variant in model.variants]
    assert len(texts) == 1 + 4  # the default, and two delays times two numbers of instances
    assert all("preferred_batch_size: 4" in text for text in texts[1:])
    assert {load.batch_size for v in model.variants for load in [m.load for m in v.measurements]} == {2}
