"""Execution providers: which ones an instance gets, with which options; none is missing in silence."""

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from tests.serving import onnx_files
from tests.serving.backends.onnxruntime.opening import CPU, GPU, config, executors, opened, parameters
from tests.serving.live import serving
from tests.serving.onnx_files import write_model
from tpx.errors import ConfigError, LoadError
from tpx.serving.backends.contract import InstanceSpec
from tpx.serving.backends.onnxruntime.providers import CUDA, check_started, providers_of

AVAILABLE = onnxruntime.get_available_providers()
EVERY = [
    "TensorrtExecutionProvider",
    "CUDAExecutionProvider",
    "OpenVINOExecutionProvider",
    "CPUExecutionProvider",
]


def accelerators(kind: str, name: str, given: dict[str, str] | None = None) -> str:
    """Execution accelerators as a configuration writes them."""
    words = "".join(f"parameters {{ key: '{key}' value: '{word}' }} " for key, word in (given or {}).items())
    item = f"{kind}_execution_accelerator [{{ name: '{name}' {words} }}]"
    return f"optimization {{ execution_accelerators {{ {item} }} }} "


def providers(text: str, device: int = 0) -> list[tuple[str, dict[str, str]]]:
    """Names and options of the providers of an instance, the most wanted first."""
    kind = "KIND_GPU" if "KIND_GPU" in text else "KIND_CPU"
    spec = InstanceSpec(name="net_0", kind=kind, device_id=device)
    return [(provider.name, dict(provider.options)) for provider in providers_of(config(text), spec)]


