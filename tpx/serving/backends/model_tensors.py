"""Inputs and outputs of a model file in any format: completing a configuration from them, and
validating one.

The rules are those that Triton's backends share (backend/src/backend_common.cc, onnxruntime_backend),
so that a configuration means the same in both.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias, cast

import msgspec
import numpy as np

from tpx.errors import ConfigError, InvalidRequest
from tpx.protocol.datatypes import BY_NAME, BY_NUMBER
from tpx.protocol.messages import ModelConfig, ModelInput, ModelOutput
from tpx.protocol.model_config import TensorConfig, path_of
from tpx.protocol.tensors import Array
from tpx.serving.stacking.added import added_inputs, taken_outputs

if TYPE_CHECKING:
    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer

    from tpx.protocol.messages import DataType

NUMPY_NAMES = {each.numpy.name: name for name, each in BY_NAME.items() if name not in ("BYTES", "BF16")}
"""Datatypes by the names of numpy, which most runtimes share: float32, int8."""


class ModelTensor(msgspec.Struct, frozen=True, kw_only=True):
    """An input or output of a model; variable dimensions are -1."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    ranked: bool = True
    """False if even the number of dimensions is unknown; `shape` is then empty."""


def complete_tensors(
    config: ModelConfig, inputs: Sequence[ModelTensor], outputs: Sequence[ModelTensor], possible: int
) -> None:
    """Fill in batching, inputs and outputs that the configuration leaves open.

    `possible` is the max_batch_size to set where none is configured, 0 if the model supports no batches.
    Configured dims hint at whether a shape has a batch dimension (Triton:
    tensorrt_backend/src/model_state.cc, tensorflow_backend/src/tensorflow.cc). Raises ConfigError.
    """
    added, taken = added_inputs(config), taken_outputs(config)
    sections: _Sections = (
        (config.input, {tensor.name: tensor for tensor in inputs if tensor.name not in added}),
        (config.output, {tensor.name: tensor for tensor in outputs if tensor.name not in taken}),
    )
    max_batch_size = config.max_batch_size or possible
    hint = _infer_batching(config, sections)
    if hint and not max_batch_size:
        raise ConfigError(
            f"autofill failed for model '{config.name}': model tensor shape configuration hints for dynamic "
            "batching but the underlying engine doesn't support batching.",
            field="max_batch_size",
        )
    fill_batching(config, 0 if hint is False else max_batch_size)
    for items, tensors in sections:
        batching = config.max_batch_size > 0
        if not items:
            for tensor in tensors.values():
                _check_ranked(config.name, tensor)
                _add_tensor(items, tensor, batching=batching)
        for item in items:
            known = tensors.get(item.name)
            if known is None:
                continue
            if not item.data_type:
                item.data_type = cast("DataType", BY_NAME[known.datatype].number)
            if not item.dims:
                _check_ranked(config.name, known)
                _fill_dims(item, known, batching=batching)


_Items: TypeAlias = (
    "RepeatedCompositeFieldContainer[ModelInput] | RepeatedCompositeFieldContainer[ModelOutput]"
)
"""`config.input` or `config.output`."""
_Sections: TypeAlias = "Sequence[tuple[_Items, Mapping[str, ModelTensor]]]"


def _infer_batching(config: ModelConfig, sections: "_Sections") -> bool | None:
    """Return whether the configured dims omit the first dimension of the model; None if they give no hint."""
    hint: bool | None = None
    for items, tensors in sections:
        for item in items:
            tensor = tensors.get(item.name)
            if getattr(item, "allow_ragged_batch", False):
                return True
            if tensor is None or not tensor.ranked or not item.dims:
                continue
            batching = len(tensor.shape) == len(dims_of(item)) + 1
            if hint not in (None, batching):
                raise ConfigError(
                    f"unable to autofill for '{config.name}', model tensor configurations are contradicting "
                    "each other in terms of whether batching is supported",
                    field=path_of(config, item, "dims"),
                )
            hint = batching
    return hint


def _check_ranked(model: str, tensor: ModelTensor) -> None:
    if not tensor.ranked:
        raise ConfigError(
            f"unable to autofill for '{model}': the model does not declare how many dimensions "
            f"'{tensor.name}' "
            "has: give its dims in config.pbtxt"
        )


