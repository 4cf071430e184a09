"""Settings of an OpenVINO model, and its instances: infer requests, and the conversion of their tensors.

Settings have the names of Triton's backend; any other parameter is a property of OpenVINO's device.
"""

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import openvino as ov
from msgspec.structs import replace

from tpx.errors import ExecutionError, InvalidRequest
from tpx.protocol.messages import ModelConfig
from tpx.protocol.tensors import Array
from tpx.serving.backends.contract import Arrays
from tpx.serving.backends.model_tensors import ModelTensor, from_model, to_model
from tpx.serving.backends.parameters import GivenParameters, instance_specs

log = logging.getLogger(__name__)

_PROPERTY = re.compile(r"[A-Z][A-Z0-9_]*")
_COUNTS = ("INFERENCE_NUM_THREADS", "COMPILATION_NUM_THREADS", "NUM_STREAMS")
"""Properties that are numbers of threads; a stream has at least one."""
_WORDS = {
    "NUM_STREAMS": ("AUTO", "NUMA"),
    "PERFORMANCE_HINT": ("LATENCY", "THROUGHPUT", "CUMULATIVE_THROUGHPUT"),
}
"""Words that a property takes."""
_EARLIER_NAMES = {
    "CPU_THREADS_NUM": "INFERENCE_NUM_THREADS",
    "CPU_THROUGHPUT_STREAMS": "NUM_STREAMS",
    "CPU_BIND_THREAD": "ENABLE_CPU_PINNING",
    "ENFORCE_BF16": "HINT_BF16",
    "SKIP_DYNAMIC_BATCHSIZE": "SKIP_OV_DYNAMIC_BATCHSIZE",
}
"""Names in Triton's backend before OpenVINO 2022."""
_OWN = (
    *("TARGET_DEVICE", "CPU_EXTENSION_PATH", "HINT_BF16"),
    *("SKIP_OV_DYNAMIC_BATCHSIZE", "ENABLE_BATCH_PADDING", "RESHAPE_IO_LAYERS"),
)
"""Parameters that are no properties of OpenVINO."""


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
    given = GivenParameters.of_model(config)
    given = replace(given, values={_EARLIER_NAMES.get(key, key): word for key, word in given.values.items()})
    properties: dict[str, str] = {}
    if given.switch("HINT_BF16", default=False):
        properties["INFERENCE_PRECISION_HINT"] = "bf16"
    for key, text in given.values.items():
        words = _WORDS.get(key, ())
        if key in _OWN:
            continue
        if not _PROPERTY.fullmatch(key):
            given.warn(key, "has no effect")
        elif text.upper() in words:
            properties[key] = text.upper()
        elif words and (key not in _COUNTS or not text.isdecimal()):
            raise given.wrong(key, f"one of {', '.join(words)}{' or a number' if key in _COUNTS else ''}")
        else:
            properties[key] = str(given.threads(key)) if key in _COUNTS else text
    device = given.values.get("TARGET_DEVICE") or "CPU"
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
        extension=given.values.get("CPU_EXTENSION_PATH", ""),
        fixed_batch=given.switch("SKIP_OV_DYNAMIC_BATCHSIZE", default=False),
        padded=given.switch("ENABLE_BATCH_PADDING", default=False),
        reshaped=given.switch("RESHAPE_IO_LAYERS", default=False),
    )


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
