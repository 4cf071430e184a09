"""ONNX models on ONNX Runtime, on the CPU.

Instances of one thread share a session, whose runs compute in the caller's thread: the weights are in memory
once.
Instances of more threads have a session each, so that each has its own pool. Idle threads do not spin: on a
small
model spinning doubles the CPU per inference and takes a third of the throughput.
"""

import ctypes
import logging
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as ort_state

from tpx.errors import Code, ConfigError, ExecutionError, InvalidRequest, LoadError
from tpx.serving.backends.base import Executor, ModelFiles, inside
from tpx.serving.backends.onnxruntime.signature import OnnxTensor, check_signature, complete_signature
from tpx.serving.batch import Arrays
from tpx.serving.instances.placement import InstanceSpec, instance_specs
from tpx.serving.stacking.added import taken_outputs

log = logging.getLogger(__name__)

# what ONNX Runtime raises; its own exceptions have no common base
_ORT_ERRORS: tuple[type[Exception], ...] = (
    *(kind for kind in vars(ort_state).values() if isinstance(kind, type) and issubclass(kind, Exception)),
    RuntimeError,
    TypeError,
    ValueError,
)
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
        name = config.default_model_filename or self.default_filename
        path = inside(files.directory, name, "default_model_filename")
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
        self._files = files
        self.session_options = _session_options(files, config)
        self._shared = self.session_options.intra_op_num_threads == 1
        self._session = self._open_session()
        self._session_used = False
        self._inputs = [OnnxTensor.of(node) for node in self._session.get_inputs()]
        self._outputs = [OnnxTensor.of(node) for node in self._session.get_outputs()]
        self._weights = [OnnxTensor.of(node) for node in self._session.get_overridable_initializers()]
        """Those that a request may bring its own of: inputs that are optional."""

    def complete(self, config: Any, *, default_max_batch_size: int) -> None:
        complete_signature(config, self._inputs, self._outputs, default_max_batch_size=default_max_batch_size)

    def check(self, config: Any) -> None:
        if config.model_transaction_policy.decoupled:
            raise ConfigError(
                f"model '{config.name}' is decoupled, but an ONNX model has one response for each request: "
                "remove model_transaction_policy"
            )
        check_signature(config, self._inputs_of(config), self._outputs)

    def executor(self, spec: InstanceSpec, config: Any) -> Executor:
        if spec.kind == "KIND_GPU":
            raise ConfigError(
                f"instance group of model '{config.name}' has kind KIND_GPU, but tpx runs ONNX models on "
                "the CPU only: use KIND_CPU or KIND_AUTO"
            )
        session = self._session if self._shared or not self._session_used else self._open_session()
        self._session_used = True
        used = {item.name for item in config.output} | set(taken_outputs(config))
        outputs = [tensor for tensor in self._outputs if tensor.name in used]
        inputs = self._inputs_of(config)
        datatypes = {tensor.datatype for tensor in (*inputs, *outputs)}
        if datatypes >= {"BF16", "BYTES"}:
            raise LoadError(
                f"model '{config.name}' has bfloat16 and string tensors: ONNX Runtime takes no strings where "
                "it takes bfloat16"
            )
        if "BF16" in datatypes:
            return _OrtValueExecutor(session, inputs, outputs)
        return _ArrayExecutor(session, inputs, outputs)

    def divides_as(self, config: Any) -> bool:
        """Sessions have as many threads as their instances' share of the cores."""
        settings = {key: value.string_value for key, value in config.parameters.items()}
        threads: int = self.session_options.intra_op_num_threads
        return _thread_count(self._files, config, settings) == threads

    def _inputs_of(self, config: Any) -> list[OnnxTensor]:
        optional = {item.name for item in config.input if item.optional}
        return [*self._inputs, *(tensor for tensor in self._weights if tensor.name in optional)]

    def close(self) -> None:
        del self._session

    def _open_session(self) -> ort.InferenceSession:
        try:
            return ort.InferenceSession(str(self._path), self.session_options, providers=_PROVIDERS)
        except _ORT_ERRORS as exc:
            raise LoadError(
                f"onnx runtime cannot load '{self._path}' of model '{self._name}': {exc}"
            ) from exc