def complete_empty(
    config: ModelConfig, inputs: Iterable[ModelTensor], outputs: Iterable[ModelTensor], *, max_batch_size: int
) -> None:
    """Fill in batching, and inputs or outputs where the configuration has none.

    `max_batch_size` is the value to set if the model supports batches, -1 if it does not. Raises ConfigError.
    """
    if max_batch_size >= 0:
        fill_batching(config, max_batch_size)
    elif config.max_batch_size:
        raise ConfigError(
            f"autofill failed for model '{config.name}': model does not support batching while non-zero "
            "max_batch_size is specified",
            field="max_batch_size",
        )
    for items, tensors in ((config.input, inputs), (config.output, outputs)):
        for tensor in () if items else tensors:
            _add_tensor(items, tensor, batching=config.max_batch_size > 0)


def _add_tensor(items: "_Items", tensor: ModelTensor, *, batching: bool) -> None:
    item = items.add(name=tensor.name, data_type=BY_NAME[tensor.datatype].number)
    _fill_dims(item, tensor, batching=batching)


def dims_of(item: TensorConfig) -> Sequence[int]:
    """Return the dims that the model sees: those of `reshape` if it is configured."""
    return item.reshape.shape if item.HasField("reshape") else item.dims


def _fill_dims(item: TensorConfig, tensor: ModelTensor, *, batching: bool) -> None:
    dims = tensor.shape[1:] if batching else tensor.shape
    item.dims.extend([dim or -1 for dim in dims] or (1,))  # dims of 0 are invalid in a configuration
    if not dims and batching:
        item.reshape.SetInParent()  # one element per request; the model's shape is only [batch]


def to_model(array: Array, tensor: ModelTensor) -> Array:
    """Return an input in the model's shape: a scalar has no dimensions there, and one element for clients."""
    return array.reshape(()) if tensor.ranked and not tensor.shape else array


def from_model(array: Array, tensor: ModelTensor) -> Array:
    """Return an output as clients receive it: a scalar as one element, BF16 as its bits in uint16."""
    array = np.atleast_1d(array)
    return array.view(np.uint16) if tensor.datatype == "BF16" else array


def decode_strings(name: str, array: Array, runtime: str) -> list[str]:
    """Return the elements of a BYTES input for a runtime whose strings are text. Raises InvalidRequest."""
    try:
        return [element.decode() for element in array.flat]
    except UnicodeDecodeError as exc:
        raise InvalidRequest(
            f"input '{name}' is not UTF-8, which strings in {runtime} are: {exc.reason}"
        ) from exc


def fill_batching(config: ModelConfig, max_batch_size: int) -> None:
    """Enable batching by default: fill in the batch size, and dynamic batching if there is no scheduler."""
    config.max_batch_size = config.max_batch_size or max_batch_size
    if config.max_batch_size > 1 and config.WhichOneof("scheduling_choice") is None:
        config.dynamic_batching.SetInParent()


def check_all_required(config: ModelConfig, runtime: str) -> None:
    """Raise ConfigError if an input is optional, because `runtime` cannot omit inputs."""
    for item in config.input:
        if item.optional:
            raise ConfigError(
                f"input '{item.name}' of model '{config.name}' is optional, but {runtime} needs all inputs: "
                "remove optional",
                field=path_of(config, item, "optional"),
            )


def check_signature(
    config: ModelConfig, inputs: Sequence[ModelTensor], outputs: Sequence[ModelTensor]
) -> None:
    """Raise ConfigError if the configuration does not match the model's inputs and outputs."""
    name = config.name
    scattered = {target for item in config.batch_output for target in item.target_name}
    _check_added(config, "input", added_inputs(config), inputs)
    _check_added(config, "output", taken_outputs(config), outputs)
    expected = len(config.input) + len(added_inputs(config))
    if expected != len(inputs):
        raise ConfigError(
            f"unable to load model '{name}', configuration expects {expected} inputs, model provides "
            f"{len(inputs)}"
        )
    for kind, tensors in (("input", inputs), ("output", outputs)):
        provided = {tensor.name: tensor for tensor in tensors}
        items: Iterable[TensorConfig] = config.input if kind == "input" else config.output
        for item in items:
            tensor = provided.get(item.name)
            if tensor is None:
                raise ConfigError(
                    f"unexpected inference {kind} '{item.name}', allowed {kind}s are: {', '.join(provided)}",
                    field=path_of(config, item, "name"),
                )
            if isinstance(item, ModelInput) and item.allow_ragged_batch:
                _check_ragged(config, item, tensor)
            elif kind == "input" or item.name not in scattered:
                _check_tensor(config, kind, item, tensor)
            else:
                _check_datatype(config, kind, item.data_type, tensor)


