"""What an ONNX file says of its inputs and outputs: completing a configuration from it, and checking one
against it.

The rules are Triton's (onnxruntime_backend/src/onnxruntime.cc), so that a configuration means the same on
both.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tpx.errors import ConfigError, LoadError
from tpx.protocol.datatypes import BY_NAME, BY_NUMBER
from tpx.serving.stacking.added import added_inputs, taken_outputs

_DATATYPES = {
    "tensor(bool)": "BOOL",
    "tensor(uint8)": "UINT8",
    "tensor(uint16)": "UINT16",
    "tensor(uint32)": "UINT32",
    "tensor(uint64)": "UINT64",
    "tensor(int8)": "INT8",
    "tensor(int16)": "INT16",
    "tensor(int32)": "INT32",
    "tensor(int64)": "INT64",
    "tensor(float16)": "FP16",
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    "tensor(string)": "BYTES",
    "tensor(bfloat16)": "BF16",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxTensor:
    """An input or output of the graph; dimensions that vary are -1."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, node: Any) -> "OnnxTensor":
        """From a NodeArg of a session."""
        datatype = _DATATYPES.get(node.type)
        if datatype is None:
            raise LoadError(f"'{node.name}' has type {node.type}, which the v2 protocol cannot carry")
        shape = tuple(dim if isinstance(dim, int) and dim >= 0 else -1 for dim in node.shape)
        return cls(name=node.name, datatype=datatype, shape=shape)


def complete_signature(
    config: Any,
    inputs: Sequence[OnnxTensor],
    outputs: Sequence[OnnxTensor],
    *,
    default_max_batch_size: int,
) -> None:
    """Fill batching, inputs and outputs where the configuration leaves them open."""
    if config.input and config.output:
        return
    added, taken = added_inputs(config), taken_outputs(config)
    inputs = [tensor for tensor in inputs if tensor.name not in added]
    outputs = [tensor for tensor in outputs if tensor.name not in taken]
    batching = all(t.shape[:1] == (-1,) for t in (*inputs, *outputs))
    if not batching and config.max_batch_size:
        raise ConfigError(
            f"autofill failed for model '{config.name}': model does not support batching while non-zero "
            "max_batch_size is specified"
        )
    if batching:
        config.max_batch_size = config.max_batch_size or default_max_batch_size
        if config.max_batch_size > 1 and config.WhichOneof("scheduling_choice") is None:
            config.dynamic_batching.SetInParent()
    for target, tensors in ((config.input, inputs), (config.output, outputs)):
        if not target:
            for tensor in tensors:
                _add(target, tensor, batching=config.max_batch_size > 0)


def _add(target: Any, tensor: OnnxTensor, *, batching: bool) -> None:
    item = target.add(name=tensor.name, data_type=BY_NAME[tensor.datatype].number)
    dims = tensor.shape[1:] if batching else tensor.shape
    item.dims.extend(dims or (1,))
    if not dims and batching:
        item.reshape.SetInParent()  # one element a request, which the file takes without a dimension


def check_signature(config: Any, inputs: Sequence[OnnxTensor], outputs: Sequence[OnnxTensor]) -> None:
    """Raise ConfigError where the configuration asks for what the file does not have."""
    name = config.name
    scattered = {target for item in config.batch_output for target in item.target_name}
    _check_added(name, "input", added_inputs(config), inputs)
    _check_added(name, "output", taken_outputs(config), outputs)
    expected = len(config.input) + len(added_inputs(config))
    if expected != len(inputs):
        raise ConfigError(
            f"unable to load model '{name}', configuration expects {expected} inputs, model provides "
            f"{len(inputs)}"
        )
    for kind, configured, tensors in (("input", config.input, inputs), ("output", config.output, outputs)):
        provided = {tensor.name: tensor for tensor in tensors}
        for item in configured:
            tensor = provided.get(item.name)
            if tensor is None:
                raise ConfigError(
                    f"unexpected inference {kind} '{item.name}', allowed {kind}s are: {', '.join(provided)}"
                )
            if kind == "input" and item.allow_ragged_batch:
                _check_ragged(config, item, tensor)
            elif kind == "input" or item.name not in scattered:
                _check_tensor(config, kind, item, tensor)
            else:
                _check_datatype(config, kind, item, tensor)


def _check_ragged(config: Any, item: Any, tensor: OnnxTensor) -> None:
    """Whatever dims the requests have, the model gets one row of elements."""
    _check_datatype(config, "input", item, tensor)
    if item.optional:
        raise ConfigError(
            f"unable to load model '{config.name}', configuration expects model provides input with shape "
            f"[-1] for ragged input '{item.name}', which is not supported for optional input"
        )
    if tensor.shape != (-1,):
        raise ConfigError(
            f"unable to load model '{config.name}', configuration expects model provides input with shape "
            f"[-1]  for ragged input '{item.name}', model provides {_brackets(tensor.shape)}"
        )


def _check_added(model: str, kind: str, added: Mapping[str, int], tensors: Sequence[OnnxTensor]) -> None:
    provided = {tensor.name: tensor for tensor in tensors}
    for name, number in added.items():
        tensor = provided.get(name)
        if tensor is None:
            raise ConfigError(
                f"unable to load model '{model}', its file has no {kind} '{name}', which its batching needs "
                f"(it has: {', '.join(provided)})"
            )
        if number and BY_NUMBER[number].name != tensor.datatype:
            raise ConfigError(
                f"unable to load model '{model}', configuration expects datatype "
                f"{BY_NUMBER[number].config_name} for {kind} '{name}', model provides "
                f"{BY_NAME[tensor.datatype].config_name}"
            )


def _check_datatype(config: Any, kind: str, item: Any, tensor: OnnxTensor) -> None:
    configured = BY_NUMBER[item.data_type]
    if configured.name != tensor.datatype:
        raise ConfigError(
            f"unable to load model '{config.name}', configuration expects datatype {configured.config_name} "
            "for "
            f"{kind} '{item.name}', model provides {BY_NAME[tensor.datatype].config_name}"
        )


def _check_tensor(config: Any, kind: str, item: Any, tensor: OnnxTensor) -> None:
    _check_datatype(config, kind, item, tensor)
    if config.max_batch_size > 0 and tensor.shape[:1] != (-1,):
        raise ConfigError(
            f"model '{config.name}', tensor '{item.name}': for the model to support batching the first "
            f"dimension of the model's shape must vary, but the model expects {_brackets(tensor.shape)}: "
            "set max_batch_size to 0 and give the full shape"
        )
    dims = tuple(item.reshape.shape) if item.HasField("reshape") else tuple(item.dims)
    full = (-1, *dims) if config.max_batch_size > 0 else dims
    scalar = not tensor.shape and tuple(dims) == (1,) and not config.max_batch_size
    fits = len(full) == len(tensor.shape) and all(
        want == got or -1 in (want, got) for want, got in zip(full, tensor.shape, strict=True)
    )
    if fits or scalar:
        return
    detail = (
        " (an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, "
        "making "
        f"complete shape {_brackets(full)})"
        if config.max_batch_size > 0
        else f" (shape {_brackets(full)})"
    )
    raise ConfigError(
        f"model '{config.name}', tensor '{item.name}': the model expects {len(tensor.shape)} dimensions "
        "(shape "
        f"{_brackets(tensor.shape)}) but the model configuration specifies {len(full)} dimensions{detail}"
    )


def _brackets(shape: Sequence[int]) -> str:
    return "[" + ",".join(map(str, shape)) + "]"
