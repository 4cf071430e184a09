"""ONNX models on ONNX Runtime, on the CPU.

Instances of one thread share a session, whose runs compute in the caller's thread: the weights are in memory
once.
Instances of more threads have a session each, so that each has its own pool. Idle threads do not spin: on a
small
model spinning doubles the CPU per inference and takes a third of the throughput.
"""

import ctypes
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from tpx.errors import Code, ConfigError, ExecutionError, InvalidRequest, LoadError
from tpx.serving.backends.base import Executor, ModelFiles
from tpx.serving.backends.onnx_signature import OnnxTensor, check_signature, complete_signature
from tpx.serving.batch import Arrays
from tpx.serving.instances.placement import InstanceSpec, instance_specs

_PROVIDERS = ["CPUExecutionProvider"]
_BFLOAT16 = 16  # in onnx.TensorProto.DataType
_GRAPH_LEVELS = {
    -1: ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    1: ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    2: ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
}


class OnnxRuntimeBackend:
    """Opens `model.onnx`, a file or a directory that holds it."""

    default_filename = "model.onnx"

    def open(self, files: ModelFiles, config: Any) -> "OnnxModel":
        path = files.directory / (config.default_model_filename or self.default_filename)
        if path.is_dir():
            path = path / self.default_filename
        if not path.is_file():
            raise LoadError(f"unable to find '{path}' for model '{files.model_name}'", code=Code.NOT_FOUND)
        return OnnxModel(path, files, config)

    def default_instance_count(self, kind: str) -> int:
        return 2 if kind == "KIND_CPU" else 1


class OnnxModel:
    """One open version. Opening it creates the session that auto-completion asks and the first instance
    uses."""

    inline = True

    def __init__(self, path: Path, files: ModelFiles, config: Any) -> None:
        self._path = path
        self._name = files.model_name
        self._options = _session_options(files, config)
        self._shared = self._options.intra_op_num_threads == 1
        self._session = self._open_session()
        self._session_used = False
        self._inputs = [OnnxTensor.of(node) for node in self._session.get_inputs()]
        self._outputs = [OnnxTensor.of(node) for node in self._session.get_outputs()]

    def complete(self, config: Any, *, default_max_batch_size: int) -> None:
        complete_signature(config, self._inputs, self._outputs, default_max_batch_size=default_max_batch_size)

    def check(self, config: Any) -> None:
        check_signature(config, self._inputs, self._outputs)

    def executor(self, spec: InstanceSpec, config: Any) -> Executor:
        if spec.kind == "KIND_GPU":
            raise ConfigError(
                f"instance group of model '{config.name}' has kind KIND_GPU, but tpx runs ONNX models on "
                "the CPU only: "
                "use KIND_CPU or KIND_AUTO"
            )
        session = self._session if self._shared or not self._session_used else self._open_session()
        self._session_used = True
        used = {item.name for item in config.output}
        outputs = [tensor for tensor in self._outputs if tensor.name in used]
        if any(tensor.datatype == "BF16" for tensor in (*self._inputs, *outputs)):
            return _OrtValueExecutor(session, self._inputs, outputs)
        return _ArrayExecutor(session, self._inputs, outputs)

    def close(self) -> None:
        del self._session

    def _open_session(self) -> ort.InferenceSession:
        try:
            return ort.InferenceSession(str(self._path), self._options, providers=_PROVIDERS)
        except Exception as exc:
            raise LoadError(
                f"onnx runtime cannot load '{self._path}' of model '{self._name}': {exc}"
            ) from exc


class _ArrayExecutor:
    """Runs with numpy arrays."""

    def __init__(
        self, session: ort.InferenceSession, inputs: list[OnnxTensor], outputs: list[OnnxTensor]
    ) -> None:
        self._run = session.run
        self._names = [tensor.name for tensor in outputs]
        self._strings_in = [tensor.name for tensor in inputs if tensor.datatype == "BYTES"]
        self._strings_out = [tensor.name for tensor in outputs if tensor.datatype == "BYTES"]

    def execute(self, inputs: Arrays) -> Arrays:
        for name in self._strings_in:
            if name in inputs:
                inputs[name] = _to_text(name, inputs[name])
        try:
            results = self._run(self._names, inputs)
        except Exception as exc:
            raise ExecutionError(f"onnx runtime error: {exc}") from exc
        outputs = dict(zip(self._names, results, strict=True))
        for name in self._strings_out:
            outputs[name] = np.array(
                [str(text).encode() for text in outputs[name].flat], dtype=np.object_
            ).reshape(outputs[name].shape)
        return outputs

    def close(self) -> None:
        del self._run


