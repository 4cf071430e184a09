"""Execution providers: the engines in ONNX Runtime that compute an instance.

They depend on the kind of the instance and on `optimization.execution_accelerators`, with Triton's
names and parameters (onnxruntime_backend/src/onnxruntime.cc).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec
import onnxruntime as ort
from msgspec.structs import replace

from tpx.errors import ConfigError, LoadError
from tpx.options import nearest
from tpx.protocol.messages import ModelConfig, ModelOptimizationPolicy
from tpx.protocol.model_config import path_of
from tpx.serving.backends.contract import InstanceSpec
from tpx.serving.backends.parameters import GivenParameters

_Accelerator: TypeAlias = "ModelOptimizationPolicy.ExecutionAccelerators.Accelerator"

CUDA_PARAMETERS = {
    "cudnn_conv_algo_search": {"0": "EXHAUSTIVE", "1": "HEURISTIC", "2": "DEFAULT"},
    "arena_extend_strategy": {"0": "kNextPowerOfTwo", "1": "kSameAsRequested"},
    "gpu_mem_limit": None,
    "do_copy_in_default_stream": None,
    "cudnn_conv_use_max_workspace": None,
    "use_ep_level_unified_stream": None,
}
"""Model parameters for instances on GPUs, with the meanings of their values; None passes the value on."""
_CUDA_OPTIONS = """
cudnn_conv1d_pad_to_nc1d enable_cuda_graph enable_skip_layer_norm_strict_mode fuse_conv_bias prefer_nhwc
sdpa_kernel tunable_op_enable tunable_op_max_tuning_duration_ms tunable_op_tuning_enable use_tf32
"""
_TENSORRT_NAMES = {
    "max_workspace_size_bytes": "trt_max_workspace_size",
    "int8_calibration_table_name": "trt_int8_calibration_table_name",
    "int8_use_native_calibration_table": "trt_int8_use_native_calibration_table",
}
_PRECISIONS = {
    "FP32": {},
    "FP16": {"trt_fp16_enable": "1"},
    "BF16": {"trt_bf16_enable": "1"},
    "INT8": {"trt_int8_enable": "1"},
}
_OPENVINO_OPTIONS = """
device_type precision num_of_threads num_streams cache_dir load_config enable_qdq_optimizer
enable_opencl_throttling disable_dynamic_shapes model_priority reshape_input layout
"""


class Provider(msgspec.Struct, frozen=True, kw_only=True):
    """An execution provider and its options."""

    name: str
    options: Mapping[str, str]
    install: str = ""
    """Command that installs it."""


_ON_GPU, _ON_CPU = ("tensorrt", "cuda"), ("openvino",)
"""Names of execution accelerators for instances on GPUs and on the CPU."""

CPU = Provider(name="CPUExecutionProvider", options={})
CUDA = Provider(
    name="CUDAExecutionProvider",
    options={},
    install="pip uninstall onnxruntime && pip install 'tpx[onnx-gpu]'",
)
TENSORRT = Provider(
    name="TensorrtExecutionProvider",
    options={},
    install="pip uninstall onnxruntime && pip install 'tpx[onnx-gpu]' 'tpx[tensorrt]'",
)
OPENVINO = Provider(
    name="OpenVINOExecutionProvider",
    options={},
    install="pip uninstall onnxruntime && pip install 'tpx[onnx-openvino]'",
)


def providers_of(config: ModelConfig, spec: InstanceSpec) -> list[Provider]:
    """Return the providers of an instance by preference; the CPU is last and runs unsupported operators.

    Raises ConfigError, or LoadError if a provider is missing.
    """
    accelerators = config.optimization.execution_accelerators
    if spec.kind == "KIND_GPU":
        out = _choose_gpu_providers(config, spec, accelerators.gpu_execution_accelerator)
    else:
        out = _choose_cpu_providers(config, accelerators.cpu_execution_accelerator)
    available = ort.get_available_providers()
    for provider in out:
        if provider.name not in available:
            raise LoadError(
                f"model '{config.name}' needs ONNX Runtime's {provider.name}, which the installed package "
                f"onnxruntime {ort.__version__} does not have (it has: {', '.join(available)}): "
                f"{provider.install}"
                + (", or KIND_CPU in the model's instance_group" if spec.kind == "KIND_GPU" else "")
            )
    return [*out, CPU]


def check_accelerators(config: ModelConfig, specs: Iterable[InstanceSpec]) -> None:
    """Raise ConfigError for an accelerator that no instance would use."""
    on_gpu = {spec.kind == "KIND_GPU" for spec in specs}
    accelerators = config.optimization.execution_accelerators
    for wanted, place, items, known in (
        (True, "a GPU", accelerators.gpu_execution_accelerator, _ON_GPU),
        (False, "the CPU", accelerators.cpu_execution_accelerator, _ON_CPU),
    ):
        for item in items:
            if item.name not in known:
                raise ConfigError(
                    f"unknown Execution Accelerator '{item.name}' is requested for model '{config.name}' "
                    f"(there are: {', '.join(known)}){nearest(item.name, known)}",
                    field=path_of(config, item, "name"),
                )
        if items and wanted not in on_gpu:
            raise ConfigError(
                f"model '{config.name}' asks for execution accelerator '{items[0].name}', but has no "
                f"instance on {place}: give it an instance_group of KIND_{place.rpartition(' ')[2]}",
                field=path_of(config, items[0]),
            )


def check_started(
    session: ort.InferenceSession, providers: Sequence[Provider], model: str, cause: str
) -> None:
    """Raise LoadError if ONNX Runtime dropped a provider: it only warns, and computes on the CPU instead."""
    started = session.get_providers()
    for provider in providers:
        if provider.name not in started:
            raise LoadError(
                f"model '{model}': ONNX Runtime has {provider.name}, but cannot start it on this machine"
                f"{f': {cause}' if cause else ''}: check the device, its driver and the provider's "
                f"libraries (its own messages are on stderr), or install them: {provider.install}"
            )


def _choose_gpu_providers(
    config: ModelConfig, spec: InstanceSpec, accelerators: Iterable[_Accelerator]
) -> list[Provider]:
    device = {"device_id": str(spec.device_id)}
    model, cuda = GivenParameters.of_model(config), {}
    for key, meanings in CUDA_PARAMETERS.items():
        word = model.values.get(key) if meanings is None else model.one_of(key, meanings)
        if word is not None:
            cuda[key] = word
    out = []
    for item in accelerators:
        given = _read_parameters(config, item)
        if item.name == "tensorrt":
            out.append(replace(TENSORRT, options={**_read_tensorrt_options(given), **device}))
        else:
            given.warn_of_others((*CUDA_PARAMETERS, *_CUDA_OPTIONS.split()), _PASSED_ON)
            cuda = {**given.values, **cuda}
    return [*out, replace(CUDA, options={**cuda, **device})]


def _choose_cpu_providers(config: ModelConfig, accelerators: Iterable[_Accelerator]) -> list[Provider]:
    out = []
    for item in accelerators:
        given = _read_parameters(config, item)
        given.warn_of_others(_OPENVINO_OPTIONS.split(), _PASSED_ON)
        out.append(replace(OPENVINO, options={"device_type": "CPU", **given.values}))
    return out


_PASSED_ON = "is passed on to ONNX Runtime, but tpx does not know it"


def _read_parameters(config: ModelConfig, accelerator: _Accelerator) -> GivenParameters:
    where = f"execution accelerator '{accelerator.name}' of model '{config.name}'"
    field = path_of(config, accelerator, "parameters")
    given = GivenParameters(where=where, values=dict(accelerator.parameters), field=field)
    if "device_id" in given.values:
        fault = f"parameter 'device_id' of {where}: set the device with gpus in the instance_group"
        raise given.refuse("device_id", fault)
    return given


def _read_tensorrt_options(given: GivenParameters) -> dict[str, str]:
    """Return TensorRT's options; names that begin with trt_ are ONNX Runtime's own."""
    out: dict[str, str] = {}
    for key, word in given.values.items():
        if key == "precision_mode":
            if word not in _PRECISIONS:
                fault = f"unsupported precision mode '{word}' is requested for {given.where}"
                raise given.refuse(key, fault)
            out.update(_PRECISIONS[word])
        elif key in _TENSORRT_NAMES or key.startswith("trt_"):
            out[_TENSORRT_NAMES.get(key, key)] = word
        elif key == "max_cached_engines":
            given.warn(key, "has no effect: ONNX Runtime has no such limit")
        else:
            raise given.refuse(
                key,
                f"unknown parameter '{key}' is provided for TensorRT Execution Accelerator by {given.where}"
                f"{nearest(key, ('precision_mode', *_TENSORRT_NAMES))}",
            )
    return out
