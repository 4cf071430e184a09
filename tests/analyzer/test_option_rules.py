"""Options that do not go together are refused, naming both; also those that Model Analyzer lets pass."""

from pathlib import Path

import pytest

from tpx.analyzer.options import ProfileConfig
from tpx.analyzer.options.file import merge_options
from tpx.analyzer.options.waiting import refuse_waiting
from tpx.errors import UsageError

QUICK = "run_config_search_mode: quick\n"
TOGETHER = "run_config_profile_models_concurrently_enable: true\n"


def read(tmp_path: Path, text: str, *words: str) -> ProfileConfig:
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
        ("cpu_only_composing_models: b", "needs --bls-composing-models or --ensemble-composing-models"),
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
        ("request_rate: 4\nconcurrency: 4", "--request-rate and --concurrency do not go together"),
        ("request_rate_search_enable: true\nrun_config_search_max_concurrency: 4",
         "--request-rate-search-enable and --run-config-search-max-concurrency do not go together"),
        ("run_config_search_min_request_rate: 32\nrun_config_search_min_concurrency: 4",
         "--run-config-search-min-request-rate and --run-config-search-min-concurrency"),
        ("profile_models: {a: {parameters: {concurrency: 4, request_rate: 4}}}", "model 'a' has both"),
        (TOGETHER + "profile_models: {a: {parameters: {request_rate: 4}}, b: {parameters: {concurrency: 4}}}",
         "all have a concurrency, or all a request rate"),
        ("profile_models: [a, a]", "names a model twice: a,a"),
        ("num_top_model_configs: 2", "compares models by constraints that hold for all of them"),
        ("dcgm_disable: true", "goes with --triton-launch-mode remote only"),
        ("triton_docker_mounts: ['/a:/b']", "'/a:/b' is not HOST:DEST:MODE"),
        ("run_config_search_min_concurrency: 64\nrun_config_search_max_concurrency: 2", "64 is"),
        ("run_config_search_min_instance_count: 5\nrun_config_search_max_instance_count: 2", "5 is above"),
        ("run_config_search_min_model_batch_size: 64\nrun_config_search_max_model_batch_size: 2", "64 is"),
        ("optuna_min_trials: 9\noptuna_max_trials: 3", "--optuna-min-trials 9 is above"),
        ("weighting: 2", "weighting is of one model"),
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
    assert (config.num_configs_per_model, config.duration_seconds, config.latency_budget) == (0, 0.0, 0.5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("profile_models: a\nbls_composing_models: {b: {cpu_only: true}}", "composing model 'b': its own"),
        (TOGETHER + "profile_models: {a: {parameters: {concurrency: 4}}, b: }", "'a': parameters of a model"),
        (TOGETHER + "profile_models: {a: , b: {model_config_parameters: {max_batch_size: 4}}}",
         "'b': model_config_parameters of a model that is profiled together"),
    ],
)  # fmt: skip
def test_settings_that_nothing_reads_are_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        refuse_waiting(read(tmp_path, text))
