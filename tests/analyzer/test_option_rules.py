"""Options that do not go together are refused, naming both; also those that Model Analyzer lets pass."""

from pathlib import Path

import pytest

from tpx.analyzer.options import ProfileSpec
from tpx.analyzer.options.file import merge_options
from tpx.cli.launching import launch_of
from tpx.errors import UsageError

QUICK = "run_config_search_mode: quick\n"
TOGETHER = "run_config_profile_models_concurrently_enable: true\n"


def read(tmp_path: Path, text: str, *words: str) -> ProfileSpec:
    path = tmp_path / "config.yml"
    path.write_text(text, encoding="utf-8")
    return merge_options(["-f", str(path), *words])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TOGETHER + "run_config_search_mode: brute", "enable: brute search does not vary several models"),
        ("bls_composing_models: b\nrun_config_search_mode: brute", "models: brute search does not vary"),
        ("bls_composing_models: b\nprofile_models: a,c", "belong to one model: profile that one alone"),
        (TOGETHER + "bls_composing_models: b\nprofile_models: a", "and models profiled together do not go"),
        (QUICK + "run_config_search_disable: true", "and --run-config-search-disable do not go together"),
        (QUICK + "concurrency: 4", "--concurrency: quick search chooses the concurrency itself"),
        (QUICK + "batch_sizes: 4", "--batch-sizes: quick search sends single inferences"),
        (QUICK + "profile_models: {a: {parameters: {concurrency: 4}}}", "model 'a': concurrency: quick"),
        (QUICK + "profile_models: {a: {model_config_parameters: {max_batch_size: [1, 2]}}}",
         "model 'a': max_batch_size: quick search varies it itself"),
        (QUICK + "profile_models: {a: {model_config_parameters: {instance_group: [{count: [1, 2]}]}}}",
         r"model 'a': instance_group\[0\].count: quick search varies it itself"),
        (QUICK + "profile_models: {a: {model_config_parameters: {dynamic_batching: "
         "{max_queue_delay_microseconds: [1, 2]}}}}", "have 2 combinations; quick search takes one"),
        ("request_rate: 4\nconcurrency: 4", "--request-rate and --concurrency are mutually exclusive"),
        ("request_rate_search_enable: true\nrun_config_search_max_concurrency: 4",
         "--request-rate-search-enable and --run-config-search-max-concurrency are mutually exclusive"),
        ("run_config_search_min_request_rate: 32\nrun_config_search_min_concurrency: 4",
         "--run-config-search-min-request-rate and --run-config-search-min-concurrency"),
        ("profile_models: {a: {parameters: {concurrency: 4, request_rate: 4}}}", "model 'a' has both"),
        (TOGETHER + "profile_models: {a: {parameters: {request_rate: 4}}, b: {parameters: {concurrency: 4}}}",
         "all have a concurrency, or all a request rate"),
        ("optuna_min_trials: 9\noptuna_max_trials: 3", "--optuna-min-trials 9 is above"),
        ("reload_model_disable: true", "requires --triton-launch-mode remote"),
        ("constraints: {gpu_used_memory: {min: 5}}", "a min of GPU Memory Usage is not a valid constraint"),
        ("constraints: {time_to_first_token_p99: {min: 5}}", "is not a valid constraint: use max"),
        ("constraints: 'output_token_throughput<=5'", "is not a valid constraint: use min"),
        ("seed: 1\nconcurrency: 4\nseed: 2", ":3: seed is repeated here; it was first set on line 1"),
        ("profile_models:\n  a:\n    cpu_only: true\n  b:\n  a:\n    cpu_only: false",
         ":5: a is repeated here; it was first set on line 2"),
        ("perf_analyzer_flags: {request-count: 0}", "Failed to parse --request-count. The value must be > 0"),
        ("triton_server_flags: {http-prt: 1}", "unknown option 'http-prt' .did you mean 'http-port'"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read(tmp_path, text)


@pytest.mark.parametrize(
    "text",
    [
        TOGETHER + "profile_models: a,b",
        "bls_composing_models: b\nprofile_models: a",
        QUICK + "profile_models: {a: {model_config_parameters: {dynamic_batching: {}}}}",
        QUICK + "profile_models: a\nensemble_composing_models: "
        "{b: {model_config_parameters: {instance_group: [{count: [1, 2]}]}}}",
        "dcgm_disable: true\ntriton_launch_mode: remote",
        "num_top_model_configs: 2\nlatency_budget: 5",
        "profile_models: {a: {parameters: {request_rate: 4}}, b: {parameters: {concurrency: 4}}}",
        "latency_budget: 0.5\nduration_seconds: 0\nnum_configs_per_model: 0\ncollect_cpu_metrics: false",
    ],
)
def test_what_goes_together_is_taken(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, text)


def test_falsy_values_of_a_file_are_values(tmp_path: Path) -> None:
    config = read(tmp_path, "num_configs_per_model: 0\nduration_seconds: 0\nlatency_budget: 0.5\n")
    assert (config.goal.num_configs_per_model, config.watch.duration_seconds, config.goal.latency_budget) == (
        0,
        0.0,
        0.5,
    )


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("profile_models: a\nbls_composing_models: {b: {cpu_only: true, model_config_parameters: "
         "{max_batch_size: 4}}}", []),
        ("profile_models: a\nensemble_composing_models: {b: {weighting: 2, parameters: {concurrency: 4}}}",
         ["composing model 'b': weighting has no effect: it has no load of its own",
          "composing model 'b': parameters has no effect: it has no load of its own"]),
        (TOGETHER + "profile_models: {a: {parameters: {concurrency: [2, 8]}, weighting: 3}, b: }", []),
        ("triton_http_endpoint: here:1",
         ["--triton-http-endpoint has no effect with --triton-launch-mode local: it is for remote"]),
        ("triton_launch_mode: remote\ntriton_http_endpoint: here:1", []),
        ("triton_launch_mode: c_api\ntriton_server_flags: {log-verbose: 1}",
         ["--triton-server-flags has no effect with --triton-launch-mode inprocess: it is for local and "
          "docker and remote and ray"]),
        ("optuna_max_trials: 9",
         ["--optuna-max-trials has no effect: it is for --run-config-search-mode optuna"]),
        (QUICK + "pareto: perf_throughput,gpu_used_memory",
         ["--pareto has no effect with --run-config-search-mode quick"]),
        ("search_threads: true\nprofile_models: {a: {model_config_parameters: {max_batch_size: [1, 2]}}}",
         ["--search-threads has no effect if configurations are listed: list its values there"]),
        ("queue_delays: 100\nprofile_models: a", []),
        ("queue_delays: 100\npareto: perf_throughput,gpu_used_memory\nrun_config_search_mode: brute",
         ["--pareto has no effect with --run-config-search-mode brute",
          "--queue-delays has no effect with --run-config-search-mode brute"]),
        ("perf_analyzer_flags: {sequence-length: 0}",
         ["perf_analyzer_flags: --sequence-length 0: the sequence length must be > 0; 20 is used"]),
    ],
)  # fmt: skip
def test_settings_that_nothing_reads_are_warned_of_by_name(
    tmp_path: Path, text: str, lines: list[str]
) -> None:
    assert list(read(tmp_path, text).warnings) == lines


def test_models_together_are_served_by_one_server(tmp_path: Path) -> None:
    text = TOGETHER + "profile_models: {{a: {{triton_server_flags: {{log-verbose: {}}}}}, b: , c: {{{}}}}}"
    config = read(tmp_path, text.format(1, ""))
    assert launch_of(config, ("a", "b", "c")).flags == {"log-verbose": ("1",)}
    with pytest.raises(UsageError, match="triton_server_flags of models 'a' and 'c' differ"):
        read(tmp_path, text.format(1, "triton_server_flags: {log-verbose: 2}"))
