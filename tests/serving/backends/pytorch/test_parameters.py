"""What a model's parameters mean, and which of them cannot mean anything."""

import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.serving.backends.pytorch import zoo
from tests.serving.backends.pytorch.opening import QUIET_JIT, check, config, executors, tensors
from tpx.errors import ConfigError
from tpx.serving.backends.contract import ModelFiles
from tpx.serving.backends.pytorch.backend import PytorchBackend
from tpx.serving.backends.pytorch.parameters import PytorchSettings, ThreadCounts, jit_switches, settings_of
from tpx.serving.backends.pytorch.program import Format

X = np.ones((2, 3), np.float32)


def given(**values: object) -> str:
    return "".join(
        f"parameters {{ key: '{key}' value {{ string_value: '{value}' }} }} " for key, value in values.items()
    )


def parsed(text: str, kind: Format = Format.TORCHSCRIPT, *, on_gpu: bool = False) -> PytorchSettings:
    return settings_of(config("max_batch_size: 8 " + text), kind, on_gpu=on_gpu)


def test_every_parameter_of_triton_is_read(caplog: pytest.LogCaptureFixture) -> None:
    text = given(
        DISABLE_OPTIMIZED_EXECUTION="true",
        INFERENCE_MODE="false",
        DISABLE_CUDNN="TRUE",
        ENABLE_WEIGHT_SHARING="1",
        ENABLE_CACHE_CLEANING="yes",
        INTER_OP_THREAD_COUNT=3,
        INTRA_OP_THREAD_COUNT=2,
        ENABLE_JIT_EXECUTOR="false",
        ENABLE_JIT_PROFILING="false",
        ENABLE_TENSOR_FUSER="false",
        CUDA_GRAPH_BATCH_SIZES="8, 1,8",
    )
    assert parsed(text, on_gpu=True) == PytorchSettings(
        jit={
            "DISABLE_OPTIMIZED_EXECUTION": True,
            "ENABLE_JIT_EXECUTOR": False,
            "ENABLE_JIT_PROFILING": False,
            "ENABLE_TENSOR_FUSER": False,
        },
        inference_mode=False,
        cudnn=False,
        weight_sharing=True,
        cache_cleaning=True,
        inter_op_threads=3,
        intra_op_threads=2,
        graph_batch_sizes=(1, 8),
    )
    assert not caplog.messages


def test_without_parameters_they_are_as_in_triton() -> None:
    assert parsed("") == PytorchSettings()


def test_the_names_of_the_python_runtime_mean_the_same() -> None:
    text = given(NUM_THREADS=2, NUM_INTEROP_THREADS=3, TORCH_COMPILE_OPTIONAL_PARAMETERS='{"dynamic": true}')
    out = parsed(text, Format.MODULE)
    assert (out.intra_op_threads, out.inter_op_threads) == (2, 3)
    assert out.compile_options == {"dynamic": True}
    assert parsed(given(INTRA_OP_THREAD_COUNT=-1)).intra_op_threads == 0


NOT_EFFECTIVE = [
    (
        "ENABLE_JIT_EXECUTOR",
        "true",
        Format.EXPORTED,
        "it is for TorchScript, and the model's file is: torch.export",
    ),
    ("DISABLE_OPTIMIZED_EXECUTION", "true", Format.MODULE, "it is for TorchScript"),
    ("DISABLE_CUDNN", "true", Format.TORCHSCRIPT, "no instance of the model is on a GPU"),
    ("ENABLE_CACHE_CLEANING", "true", Format.TORCHSCRIPT, "no instance of the model is on a GPU"),
    ("CUDA_GRAPH_BATCH_SIZES", "1", Format.EXPORTED, "no instance of the model is on a GPU"),
    (
        "TORCH_COMPILE_OPTIONAL_PARAMETERS",
        "{}",
        Format.TORCHSCRIPT,
        "and the model's file is: TorchScript archive",
    ),
    ("TORCH_COMPILE_OPTIONAL_PARAMETERS", "{}", Format.INDUCTOR, "the model's file is: AOTInductor package"),
    ("MODULE_CLASS", "Net", Format.EXPORTED, "the model's file is: torch.export archive"),
    ("ENABLE_MAGIC", "1", Format.MODULE, "the pytorch backend does not know it"),
]