@pytest.fixture
def every_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package of ONNX Runtime that has everything, as no real one has."""
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: EVERY)


# what is missing


@pytest.mark.parametrize(
    ("text", "provider", "install"),
    [
        (GPU, "CUDAExecutionProvider", "pip install 'tpx[onnx-gpu]'"),
        (accelerators("gpu", "cuda") + GPU, "CUDAExecutionProvider", "pip install 'tpx[onnx-gpu]'"),
        (accelerators("gpu", "tensorrt") + GPU, "TensorrtExecutionProvider", "'tpx[tensorrt]'"),
        (accelerators("cpu", "openvino") + CPU, "OpenVINOExecutionProvider", "'tpx[onnx-openvino]'"),
    ],
)
def test_a_provider_that_the_package_lacks_is_named_with_what_brings_it(
    tmp_path: Path, text: str, provider: str, install: str
) -> None:
    if provider in AVAILABLE:
        pytest.skip(f"this ONNX Runtime has {provider}")
    onnx_files.save(onnx_files.doubling(), tmp_path / "model.onnx")
    with pytest.raises(LoadError) as caught:
        opened(tmp_path, text)
    assert caught.value.message.startswith(
        f"model 'net' needs ONNX Runtime's {provider}, which the installed package onnxruntime "
        f"{onnxruntime.__version__} does not have (it has: {', '.join(AVAILABLE)}): "
    )
    way_out = ", or KIND_CPU in the model's instance_group" if "KIND_GPU" in text else ""
    assert caught.value.message.endswith(install + way_out)


def test_a_server_says_why_a_model_for_gpus_is_not_ready(tmp_path: Path) -> None:
    if "CUDAExecutionProvider" in AVAILABLE:
        pytest.skip("this ONNX Runtime has CUDAExecutionProvider")
    write_model(tmp_path, "net", config="instance_group [{ kind: KIND_GPU gpus: [ 0 ] }]")
    write_model(tmp_path, "other")
    with serving(tmp_path, exit_on_error=False) as live:
        index = {item["name"]: item for item in live.http("POST", "/v2/repository/index").json}
        assert live.get("/v2/models/net/ready").status != 200
        assert live.get("/v2/models/other/ready").status == 200
    assert index["net"]["state"] == "UNAVAILABLE"
    assert "needs ONNX Runtime's CUDAExecutionProvider" in index["net"]["reason"]


def test_a_provider_that_onnx_runtime_left_out_is_an_error(tmp_path: Path) -> None:
    path = onnx_files.save(onnx_files.doubling(), tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    with pytest.raises(LoadError, match=r"has CUDAExecutionProvider, but cannot start it .*: no libx\.so"):
        check_started(session, [CUDA], "net", "no libx.so")


@pytest.mark.usefixtures("every_provider")
@pytest.mark.filterwarnings("ignore:Specified provider")
@pytest.mark.skipif("CUDAExecutionProvider" in AVAILABLE, reason="needs an ONNX Runtime without CUDA")
def test_what_onnx_runtime_would_only_warn_of_fails_the_load(tmp_path: Path) -> None:
    onnx_files.save(onnx_files.doubling(), tmp_path / "model.onnx")
    with pytest.raises(LoadError, match="has CUDAExecutionProvider, but cannot start it on this machine"):
        opened(tmp_path, GPU)


@pytest.mark.skipif("CUDAExecutionProvider" not in AVAILABLE, reason="needs onnxruntime-gpu")
@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="there is a GPU")
@pytest.mark.parametrize("text", ["", accelerators("gpu", "tensorrt", {"precision_mode": "FP16"})])
def test_a_package_for_gpus_without_a_gpu_is_an_error(tmp_path: Path, text: str, capfd: Any) -> None:
    onnx_files.save(onnx_files.doubling(), tmp_path / "model.onnx")
    with pytest.raises(LoadError, match=r"cannot start it on this machine|cannot load"):
        opened(tmp_path, text + GPU)
    assert capfd.readouterr().out == ""


# which ones, and how


def test_an_instance_on_the_cpu_has_the_cpu_alone() -> None:
    assert providers(CPU) == [("CPUExecutionProvider", {})]


@pytest.mark.usefixtures("every_provider")
def test_an_instance_on_a_gpu_computes_on_its_device() -> None:
    assert providers(GPU, 3) == [("CUDAExecutionProvider", {"device_id": "3"}), ("CPUExecutionProvider", {})]


@pytest.mark.usefixtures("every_provider")
def test_parameters_of_the_model_are_options_of_cuda() -> None:
    given = {
        "cudnn_conv_algo_search": "1",
        "arena_extend_strategy": "1",
        "gpu_mem_limit": "1073741824",
        "do_copy_in_default_stream": "0",
        "cudnn_conv_use_max_workspace": "0",
        "use_ep_level_unified_stream": "1",
    }
    words = {"cudnn_conv_algo_search": "HEURISTIC", "arena_extend_strategy": "kSameAsRequested"}
    [cuda, _] = providers(parameters(given) + GPU)
    assert cuda == ("CUDAExecutionProvider", {**given, **words, "device_id": "0"})


@pytest.mark.usefixtures("every_provider")
@pytest.mark.parametrize(
    ("key", "word"), [("cudnn_conv_algo_search", "3"), ("arena_extend_strategy", "fast")]
)
def test_parameters_of_cuda_that_mean_nothing_are_refused(key: str, word: str) -> None:
    with pytest.raises(
        ConfigError, match=f"parameter '{key}' of model 'net' must be one of 0, 1.*, got '{word}'"
    ):
        providers(parameters({key: word}) + GPU)


@pytest.mark.usefixtures("every_provider")
def test_the_accelerator_cuda_gives_options_under_onnx_runtimes_names() -> None:
    given = {"cudnn_conv_algo_search": "HEURISTIC", "enable_cuda_graph": "1"}
    text = accelerators("gpu", "cuda", given) + parameters({"cudnn_conv_algo_search": "2"}) + GPU
    [cuda, _] = providers(text)
    assert cuda[1] == {"cudnn_conv_algo_search": "DEFAULT", "enable_cuda_graph": "1", "device_id": "0"}


@pytest.mark.usefixtures("every_provider")
def test_tensorrt_stands_before_cuda_and_both_on_the_same_device() -> None:
    given = {
        "precision_mode": "FP16",
        "max_workspace_size_bytes": "1000",
        "int8_calibration_table_name": "table",
        "int8_use_native_calibration_table": "1",
        "trt_engine_cache_enable": "1",
    }
    [tensorrt, cuda, _] = providers(accelerators("gpu", "tensorrt", given) + GPU, 1)
    assert tensorrt == (
        "TensorrtExecutionProvider",
        {
            "trt_fp16_enable": "1",
            "trt_max_workspace_size": "1000",
            "trt_int8_calibration_table_name": "table",
            "trt_int8_use_native_calibration_table": "1",
            "trt_engine_cache_enable": "1",
            "device_id": "1",
        },
    )
    assert cuda == ("CUDAExecutionProvider", {"device_id": "1"})


@pytest.mark.usefixtures("every_provider")
@pytest.mark.parametrize(
    ("precision", "options"),
    [
        ("FP32", {}),
        ("FP16", {"trt_fp16_enable": "1"}),
        ("BF16", {"trt_bf16_enable": "1"}),
        ("INT8", {"trt_int8_enable": "1"}),
    ],
)
def test_precisions_of_tensorrt(precision: str, options: dict[str, str]) -> None:
    given = {"precision_mode": precision}
    assert providers(accelerators("gpu", "tensorrt", given) + GPU)[0][1] == {**options, "device_id": "0"}


@pytest.mark.usefixtures("every_provider")
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"precision_mode": "FP8"}, "unsupported precision mode 'FP8'"),
        (
            {"precision_mod": "FP16"},
            r"unknown parameter 'precision_mod' .* \(did you mean 'precision_mode'\?\)",
        ),
        ({"device_id": "1"}, "set the device with gpus in the instance_group"),
    ],
)
def test_what_tensorrt_is_told_wrongly_is_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        providers(accelerators("gpu", "tensorrt", given) + GPU)


@pytest.mark.usefixtures("every_provider")
def test_openvino_computes_on_the_cpu_unless_told() -> None:
    assert providers(accelerators("cpu", "openvino") + CPU)[0][1] == {"device_type": "CPU"}
    given = {"device_type": "NPU", "num_streams": "2"}
    assert providers(accelerators("cpu", "openvino", given) + CPU)[0][1] == given


@pytest.mark.usefixtures("every_provider")
@pytest.mark.parametrize(
    ("text", "warning"),
    [
        (
            accelerators("cpu", "openvino", {"num_stream": "2"}) + CPU,
            "parameter 'num_stream' of execution accelerator 'openvino' of model 'net' is passed on to ONNX "
            "Runtime, but tpx does not know it (did you mean 'num_streams'?)",
        ),
        (
            accelerators("gpu", "cuda", {"use_tf33": "0"}) + GPU,
            "parameter 'use_tf33' of execution accelerator 'cuda' of model 'net' is passed on to ONNX "
            "Runtime, but tpx does not know it (did you mean 'use_tf32'?)",
        ),
        (accelerators("gpu", "tensorrt", {"max_cached_engines": "2"}) + GPU, "'max_cached_engines'"),
    ],
)
def test_options_that_are_not_known_are_reported(
    text: str, warning: str, caplog: pytest.LogCaptureFixture
) -> None:
    providers(text)
    assert warning in caplog.text


@pytest.mark.parametrize(
    ("text", "known"),
    [
        (accelerators("gpu", "openvino") + GPU, "tensorrt, cuda"),
        (accelerators("cpu", "cuda") + CPU, "openvino"),
        (accelerators("cpu", "openvin") + CPU, r"openvino\) \(did you mean 'openvino'\?"),
    ],
)
def test_unknown_accelerators_are_refused_with_those_there_are(tmp_path: Path, text: str, known: str) -> None:
    onnx_files.save(onnx_files.doubling(), tmp_path / "model.onnx")
    with pytest.raises(ConfigError, match=rf"unknown Execution Accelerator .*\(there are: {known}\)"):
        opened(tmp_path, text)


def test_an_unknown_accelerator_is_told_before_that_no_instance_can_use_it(tmp_path: Path) -> None:
    onnx_files.save(onnx_files.doubling(), tmp_path / "model.onnx")
    with pytest.raises(ConfigError, match="unknown Execution Accelerator 'onnxruntime'"):
        opened(tmp_path, accelerators("gpu", "onnxruntime") + CPU)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (accelerators("gpu", "tensorrt") + CPU, "KIND_GPU"),
        (accelerators("cpu", "openvino") + GPU, "KIND_CPU"),
    ],
)
def test_an_accelerator_without_an_instance_to_use_it_is_refused(
    tmp_path: Path, text: str, kind: str
) -> None:
    onnx_files.save(onnx_files.doubling(), tmp_path / "model.onnx")
    with pytest.raises(ConfigError, match=f"has no instance on .*: give it an instance_group of {kind}"):
        opened(tmp_path, text)


# computing on them


@pytest.mark.skipif("OpenVINOExecutionProvider" not in AVAILABLE, reason="needs onnxruntime-openvino")
def test_openvino_computes(tmp_path: Path) -> None:
    onnx_files.save(onnx_files.doubling("batch", "n"), tmp_path / "model.onnx")
    text = accelerators("cpu", "openvino", {"num_streams": "1", "num_of_threads": "1"}) + CPU
    [executor] = executors(tmp_path, text)
    assert "OpenVINOExecutionProvider" in executor.session.get_providers()  # type: ignore[attr-defined]
    for rows in (1, 3, 2):
        given = np.arange(rows * 5, dtype=np.float32).reshape(rows, 5)
        assert executor.execute({"x": given})["y"].tolist() == (given * 2).tolist()


@pytest.mark.skipif("OpenVINOExecutionProvider" not in AVAILABLE, reason="needs onnxruntime-openvino")
@pytest.mark.parametrize("given", [{"nonsense": "1"}, {"device_type": "GPU"}])
def test_openvino_that_cannot_do_as_told_is_no_fall_to_the_cpu(
    tmp_path: Path, given: dict[str, str], capfd: Any
) -> None:
    onnx_files.save(onnx_files.doubling(), tmp_path / "model.onnx")
    with pytest.raises(LoadError, match=r"nonsense|has OpenVINOExecutionProvider, but cannot start it"):
        opened(tmp_path, accelerators("cpu", "openvino", given) + CPU)
    assert capfd.readouterr().out == ""


@pytest.mark.gpu
@pytest.mark.skipif("CUDAExecutionProvider" not in AVAILABLE, reason="needs onnxruntime-gpu")
@pytest.mark.skipif(not Path("/dev/nvidiactl").exists(), reason="needs a GPU")
def test_cuda_computes_with_bound_inputs_and_outputs(tmp_path: Path) -> None:
    onnx_files.save(onnx_files.doubling("batch", "n"), tmp_path / "model.onnx")
    [executor] = executors(tmp_path, GPU)
    assert type(executor).__name__ == "BoundExecutor"
    for rows in (1, 3, 2, 3):
        given = np.arange(rows * 5, dtype=np.float32).reshape(rows, 5)
        assert executor.execute({"x": given})["y"].tolist() == (given * 2).tolist()
