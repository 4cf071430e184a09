"""What parameters ask of OpenVINO."""

from typing import Any

import pytest

from tests.serving.backends.openvino.models import config, parameters
from tpx.errors import ConfigError
from tpx.serving.backends.openvino.execution import settings_of


def properties(**settings: str) -> dict[str, str]:
    """What OpenVINO is told."""
    return dict(settings_of(config(parameters(**settings))).properties)


def test_without_words_there_is_a_stream_for_each_instance_and_single_precision() -> None:
    settings = settings_of(config("instance_group [{ name: 'net' kind: KIND_CPU count: 3 }]"))
    assert settings.device == "CPU"
    assert settings.properties == {"INFERENCE_PRECISION_HINT": "f32", "NUM_STREAMS": "3"}
    assert (settings.fixed_batch, settings.padded, settings.reshaped) == (False, False, False)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"NUM_STREAMS": "auto"}, {"NUM_STREAMS": "AUTO"}),
        ({"NUM_STREAMS": "2"}, {"NUM_STREAMS": "2"}),
        ({"PERFORMANCE_HINT": "throughput"}, {"PERFORMANCE_HINT": "THROUGHPUT"}),
        ({"INFERENCE_NUM_THREADS": "3"}, {"INFERENCE_NUM_THREADS": "3", "NUM_STREAMS": "1"}),
        ({"ENABLE_CPU_PINNING": "NO"}, {"ENABLE_CPU_PINNING": "NO", "NUM_STREAMS": "1"}),
        ({"CPU_THREADS_NUM": "3"}, {"INFERENCE_NUM_THREADS": "3", "NUM_STREAMS": "1"}),
        ({"CPU_THROUGHPUT_STREAMS": "numa"}, {"NUM_STREAMS": "NUMA"}),
    ],
)
def test_parameters_become_properties(given: dict[str, str], expected: dict[str, str]) -> None:
    assert properties(**given) == {"INFERENCE_PRECISION_HINT": "f32", **expected}


@pytest.mark.parametrize(
    "given", [{"HINT_BF16": "YES"}, {"ENFORCE_BF16": "yes"}, {"INFERENCE_PRECISION_HINT": "bf16"}]
)
def test_bfloat16_is_computed_with_where_it_is_asked_for(given: dict[str, str]) -> None:
    assert properties(**given)["INFERENCE_PRECISION_HINT"] == "bf16"


def test_other_devices_are_told_only_what_is_configured() -> None:
    settings = settings_of(config(parameters(TARGET_DEVICE="GPU", CACHE_DIR="c")))
    assert (settings.device, settings.properties) == ("GPU", {"CACHE_DIR": "c"})


def test_switches_are_read_in_any_case() -> None:
    given = {"SKIP_OV_DYNAMIC_BATCHSIZE": "Yes", "ENABLE_BATCH_PADDING": "YES", "RESHAPE_IO_LAYERS": "yes"}
    settings = settings_of(config(parameters(**given)))
    assert (settings.fixed_batch, settings.padded, settings.reshaped) == (True, True, True)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            {"NUM_STREAMS": "many"},
            "'NUM_STREAMS' of model 'net' must be one of AUTO, NUMA or a number, got 'many'",
        ),
        (
            {"INFERENCE_NUM_THREADS": "-1"},
            "'INFERENCE_NUM_THREADS' of model 'net' must be a whole number from 0 to 1024, got '-1'",
        ),
        (
            {"NUM_STREAMS": "100000"},
            "'NUM_STREAMS' of model 'net' must be a whole number from 0 to 1024, got '100000'",
        ),
        (
            {"PERFORMANCE_HINT": "FAST"},
            "'PERFORMANCE_HINT' of model 'net' must be one of LATENCY, THROUGHPUT,",
        ),
        ({"HINT_BF16": "2"}, "'HINT_BF16' of model 'net' must be true or false, got '2'"),
    ],
)
def test_a_parameter_that_makes_no_sense_is_named(given: dict[str, str], expected: str) -> None:
    with pytest.raises(ConfigError, match=f"parameter {expected}"):
        properties(**given)


def test_a_parameter_that_nobody_knows_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    given: dict[str, Any] = {"num_streams": "2"}
    assert "num_streams" not in properties(**given)
    assert "parameter 'num_streams' of model 'net' has no effect" in caplog.text
