"""`profile_models` of a Model Analyzer file: every form, the settings of a model, and where a fault is."""

from pathlib import Path

import pytest

from tpx.analyzer.options.file import merge_options
from tpx.analyzer.options.models import ModelToProfile
from tpx.analyzer.results.goals import Constraint, WeightedObjective
from tpx.analyzer.search.ranges import ModelParameters
from tpx.errors import UsageError

WHOLE = """
profile_models:
  net:
    cpu_only: true
    weighting: 3
    parameters: {batch_sizes: [1,4], concurrency: {start: 4, stop: 16, step: 4}}
    objectives: {perf_throughput: 10, perf_latency_p99: 5}
    constraints: {perf_latency_p99: {max: 0.5}, gpu_used_memory: {max: 200}}
    model_config_parameters:
      max_batch_size: [4, 8]
      instance_group: [{kind: [KIND_GPU], count: [1,2]}]
    perf_analyzer_flags: {shape: ["INPUT0:1,64", "INPUT1:64"], percentile: "95", async: true}
    genai_perf_flags: {streaming: "true", backend: vllm}
    triton_server_flags: {strict-readiness: "false", log_verbose: 1}
    triton_server_environment: {LD_PRELOAD: x.so, EMPTY: }
    triton_docker_args: {mem_limit: 8g, privileged: true, dns: [1.1.1.1]}
  other:
"""


def models_of(tmp_path: Path, text: str, *words: str) -> tuple[ModelToProfile, ...]:
    path = tmp_path / "config.yml"
    path.write_text(text)
    return merge_options(["-f", str(path), *words]).models.profile_models


def test_every_setting_of_a_model_is_read(tmp_path: Path) -> None:
    net, other = models_of(tmp_path, WHOLE)
    assert other == ModelToProfile(name="other")
    assert (net.name, net.cpu_only, net.weighting) == ("net", True, 3.0)
    assert net.parameters == ModelParameters(batch_sizes=(1, 4), concurrency=(4, 8, 12, 16))
    assert net.objectives == (
        WeightedObjective(tag="perf_throughput", weight=10),
        WeightedObjective(tag="perf_latency_p99", weight=5),
    )
    assert net.constraints == (
        Constraint(tag="perf_latency_p99", bound="max", limit=0.5),
        Constraint(tag="gpu_used_memory", bound="max", limit=200),
    )
    assert net.sweep.combinations == 4
    assert net.perf_analyzer_flags == {
        "shape": ("INPUT0:1,64", "INPUT1:64"),
        "percentile": ("95",),
        "async": ("true",),
    }
    assert net.genai_perf_flags == {"streaming": ("true",), "backend": ("vllm",)}
    assert net.triton_server_flags == {"strict-readiness": ("false",), "log-verbose": ("1",)}
    assert net.triton_server_environment == {"LD_PRELOAD": "x.so", "EMPTY": ""}
    assert net.triton_docker_args == {"mem_limit": "8g", "privileged": True, "dns": ("1.1.1.1",)}


@pytest.mark.parametrize(
    "text",
    [
        "profile_models: a,b",
        "profile_models: [a, b]",
        "profile_models: [a, {b: {}}]",
        "profile_models: {a: , b: {}}",
        "profile_models:\n- a\n- b",
    ],
)
def test_models_may_be_text_a_list_or_a_map(tmp_path: Path, text: str) -> None:
    assert models_of(tmp_path, text) == (ModelToProfile(name="a"), ModelToProfile(name="b"))


