"""Settings of an OpenVINO model, and its instances: infer requests, and the conversion of their tensors.

Settings have the names of Triton's backend; any other parameter is a property of OpenVINO's device.
"""

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import openvino as ov

from tpx.errors import ConfigError, ExecutionError, InvalidRequest
from tpx.protocol.messages import ModelConfig
from tpx.protocol.tensors import Array
from tpx.serving.backends.contract import Arrays
from tpx.serving.backends.model_tensors import ModelTensor, from_model, to_model
from tpx.serving.backends.parameters import instance_specs

log = logging.getLogger(__name__)

_PROPERTY = re.compile(r"[A-Z][A-Z0-9_]*")
_HINTS = ("LATENCY", "THROUGHPUT", "CUMULATIVE_THROUGHPUT")
_CHECKED: Mapping[str, tuple[tuple[str, ...], str]] = {
    "INFERENCE_NUM_THREADS": ((), "a non-negative number"),
    "COMPILATION_NUM_THREADS": ((), "a non-negative number"),
    "NUM_STREAMS": (("AUTO", "NUMA"), "either AUTO/NUMA/<int_value>"),
    "PERFORMANCE_HINT": (_HINTS, "/".join(_HINTS)),
}
"""Accepted values of a property, and how errors list them; properties other than hints also accept
numbers.
"""
_EARLIER_NAMES = {
    "CPU_THREADS_NUM": "INFERENCE_NUM_THREADS",
    "CPU_THROUGHPUT_STREAMS": "NUM_STREAMS",
    "CPU_BIND_THREAD": "ENABLE_CPU_PINNING",
    "ENFORCE_BF16": "HINT_BF16",
    "SKIP_DYNAMIC_BATCHSIZE": "SKIP_OV_DYNAMIC_BATCHSIZE",
}
"""Names in Triton's backend before OpenVINO 2022."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenVinoSettings:
    """Settings for compiling a model and forming its batches."""

    device: str = "CPU"
    properties: Mapping[str, str] = field(default_factory=dict)
    """OpenVINO properties by name."""
    extension: str = ""
    """Library with custom operators."""
    fixed_batch: bool = False
    """True if every execution has max_batch_size rows."""
    padded: bool = False
    """True if smaller batches are padded to the fixed size."""
    reshaped: bool = False
    """True if the model is reshaped to the configured dims instead of having to match them."""


def settings_of(config: ModelConfig) -> OpenVinoSettings:
    """Return the settings of a ModelConfig. Raises ConfigError that names the parameter."""
    given = {}
    for key, value in config.parameters.items():
        given[_EARLIER_NAMES.get(key, key)] = value.string_value
    fixed, padded, reshaped = (
        _pop_yes_or_no(config.name, given, key)
        for key in ("SKIP_OV_DYNAMIC_BATCHSIZE", "ENABLE_BATCH_PADDING", "RESHAPE_IO_LAYERS")
    )
    device = given.pop("TARGET_DEVICE", "") or "CPU"
    extension = given.pop("CPU_EXTENSION_PATH", "")
    properties: dict[str, str] = {}
    if _pop_yes_or_no(config.name, given, "HINT_BF16"):
        properties["INFERENCE_PRECISION_HINT"] = "bf16"
    for key, text in given.items():
        if not _PROPERTY.fullmatch(key):
            log.warning("parameter '%s' of model '%s' has no effect", key, config.name)
            continue
        properties[key] = text
        words, expected = _CHECKED.get(key, ((), ""))
        if text.upper() in words:
            properties[key] = text.upper()
        elif expected and not (key != "PERFORMANCE_HINT" and text.isascii() and text.isdigit()):
            raise _make_parameter_error(config.name, key, text, expected)
    if device == "CPU":
        # results must not depend on whether this machine's CPU supports bfloat16
        if not {"INFERENCE_PRECISION_HINT", "EXECUTION_MODE_HINT"} & properties.keys():
            properties["INFERENCE_PRECISION_HINT"] = "f32"
        # a stream computes one request at a time, so each instance needs its own
        if not {"NUM_STREAMS", "PERFORMANCE_HINT"} & properties.keys():
            properties["NUM_STREAMS"] = str(len(instance_specs(config)))
    return OpenVinoSettings(
        device=device,
        properties=properties,
        extension=extension,
        fixed_batch=fixed,
        padded=padded,
        reshaped=reshaped,
    )


def _make_parameter_error(model: str, key: str, text: str, expected: str) -> ConfigError:
    return ConfigError(f"expected the parameter '{key}' of model '{model}' to be {expected}, got {text}")


def _pop_yes_or_no(model: str, given: dict[str, str], key: str) -> bool:
    text = given.pop(key, "NO")
    if text.upper() not in ("YES", "NO"):
        raise _make_parameter_error(model, key, text, "either YES or NO")
    return text.upper() == "YES"


# OpenVINO raises RuntimeError; its Python binding raises conversion errors
ERRORS = (RuntimeError, TypeError, ValueError, KeyError)
_KEPT_BELOW_BYTES = 64 << 10


@dataclass(eq=False, kw_only=True)
class InferRequestExecutor:
    """Computes with one infer request. Outputs are copied, because the next run overwrites them."""

    request: ov.InferRequest
    inputs: Mapping[str, tuple[int, ModelTensor]]
    outputs: Mapping[str, tuple[int, ModelTensor]]
    rows: int
    """Number of rows that the model was compiled for, 0 if it is variable."""
    padded: bool
    narrow: bool
    """True if the device computes 64-bit integers in 32 bits."""

    def __post_init__(self) -> None:
        wide = [name for name, (_, tensor) in self.inputs.items() if tensor.datatype in ("INT64", "UINT64")]
        self._narrow = wide if self.narrow else []
        self._own = {name: self.request.get_input_tensor(index) for name, (index, _) in self.inputs.items()}
        """Initial input tensors, restored after a run with a large input so that its memory can be freed."""

    def execute(self, inputs: Arrays) -> Arrays:
        given = max(len(array) for array in inputs.values()) if self.rows else 0
        missing = self.rows - given
        if missing and not self.padded:
            raise ExecutionError(
                f"expected requests with batch size '{self.rows}', got '{given}'... this error can be "
                "avoided by setting 'ENABLE_BATCH_PADDING' parameter in model configuration to 'YES' at a "
                "performance cost."
            )
        if missing:
            inputs = {
                name: np.concatenate([array, np.zeros((missing, *array.shape[1:]), dtype=array.dtype)])
                for name, array in inputs.items()
            }
        for name in self._narrow:  # OpenVINO's CPU device computes 64-bit integers in 32 bits
            array = inputs[name]
            signed = array.dtype.kind == "i"
            if array.size and (array.max() > 2**31 - 1 or (signed and array.min() < -(2**31))):
                raise InvalidRequest(
                    f"input '{name}' has values beyond 32 bits, in which OpenVINO computes 64-bit integers "
                    "on a CPU"
                )
        try:
            tensors = {}
            for name, array in inputs.items():
                index, tensor = self.inputs[name]
                tensors[index] = _convert_input(array, tensor)
            results = self.request.infer(tensors)
            for name, array in inputs.items():
                if array.nbytes >= _KEPT_BELOW_BYTES:
                    self.request.set_input_tensor(self.inputs[name][0], self._own[name])
        except ERRORS as exc:
            raise ExecutionError(f"openvino error: {reason(exc)}") from exc
        outputs = {name: from_model(results[at], tensor) for name, (at, tensor) in self.outputs.items()}
        return {name: array[:-missing] for name, array in outputs.items()} if missing else outputs

    def close(self) -> None:
        del self.request, self._own


def _convert_input(array: Array, tensor: ModelTensor) -> ov.Tensor:
    array = to_model(array, tensor)
    if tensor.datatype == "BF16":
        return ov.Tensor(np.ascontiguousarray(array), ov.Shape(array.shape), ov.Type.bf16)
    if array.flags.writeable:
        return ov.Tensor(array, shared_memory=True)
    return ov.Tensor(array)  # copies: OpenVINO shares only writable memory


def reason(exc: Exception) -> str:
    """Return OpenVINO's message without source locations."""
    lines = [line.strip() for line in str(exc).splitlines()]
    return " ".join(line for line in lines if line and not line.startswith("Exception from ")) or str(exc)