def _check_ragged(config: ModelConfig, item: ModelInput, tensor: ModelTensor) -> None:
    """Check a ragged input: the model receives all elements in one row, regardless of the requests' dims."""
    _check_datatype(config, "input", item.data_type, tensor)
    if item.optional:
        raise ConfigError(
            f"unable to load model '{config.name}', configuration expects model provides input with shape "
            f"[-1] for ragged input '{item.name}', which is not supported for optional input",
            field=path_of(config, item, "optional"),
        )
    if tensor.shape != (-1,):
        raise ConfigError(
            f"unable to load model '{config.name}', configuration expects model provides input with shape "
            f"[-1]  for ragged input '{item.name}', model provides {brackets(tensor.shape)}",
            field=path_of(config, item, "allow_ragged_batch"),
        )


def _check_added(
    config: ModelConfig, kind: str, added: Mapping[str, int], tensors: Sequence[ModelTensor]
) -> None:
    provided = {tensor.name: tensor for tensor in tensors}
    for name, number in added.items():
        tensor = provided.get(name)
        if tensor is None:
            raise ConfigError(
                f"unable to load model '{config.name}', its file has no {kind} '{name}', which its batching "
                f"needs (it has: {', '.join(provided)})"
            )
        if number:
            _check_datatype(config, kind, number, tensor)


def _check_datatype(config: ModelConfig, kind: str, number: int, tensor: ModelTensor) -> None:
    configured = BY_NUMBER[number]
    if configured.name != tensor.datatype:
        raise ConfigError(
            f"unable to load model '{config.name}', configuration expects datatype "
            f"{configured.config_name} for {kind} '{tensor.name}', model provides "
            f"{BY_NAME[tensor.datatype].config_name}",
            field=field_of(config, kind, tensor.name, "data_type"),
        )


def field_of(config: ModelConfig, kind: str, name: str, field: str) -> str:
    """Return the path of a field of an input or output; "" for tensors that the server adds."""
    items: Iterable[TensorConfig] = config.input if kind == "input" else config.output
    found = (f"{kind}[{index}].{field}" for index, item in enumerate(items) if item.name == name)
    return next(found, "")


def _check_tensor(config: ModelConfig, kind: str, item: TensorConfig, tensor: ModelTensor) -> None:
    _check_datatype(config, kind, item.data_type, tensor)
    if not tensor.ranked:
        return
    if config.max_batch_size > 0 and tensor.shape[:1] != (-1,):
        raise ConfigError(
            f"model '{config.name}', tensor '{item.name}': for the model to support batching the first "
            f"dimension of the model's shape must vary, but the model expects {brackets(tensor.shape)}: "
            "set max_batch_size to 0 and give the full shape",
            field="max_batch_size",
        )
    full = (*([-1] if config.max_batch_size > 0 else []), *dims_of(item))
    scalar = not tensor.shape and full == (1,)
    if scalar or agree(full, tensor.shape):
        return
    detail = (
        " (an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, "
        f"making complete shape {brackets(full)})"
        if config.max_batch_size > 0
        else f" (shape {brackets(full)})"
    )
    raise ConfigError(
        f"model '{config.name}', tensor '{item.name}': the model expects {len(tensor.shape)} dimensions "
        f"(shape {brackets(tensor.shape)}) but the model configuration specifies {len(full)} "
        f"dimensions{detail}",
        field=path_of(config, item, "dims"),
    )


def agree(first: Sequence[int], second: Sequence[int]) -> bool:
    """Return whether two shapes are equal but for variable dimensions."""
    return len(first) == len(second) and all(
        a == b or -1 in (a, b) for a, b in zip(first, second, strict=True)
    )


def brackets(shape: Sequence[int]) -> str:
    """Format a shape for messages."""
    return "[" + ",".join(map(str, shape)) + "]"