def test_models_of_the_command_line_keep_the_settings_of_the_file(tmp_path: Path) -> None:
    text = "profile_models: {a: {cpu_only: true}, b: {weighting: 2}}"
    assert models_of(tmp_path, text, "--profile-models", "c,b") == (
        ModelToProfile(name="c"),
        ModelToProfile(name="b", weighting=2),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a:\n    cpu_onli: true", r":3: .*: a: unknown key 'cpu_onli' \(did you mean 'cpu_only'"),
        ("a:\n    cpu_only: 1", ":4: profile_models: a.cpu_only: expected true or false, got 1"),
        ("a:\n    weighting: 0", ":4: .*a.weighting: a weight must be above 0"),
        ("a:\n    parameters:\n      batches: 1", ":4: .*a.parameters: unknown key 'batches'.*batch_sizes"),
        ("a:\n    parameters: {concurrency: x}", "a.parameters.concurrency: expected an integer, got 'x'"),
        ("a:\n    objectives: [perf_throughputt]", "unknown metric 'perf_throughputt' .did you mean"),
        ("a:\n    objectives: {perf_throughput: 0}", "the weight of an objective must be above 0"),
        ("a:\n    constraints: {perf_throughput: {max: 4}}", "use min"),
        ("a:\n    constraints: {perf_latency_p99: 4}", "expected min or max as"),
        ("a:\n    constraints: {perf_latency_p99: {most: 4}}", "expected min or max, got most"),
        ("a:\n    constraints: {perf_latency_p99: {max: 0}}", "must be above 0, not 0"),
        ("a:\n    model_config_parameters:\n      instance_group:\n      - cuont: 1",
         r":6: .*a.model_config_parameters.instance_group\[0\].cuont: .*did you mean 'count'"),
        ("a:\n    perf_analyzer_flags: [x]", "expected options as"),
        ("a:\n    perf_analyzer_flags: {shape: {x: 1}}", "_flags.shape: expected a single value"),
        ("a:\n    triton_docker_args: {ulimits: {x: 1}}", "ulimits: expected a single value or a list"),
        ("a: 4", "a: expected settings of a model as"),
    ],
)  # fmt: skip
def test_a_fault_is_told_with_its_line_and_path(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        models_of(tmp_path, f"# models\nprofile_models:\n  {text}\n")


def test_goals_and_loads_of_a_model_replace_those_of_the_run(tmp_path: Path) -> None:
    path = tmp_path / "config.yml"
    path.write_text(
        "constraints: {perf_throughput: {min: 5}}\nconcurrency: [1, 2]\nbatch_sizes: 2\nlatency_budget: 0.5\n"
        "profile_models: {a: {constraints: {perf_latency_p90: {max: 3}}, parameters: {concurrency: 8}}, b: }"
    )
    config = merge_options(["-f", str(path)])
    a, b = config.models.profile_models
    assert [c.tag for c in config.goals.of("a").constraints] == ["perf_latency_p90", "perf_latency_p99"]
    assert [c.tag for c in config.goals.of("b").constraints] == ["perf_throughput", "perf_latency_p99"]
    assert (config.space_of(a).loads.values, config.space_of(b).loads.values) == ((8,), (1, 2))
    assert config.space_of(a).loads.batch_sizes == (2,)


def test_goals_may_stand_on_the_command_line() -> None:
    config = merge_options(
        ["--objectives", "perf_throughput,perf_latency_p99", "--constraints", "perf_latency_p99<=7.5"]
    )
    assert [(aim.tag, aim.weight) for aim in config.goal.objectives] == [
        ("perf_throughput", 10),
        ("perf_latency_p99", 10),
    ]
    assert config.goal.constraints == (Constraint(tag="perf_latency_p99", bound="max", limit=7.5),)
    mapped = merge_options(["--objectives={perf_throughput: 3}", "--constraints={perf_latency: {max: 1}}"])
    assert mapped.goal.objectives == (WeightedObjective(tag="perf_throughput", weight=3),)
    assert mapped.goal.constraints[0].tag == "perf_latency_p99"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--constraints", "perf_latency_p99"], "expected METRIC<=LIMIT or METRIC>=LIMIT"),
        (["--constraints", "perf_latency_p99>=4"], "use max"),
        (["--objectives", "{perf_throughput"], "not YAML"),
        (["--triton-server-flags", "4"], "expected options as"),
    ],
)
def test_faults_of_maps_on_the_command_line_name_their_flag(words: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=f"{words[0]}.*{message}"):
        merge_options(words)
