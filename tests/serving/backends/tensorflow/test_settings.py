"""What parameters and --backend-config ask of TensorFlow."""

import pytest

from tpx.errors import ConfigError
from tpx.protocol import model_config
from tpx.serving.backends.tensorflow.settings import TensorFlowSettings, settings_of


def settings(text: str = "", backend: dict[str, str] | None = None, **parameters: str) -> TensorFlowSettings:
    """The settings of a config.pbtxt with these parameters."""
    lines = [
        f"parameters {{ key: '{key}' value {{ string_value: '{value}' }} }}"
        for key, value in parameters.items()
    ]
    return settings_of(model_config.parse(f"name: 'net' {text} {' '.join(lines)}", "test"), backend or {})


def test_without_words_the_instances_own_thread_computes_in_a_session_of_its_own() -> None:
    found = settings()
    assert found == TensorFlowSettings()
    assert (found.inter_threads, found.sharing, found.tag, found.soft_placement) == (None, 1, "serve", True)


def test_every_parameter_of_tritons_backend_is_read() -> None:
    found = settings(
        TF_NUM_INTRA_THREADS="2",
        TF_NUM_INTER_THREADS="0",
        TF_USE_PER_SESSION_THREADS="On",
        TF_SIGNATURE_DEF="mine",
        TF_GRAPH_TAG="gpu",
        TF_INIT_OPS_FILE="init.json",
        MAX_SESSION_SHARE_COUNT="3",
    )
    assert found == TensorFlowSettings(
        intra_threads=2,
        inter_threads=0,
        per_session_threads=True,
        signature="mine",
        tag="gpu",
        init_ops_file="init.json",
        sharing=3,
    )


def test_memory_of_gpus_grows_unless_a_fraction_is_given() -> None:
    found = settings(backend={"gpu-memory-fraction": "0.5", "allow-soft-placement": "false", "version": "2"})
    assert (found.gpu_memory_fraction, found.soft_placement) == (0.5, False)
    assert settings().gpu_memory_fraction == 0


@pytest.mark.parametrize(("level", "jit"), [(-1, "OFF"), (0, "DEFAULT"), (1, "ON_1"), (2, "ON_2")])
def test_the_level_of_the_graph_is_that_of_its_compiler(level: int, jit: str) -> None:
    assert settings(f"optimization {{ graph {{ level: {level} }} }}").jit == jit


def accelerator(where: str, name: str) -> str:
    """`optimization` with one execution accelerator."""
    chosen = f"{where}_execution_accelerator [{{ name: '{name}' }}]"
    return f"optimization {{ execution_accelerators {{ {chosen} }} }}"


def test_mixed_precision_is_an_accelerator() -> None:
    assert settings(accelerator("gpu", "auto_mixed_precision")).mixed_precision
    assert not settings().mixed_precision


@pytest.mark.parametrize(
    ("text", "parameters", "message"),
    [
        ("", {"TF_NUM_INTRA_THREADS": "-1"}, "'TF_NUM_INTRA_THREADS' of model 'net' must be a whole number"),
        ("", {"TF_NUM_INTER_THREADS": "x"}, "'TF_NUM_INTER_THREADS' of model 'net' must be a whole number"),
        ("", {"TF_NUM_INTRA_THREADS": "1025"}, "must be a whole number from 0 to 1024, got '1025'"),
        ("", {"MAX_SESSION_SHARE_COUNT": "0"}, "must be a whole number from 1 to 2147483647, got '0'"),
        ("", {"MAX_SESSION_SHARE_COUNT": "9" * 5000}, "must be a whole number from 1 to 2147483647"),
        ("", {"TF_USE_PER_SESSION_THREADS": "maybe"}, "must be true or false, got 'maybe'"),
        (
            accelerator("cpu", "openvino"),
            {},
            "CPU Execution Accelerator is not supported in TensorFlow backend",
        ),
        (
            accelerator("gpu", "tensorrt"),
            {},
            "accelerator 'tensorrt', which tpx does not support for TensorFlow",
        ),
        (accelerator("gpu", "gpu_io"), {}, "accelerator 'gpu_io', which tpx does not support for TensorFlow"),
        (accelerator("gpu", "magic"), {}, "unknown Execution Accelerator 'magic' is requested"),
    ],
)
def test_what_makes_no_sense_is_named(text: str, parameters: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings(text, None, **parameters)


@pytest.mark.parametrize(
    ("backend", "message"),
    [
        ({"version": "1"}, "version=1: tpx serves with TensorFlow 2 only"),
        ({"gpu-memory-fraction": "2"}, "must be between 0 and 1, got '2'"),
        ({"gpu-memory-fraction": "much"}, "must be between 0 and 1, got 'much'"),
        (
            {"allow-soft-placement": "2"},
            "of --backend-config tensorflow must be true or false, got '2'",
        ),
    ],
)
def test_a_setting_of_the_backend_that_makes_no_sense_is_named(backend: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings(backend=backend)


def test_a_parameter_that_nobody_knows_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    settings(TF_NUM_THREADS="2")
    assert "parameter 'TF_NUM_THREADS' of model 'net' has no effect" in caplog.text
