"""Inputs and outputs of an ONNX file, completing a configuration from them, and ONNX Runtime's exceptions.

The rules are Triton's (onnxruntime_backend/src/onnxruntime.cc), so that a configuration means the same
in both.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import replace
from onnxruntime.capi import onnxruntime_pybind11_state

from tpx.errors import LoadError
from tpx.protocol.messages import ModelConfig
from tpx.protocol.model_config import TensorConfig
from tpx.serving.backends.model_tensors import NUMPY_NAMES, ModelTensor, complete_empty, dims_of
from tpx.serving.stacking.added import added_inputs, taken_outputs

ORT_ERRORS: tuple[type[Exception], ...] = (
    *(
        kind
        for kind in vars(onnxruntime_pybind11_state).values()
        if isinstance(kind, type) and issubclass(kind, Exception)
    ),
    RuntimeError,
    TypeError,
    ValueError,
)


_DATATYPES = {f"tensor({kind})": name for kind, name in NUMPY_NAMES.items()}
_DATATYPES |= {"tensor(float)": "FP32", "tensor(double)": "FP64"}
_DATATYPES |= {"tensor(string)": "BYTES", "tensor(bfloat16)": "BF16"}
_TENSORS = ": it supports only tensors, use these as inputs and outputs of the graph"
_ADVICE = {
    "map(": ": export the model without ZipMap (skl2onnx: options={'zipmap': False}), for plain "
    "probabilities",
    "seq(": _TENSORS,
    "optional(": _TENSORS,
}
"""Advice by a part of an unsupported type; the first one counts."""


class OnnxTensor(ModelTensor, frozen=True, kw_only=True):
    """An input or output of the graph."""

    @classmethod
    def of(cls, node: Any) -> "OnnxTensor":
        """Convert a session's NodeArg. Raises LoadError for a type that the protocol does not support."""
        datatype = _DATATYPES.get(node.type)
        if datatype is None:
            advice = next((words for part, words in _ADVICE.items() if part in node.type), "")
            raise LoadError(
                f"'{node.name}' has type {node.type}, which the v2 protocol does not support{advice}"
            )
        shape = tuple(dim if isinstance(dim, int) and dim >= 0 else -1 for dim in node.shape)
        return cls(name=node.name, datatype=datatype, shape=shape)


def ranked_by(
    config: ModelConfig, items: Iterable[TensorConfig], tensors: Sequence[OnnxTensor]
) -> list[OnnxTensor]:
    """Mark the tensors whose number of dimensions is unknown, using `config.input` or `config.output`.

    ONNX Runtime reports both a scalar and a tensor of unknown rank with an empty shape. A tensor that
    is configured with more than one element is not a scalar.
    """
    rows = [-1] if config.max_batch_size else []
    full = {item.name: [*rows, *dims_of(item)] for item in items}
    return [
        tensor if tensor.shape or full.get(tensor.name, []) in ([], [1]) else replace(tensor, ranked=False)
        for tensor in tensors
    ]


def complete_signature(
    config: ModelConfig,
    inputs: Sequence[OnnxTensor],
    outputs: Sequence[OnnxTensor],
    *,
    default_max_batch_size: int,
) -> None:
    """Fill in batching, inputs and outputs that the configuration leaves open."""
    if config.input and config.output:
        return
    added, taken = added_inputs(config), taken_outputs(config)
    inputs = [tensor for tensor in inputs if tensor.name not in added]
    outputs = [tensor for tensor in outputs if tensor.name not in taken]
    batching = all(t.shape[:1] == (-1,) for t in (*inputs, *outputs))
    complete_empty(config, inputs, outputs, max_batch_size=default_max_batch_size if batching else -1)
