"""Tensors of an archive: a configuration is completed from them, and checked against them."""

import logging
from collections.abc import Mapping

from tpx.errors import ConfigError
from tpx.protocol.datatypes import BY_NUMBER
from tpx.protocol.messages import ModelConfig
from tpx.serving.backends.model_tensors import ModelTensor, add_tensor, check_signature
from tpx.serving.backends.pytorch.archive import Format
from tpx.serving.backends.pytorch.naming import Places, index_in, input_positions, output_positions
from tpx.serving.backends.pytorch.program import Interface, Slot
from tpx.serving.stacking.added import added_inputs, taken_outputs

log = logging.getLogger(__name__)

_NOT_KNOWN = "skipping model configuration auto-complete for '%s': not supported for pytorch backend"
_NOT_COMPLETED = {
    Format.INDUCTOR: (
        "Auto-complete configuration is not supported for Inductor models. Skipping auto-complete for model "
        '"%s".'
    )
}


def complete(config: ModelConfig, interface: Interface, kind: Format, *, default_max_batch_size: int) -> None:
    """Fill batching, inputs and outputs where the configuration leaves them open.

    Only exported programs know them; the words for the others are Triton's.
    """
    if config.input and config.output:
        return
    if not interface.complete:
        log.warning(_NOT_COMPLETED.get(kind, _NOT_KNOWN), config.name)
        return
    arguments, results = interface.arguments or (), interface.results or ()
    _complete_batching(config, interface, default_max_batch_size)
    batching = config.max_batch_size > 0
    if not config.input:
        for place in _left(arguments, added_inputs(config)):
            add_tensor(config.input, _tensor(arguments[place], arguments[place].name), batching=batching)
    if not config.output:
        for place in _left(results, taken_outputs(config)):
            name = results[place].name or f"OUTPUT__{place}"
            add_tensor(config.output, _tensor(results[place], name), batching=batching)


def _complete_batching(config: ModelConfig, interface: Interface, default: int) -> None:
    slots = (*(interface.arguments or ()), *(interface.results or ()))
    batching = interface.least_rows <= 1 and all((slot.shape or ())[:1] == (-1,) for slot in slots)
    if not batching:
        if config.max_batch_size:
            raise ConfigError(
                f"autofill failed for model '{config.name}': model does not support batching while non-zero "
                "max_batch_size is specified"
            )
        return
    if not interface.rows_alike and not config.max_batch_size:
        return  # what varies is no batch, unless the configuration says that it is
    config.max_batch_size = config.max_batch_size or interface.most_rows or default
    if config.max_batch_size > 1 and config.WhichOneof("scheduling_choice") is None:
        config.dynamic_batching.SetInParent()


def _left(slots: tuple[Slot, ...], unseen: Mapping[str, int]) -> list[int]:
    """The places of tensors that clients see: all but the `unseen` ones."""
    known = {slot.name: place for place, slot in enumerate(slots) if slot.name}
    places = {known.get(name, index_in(name)) for name in unseen}
    return [place for place in range(len(slots)) if place not in places]


def _tensor(slot: Slot, name: str) -> ModelTensor:
    return ModelTensor(name=name, datatype=slot.datatype, shape=slot.shape or ())


def check(config: ModelConfig, interface: Interface) -> Places:
    """Which tensor is which. Raises ConfigError for what forward does not take or give."""
    inputs = input_positions(config, interface)
    outputs = output_positions(config, interface)
    _check_strings(config)
    _check_optional(config, interface, inputs)
    if interface.complete:
        arguments, results = interface.arguments or (), interface.results or ()
        check_signature(
            config,
            [_tensor(arguments[place], name) for name, place in inputs.items()],
            [_tensor(results[place], name) for name, place in outputs.items()],
        )
    if interface.most_rows and config.max_batch_size > interface.most_rows:
        raise ConfigError(
            f"model '{config.name}': max_batch_size is {config.max_batch_size}, but the archive was exported "
            f"for at most {interface.most_rows} rows"
        )
    return Places(inputs, outputs)


def _check_optional(config: ModelConfig, interface: Interface, positions: Mapping[str, int]) -> None:
    for item in config.input:
        if item.optional and interface.arguments and interface.arguments[positions[item.name]].required:
            raise ConfigError(
                f"model '{config.name}': input '{item.name}' is optional, but the model's forward has no "
                "default for it"
            )


def _check_strings(config: ModelConfig) -> None:
    for kind, items in (("input", config.input), ("output", config.output)):
        for item in items:
            if BY_NUMBER[item.data_type].name != "BYTES":
                continue
            dims = item.reshape.shape if item.HasField("reshape") else item.dims
            if len(dims) + (config.max_batch_size > 0) > 1:
                raise ConfigError(
                    f"Triton only supports 1 dimensional List of String as {kind} for '{item.name}' for "
                    f"model '{config.name}'"
                )