@pytest.mark.parametrize(("key", "value", "kind", "reason"), NOT_EFFECTIVE)
def test_a_parameter_without_effect_is_warned_of(
    key: str, value: str, kind: Format, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    parsed(given(**{key: value}), kind)
    assert f"parameter '{key}' of model 'net' has no effect: " in caplog.text
    assert reason in caplog.text


REFUSED = [
    (given(INFERENCE_MODE="maybe"), "'INFERENCE_MODE' of model 'net' must be true or false, got 'maybe'"),
    (given(INTRA_OP_THREAD_COUNT="two"), "must be a whole number from 0 to 1024, got 'two'"),
    (given(INTER_OP_THREAD_COUNT=1025), "must be a whole number from 0 to 1024, got '1025'"),
    (given(INTRA_OP_THREAD_COUNT="9" * 5000), "must be a whole number from 0 to 1024"),
    (given(INTRA_OP_THREAD_COUNT=1, NUM_THREADS=2), "mean the same: INTRA_OP_THREAD_COUNT 1, NUM_THREADS 2"),
    (given(CUDA_GRAPH_BATCH_SIZES="9"), r"must be batch sizes from 1 to max_batch_size \(8\)"),
    (given(TORCH_COMPILE_OPTIONAL_PARAMETERS="[1]"), "must be a JSON object of keyword arguments"),
    (given(TORCH_COMPILE_OPTIONAL_PARAMETERS='{"model": 1}'), "'model' is not an optional parameter for"),
    (given(MODEL_INIT_LIBRARY="x.so"), "MODEL_INIT_LIBRARY is not supported: tpx loads no libraries for"),
    (
        given(EXECUTION_ENV_PATH="x"),
        "EXECUTION_ENV_PATH is not supported: PyTorch models run with the server's",
    ),
]


@pytest.mark.parametrize(("text", "words"), REFUSED)
def test_a_parameter_that_cannot_be_carried_out_is_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parsed(text)


def test_what_a_pytorch_no_longer_has_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    old = SimpleNamespace(_set_graph_executor_optimize=print)
    switches = jit_switches(
        PytorchSettings(jit={"ENABLE_TENSOR_FUSER": True, "DISABLE_OPTIMIZED_EXECUTION": True}), old, "net"
    )
    assert switches == [(print, False)]
    assert "'ENABLE_TENSOR_FUSER' of model 'net' has no effect: this PyTorch has no" in caplog.text


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Path]:
    zoo.save_script(zoo.Identity(), tmp_path / "model.pt")
    before = torch._C._get_graph_executor_optimize(), torch._C._jit_texpr_fuser_enabled()
    yield tmp_path
    torch._C._set_graph_executor_optimize(before[0])
    torch._C._jit_set_texpr_fuser_enabled(before[1])


@pytest.mark.filterwarnings(QUIET_JIT)
def test_the_switches_of_torchscript_are_set_when_a_model_runs(script: Path) -> None:
    text = "max_batch_size: 8 " + tensors("input", "x FP32 3") + tensors("output", "y FP32 3")
    with executors(script, text + given(DISABLE_OPTIMIZED_EXECUTION="true", ENABLE_TENSOR_FUSER="false")) as [
        one
    ]:
        one.execute({"x": X})
        assert torch._C._get_graph_executor_optimize() is False
        assert torch._C._jit_texpr_fuser_enabled() is False
    with executors(script, text) as [one]:
        one.execute({"x": X})
        assert torch._C._get_graph_executor_optimize() is True


_MODES = """
import torch
class Net(torch.nn.Module):
    def forward(self, x):
        return torch.tensor([torch.is_inference_mode_enabled(), torch.is_grad_enabled()])
"""


@pytest.mark.parametrize(("mode", "wanted"), [("true", [True, False]), ("false", [False, False])])
def test_inference_mode_is_as_told_and_gradients_are_never_kept(
    tmp_path: Path, mode: str, wanted: list[bool]
) -> None:
    (tmp_path / "model.py").write_text(_MODES)
    text = tensors("input", "x FP32 3") + tensors("output", "y BOOL 2") + given(INFERENCE_MODE=mode)
    with executors(tmp_path, text) as [one]:
        assert one.execute({"x": X})["y"].tolist() == wanted


# threads


@pytest.fixture
def counts() -> Iterator[ThreadCounts]:
    before = torch.get_num_threads()
    yield ThreadCounts()
    torch.set_num_threads(before)


def test_the_cores_are_divided_among_the_instances(
    counts: ThreadCounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    counts.ask("a", intra=0, inter=0, instances=2)
    assert torch.get_num_threads() == 4
    counts.ask("b", intra=0, inter=0, instances=1)
    assert torch.get_num_threads() == 4
    counts.ask("c", intra=0, inter=0, instances=16)
    assert torch.get_num_threads() == 1


def test_the_first_count_that_is_named_stays_and_others_are_warned(
    counts: ThreadCounts, caplog: pytest.LogCaptureFixture
) -> None:
    counts.ask("a", intra=3, inter=0, instances=1)
    counts.ask("b", intra=0, inter=0, instances=8)
    counts.ask("c", intra=3, inter=0, instances=1)
    assert not caplog.messages
    counts.ask("d", intra=2, inter=torch.get_num_interop_threads(), instances=1)
    assert torch.get_num_threads() == 3
    assert "model 'd' asks for INTRA_OP_THREAD_COUNT 2" in caplog.text
    assert "3, set first by model 'a'" in caplog.text


def test_a_count_that_comes_too_late_is_warned_of(
    counts: ThreadCounts, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(count: int) -> None:
        raise RuntimeError("parallel work has started")

    monkeypatch.setattr(torch, "set_num_interop_threads", late)
    now = torch.get_num_interop_threads()
    counts.ask("a", intra=0, inter=now + 1, instances=1)
    assert f"it is {now}" in caplog.text


# what is asked of the server


def test_a_look_tells_the_version_and_what_it_computes_with() -> None:
    described = PytorchBackend().describe()
    assert described.version == torch.__version__
    assert described.devices[0] == "cpu"
    assert len(described.devices) == 1 + torch.cuda.device_count()


@pytest.mark.filterwarnings(QUIET_JIT)
def test_a_gpu_that_there_is_not_is_named(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    zoo.save_script(zoo.Identity(), tmp_path / "model.pt")
    with pytest.raises(Exception, match=r"KIND_GPU but (the installed PyTorch .* without CUDA|no GPUs are)"):
        check(tmp_path, instances="kind: KIND_GPU count: 1 gpus: [0]")


@pytest.mark.filterwarnings(QUIET_JIT)
def test_settings_that_the_backend_has_not_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    zoo.save_script(zoo.Identity(), tmp_path / "model.pt")
    files = ModelFiles(model_name="net", version=1, directory=tmp_path, settings={"speed": "high"})
    PytorchBackend().open(files, config()).close()
    assert "--backend-config pytorch,speed has no effect" in caplog.text
