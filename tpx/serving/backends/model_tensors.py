"""What a model file says of its inputs and outputs, whatever its format: writing them into a configuration,
and checking one against them.

The rules are those that Triton's backends share (backend/src/backend_common.cc, onnxruntime_backend), so that
a configuration means the same on both.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tpx.errors import ConfigError
from tpx.protocol.datatypes import BY_NAME, BY_NUMBER
from tpx.serving.stacking.added import added_inputs, taken_outputs


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTensor:
    """An input or output of a model; dimensions that vary are -1."""

    name: str
    datatype: str
    shape: tuple[int, ...]


def add_tensor(items: Any, tensor: ModelTensor, *, batching: bool) -> None:
    """Add a tensor to `config.input` or `config.output`, without its batch dimension."""
    item = items.add(name=tensor.name, data_type=BY_NAME[tensor.datatype].number)
    dims = tensor.shape[1:] if batching else tensor.shape
    item.dims.extend(dims or (1,))
    if not dims and batching:
        item.reshape.SetInParent()  # one element a request, which the file takes without a dimension


def check_signature(config: Any, inputs: Sequence[ModelTensor], outputs: Sequence[ModelTensor]) -> None:
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


def _check_ragged(config: Any, item: Any, tensor: ModelTensor) -> None:
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
            f"[-1]  for ragged input '{item.name}', model provides {brackets(tensor.shape)}"
        )


def _check_added(model: str, kind: str, added: Mapping[str, int], tensors: Sequence[ModelTensor]) -> None:
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


def _check_datatype(config: Any, kind: str, item: Any, tensor: ModelTensor) -> None:
    configured = BY_NUMBER[item.data_type]
    if configured.name != tensor.datatype:
        raise ConfigError(
            f"unable to load model '{config.name}', configuration expects datatype {configured.config_name} "
            "for "
            f"{kind} '{item.name}', model provides {BY_NAME[tensor.datatype].config_name}"
        )


def _check_tensor(config: Any, kind: str, item: Any, tensor: ModelTensor) -> None:
    _check_datatype(config, kind, item, tensor)
    if config.max_batch_size > 0 and tensor.shape[:1] != (-1,):
        raise ConfigError(
            f"model '{config.name}', tensor '{item.name}': for the model to support batching the first "
            f"dimension of the model's shape must vary, but the model expects {brackets(tensor.shape)}: "
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
        f"complete shape {brackets(full)})"
        if config.max_batch_size > 0
        else f" (shape {brackets(full)})"
    )
    raise ConfigError(
        f"model '{config.name}', tensor '{item.name}': the model expects {len(tensor.shape)} dimensions "
        "(shape "
        f"{brackets(tensor.shape)}) but the model configuration specifies {len(full)} dimensions{detail}"
    )


def brackets(shape: Sequence[int]) -> str:
    """A shape as messages show it."""
    return "[" + ",".join(map(str, shape)) + "]"