class _OrtValueExecutor:
    """Runs with ONNX Runtime's own tensors: the way to bfloat16, which numpy lacks."""

    def __init__(
        self, session: ort.InferenceSession, inputs: list[OnnxTensor], outputs: list[OnnxTensor]
    ) -> None:
        self._session = session
        self._types = {tensor.name: tensor.datatype for tensor in (*inputs, *outputs)}
        self._names = [tensor.name for tensor in outputs]

    def execute(self, inputs: Arrays) -> Arrays:
        try:
            values = {name: self._value(name, array) for name, array in inputs.items()}
            results = self._session.run_with_ort_values(self._names, values)
        except Exception as exc:
            raise ExecutionError(f"onnx runtime error: {exc}") from exc
        return {name: self._array(name, value) for name, value in zip(self._names, results, strict=True)}

    def close(self) -> None:
        del self._session

    def _value(self, name: str, array: npt.NDArray[Any]) -> ort.OrtValue:
        if self._types[name] == "BF16":
            # the value keeps a reference, not a copy: it must own what it points to
            return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(np.ascontiguousarray(array), _BFLOAT16)
        return ort.OrtValue.ortvalue_from_numpy(array)

    def _array(self, name: str, value: ort.OrtValue) -> npt.NDArray[Any]:
        if self._types[name] != "BF16":
            array: npt.NDArray[Any] = value.numpy()
            return array
        shape = value.shape()
        bits = (ctypes.c_uint16 * math.prod(shape)).from_address(value.data_ptr())
        return np.ctypeslib.as_array(bits).reshape(shape).copy()


def _to_text(name: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    try:
        text = [element.decode() for element in array.flat]
    except UnicodeDecodeError as exc:
        raise InvalidRequest(f"input '{name}' is not UTF-8, which strings in ONNX are: {exc.reason}") from exc
    return np.array(text, dtype=np.object_).reshape(array.shape)


def _session_options(files: ModelFiles, config: Any) -> ort.SessionOptions:
    """Session options from `parameters`, `optimization` and --backend-config; unknown names are refused."""
    accelerators = config.optimization.execution_accelerators
    for accelerator in (*accelerators.gpu_execution_accelerator, *accelerators.cpu_execution_accelerator):
        raise ConfigError(
            f"model '{files.model_name}' asks for execution accelerator '{accelerator.name}', which tpx "
            "does not have"
        )
    settings = {key: value.string_value for key, value in config.parameters.items()}
    options = ort.SessionOptions()
    options.intra_op_num_threads = _thread_count(files, config, settings)
    options.inter_op_num_threads = _whole(files, settings, "inter_op_thread_count") or 1
    options.graph_optimization_level = _GRAPH_LEVELS.get(
        config.optimization.graph.level, ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    )
    if settings.pop("execution_mode", "0") == "1":
        options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    options.enable_cpu_mem_arena = settings.pop("enable_mem_arena", "1") != "0"
    options.enable_mem_pattern = settings.pop("enable_mem_pattern", "1") != "0"
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    for key, value in settings.items():
        if key.startswith("session."):
            options.add_session_config_entry(key, value)
    return options


def _thread_count(files: ModelFiles, config: Any, settings: dict[str, str]) -> int:
    """As configured, or the cores divided among the instances."""
    configured = _whole(files, settings, "intra_op_thread_count")
    if configured:
        return configured
    return max(1, len(os.sched_getaffinity(0)) // max(1, len(instance_specs(config))))


def _whole(files: ModelFiles, settings: dict[str, str], key: str) -> int:
    text = settings.pop(key, None) or files.settings.get(key, "0")
    if not text.isdigit():
        raise ConfigError(
            f"parameter '{key}' of model '{files.model_name}' must be a whole number, got '{text}'"
        )
    return int(text)