class _Conversions:
    """What the client's tensors and ONNX Runtime's differ in: strings are text here, and a scalar has no
    dimension, while to the client it is one element."""

    def __init__(self, inputs: list[OnnxTensor], outputs: list[OnnxTensor]) -> None:
        self._strings_in = [tensor.name for tensor in inputs if tensor.datatype == "BYTES"]
        self._strings_out = [tensor.name for tensor in outputs if tensor.datatype == "BYTES"]
        self._scalars_in = [tensor.name for tensor in inputs if not tensor.shape]
        self._scalars_out = [tensor.name for tensor in outputs if not tensor.shape]

    def to_runtime(self, arrays: Arrays) -> None:
        for name in self._strings_in:
            if name in arrays:
                arrays[name] = _to_text(name, arrays[name])
        for name in self._scalars_in:
            if name in arrays:
                arrays[name] = arrays[name].reshape(())

    def from_runtime(self, arrays: Arrays) -> Arrays:
        for name in self._scalars_out:
            arrays[name] = np.atleast_1d(arrays[name])
        for name in self._strings_out:
            arrays[name] = _to_bytes(arrays[name])
        return arrays


class _ArrayExecutor:
    """Runs with numpy arrays."""

    def __init__(
        self, session: ort.InferenceSession, inputs: list[OnnxTensor], outputs: list[OnnxTensor]
    ) -> None:
        self._run = session.run
        self._names = [tensor.name for tensor in outputs]
        self._conversions = _Conversions(inputs, outputs)

    def execute(self, inputs: Arrays) -> Arrays:
        self._conversions.to_runtime(inputs)
        try:
            results = self._run(self._names, inputs)
        except _ORT_ERRORS as exc:
            raise ExecutionError(f"onnx runtime error: {exc}") from exc
        return self._conversions.from_runtime(dict(zip(self._names, results, strict=True)))

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
        self._conversions = _Conversions(inputs, outputs)

    def execute(self, inputs: Arrays) -> Arrays:
        self._conversions.to_runtime(inputs)
        try:
            values = {name: self._value(name, array) for name, array in inputs.items()}
            results = self._session.run_with_ort_values(self._names, values)
            arrays = {
                name: self._array(name, value) for name, value in zip(self._names, results, strict=True)
            }
        except _ORT_ERRORS as exc:
            raise ExecutionError(f"onnx runtime error: {exc}") from exc
        return self._conversions.from_runtime(arrays)

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
        if 0 in shape:
            return np.empty(shape, dtype=np.uint16)
        bits = (ctypes.c_uint16 * math.prod(shape)).from_address(value.data_ptr())
        return np.ctypeslib.as_array(bits).reshape(shape).copy()


def _to_text(name: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    try:
        text = [element.decode() for element in array.flat]
    except UnicodeDecodeError as exc:
        raise InvalidRequest(f"input '{name}' is not UTF-8, which strings in ONNX are: {exc.reason}") from exc
    return np.array(text, dtype=np.object_).reshape(array.shape)


def _to_bytes(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.array([str(text).encode() for text in array.flat], dtype=np.object_).reshape(array.shape)


def _session_options(files: ModelFiles, config: Any) -> ort.SessionOptions:
    """Session options from `parameters`, `optimization` and --backend-config."""
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
    if _switch(files, settings, "execution_mode", default="0"):
        options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    options.enable_cpu_mem_arena = _switch(files, settings, "enable_mem_arena", default="1")
    options.enable_mem_pattern = _switch(files, settings, "enable_mem_pattern", default="1")
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    _add_entries(options, files, settings)
    return options


def _add_entries(options: ort.SessionOptions, files: ModelFiles, settings: dict[str, str]) -> None:
    for key, value in settings.items():
        if not key.startswith("session."):
            log.warning("parameter '%s' of model '%s' has no effect", key, files.model_name)
            continue
        try:
            options.add_session_config_entry(key, value)
        except _ORT_ERRORS as exc:
            raise ConfigError(f"parameter '{key}' of model '{files.model_name}': {exc}") from exc


def _thread_count(files: ModelFiles, config: Any, settings: dict[str, str]) -> int:
    """As configured, or the cores divided among the instances."""
    configured = _whole(files, settings, "intra_op_thread_count")
    if configured:
        return configured
    return max(1, len(os.sched_getaffinity(0)) // max(1, len(instance_specs(config))))


def _whole(files: ModelFiles, settings: dict[str, str], key: str) -> int:
    text = settings.pop(key, None) or files.settings.get(key, "0")
    if not (text.isascii() and text.isdigit()):
        raise ConfigError(
            f"parameter '{key}' of model '{files.model_name}' must be a whole number, got '{text}'"
        )
    return int(text)


def _switch(files: ModelFiles, settings: dict[str, str], key: str, *, default: str) -> bool:
    text = settings.pop(key, default)
    if text not in ("0", "1"):
        raise ConfigError(f"parameter '{key}' of model '{files.model_name}' must be 0 or 1, got '{text}'")
    return text == "1"
