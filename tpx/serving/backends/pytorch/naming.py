"""Mapping between configured tensors and the arguments and results of forward, by Triton's conventions.

Inputs are named like forward's arguments, or NAME__INDEX, or are in the configuration's order; all of
them follow one convention. Outputs are named like the keys of a dict, or NAME__INDEX, or are in order.
AOTInductor archives use ARGS[0], KWARGS[key] and RESULT[0]
(pytorch_backend/src/pt/model_instance_state.cc, src/pt2/model_state.cc).

Also completes a configuration from an archive, and validates one.
"""

import logging
from collections.abc import Mapping, Sequence

from tpx.errors import ConfigError
from tpx.protocol.datatypes import BY_NUMBER
from tpx.protocol.messages import ModelConfig
from tpx.protocol.model_config import path_of
from tpx.serving.backends.model_tensors import (
    ModelTensor,
    check_signature,
    complete_empty,
    dims_of,
    field_of,
)
from tpx.serving.backends.pytorch.program import Format, Interface, TensorSlot
from tpx.serving.stacking.added import added_inputs, taken_outputs

log = logging.getLogger(__name__)


TensorPositions = tuple[Mapping[str, int], Mapping[str, int]]
"""Positions of inputs in forward's arguments, and of outputs in its results, by name."""
_SEPARATOR = "__"
_INDEX = "follow the <name>__<index> naming convention"


def index_in(name: str) -> int | None:
    """Return the index at the end of a name (1 for `INPUT__1`), None if there is none."""
    _, found, text = name.partition(_SEPARATOR)
    return int(text) if found and text.isascii() and text.isdigit() else None


def input_positions(config: ModelConfig, interface: Interface) -> dict[str, int]:
    """Return the position in forward's arguments of each input, including inputs that the server adds.

    Raises ConfigError if the names follow no common convention or refer to no argument.
    """
    names = [item.name for item in config.input]
    added = [name for name in added_inputs(config) if name not in names]
    if not names:
        raise ConfigError(
            f"model '{config.name}': model configuration must contain at least one input, none were "
            f"specified."
        )
    if interface.arguments is None:
        positions = _parse_indices([*names, *added]) or {name: at for at, name in enumerate([*names, *added])}
        _check_states(config, "input_name", positions, named=True)
        return _check_positions(config, positions, len(positions))
    known = _index_slots(interface.arguments)
    positions = _choose_positions(config, "input", names, known)
    _check_states(config, "input_name", known, named=_is_named(positions, known))
    positions |= {name: _find_added_position(config, name, known) for name in added}
    _check_count(config, positions, interface.arguments)
    return _check_positions(config, positions, len(interface.arguments))


def _find_added_position(config: ModelConfig, name: str, known: Mapping[str, int]) -> int:
    """Return the position of an added input: by name, or after the inputs in the order of `batch_input`."""
    index = known.get(name, index_in(name))
    if index is not None:
        return index
    batch = [target for item in config.batch_input for target in item.target_name]
    if name not in batch:
        raise ConfigError(
            f"model '{config.name}': input '{name}' does not follow <name>__<index> naming convention.",
            field=field_of(config, "input", name, "name"),
        )
    return len(config.input) + batch.index(name)


def output_positions(config: ModelConfig, interface: Interface) -> dict[str, int]:
    """Return the position in forward's results of each output, including states. Raises ConfigError."""
    names = [item.name for item in config.output]
    states = [name for name in taken_outputs(config) if name not in names]
    known = _index_slots(interface.results or ())
    positions = _choose_positions(config, "output", names, known)
    _check_states(config, "output_name", known, named=_is_named(positions, known))
    for name in states:
        positions[name] = known[name] if name in known else index_in(name) or 0
    for name, position in positions.items():
        if interface.results is not None and position >= len(interface.results):
            raise ConfigError(
                beyond(name, len(interface.results)), field=field_of(config, "output", name, "name")
            )
    return positions


def beyond(name: str, count: int) -> str:
    """Return the message for an output that forward does not return."""
    return (
        f"The output {name} in the model configuration refers to an output index which doesn't exist. "
        f"This model has {count} outputs"
    )


def _index_slots(slots: Sequence[TensorSlot]) -> dict[str, int]:
    """Return the positions of the tensors by the names that the file has for them."""
    names = {slot.label: index for index, slot in enumerate(slots) if slot.label}
    return names | {slot.name: index for index, slot in enumerate(slots) if slot.name}


def _choose_positions(
    config: ModelConfig, kind: str, names: Sequence[str], known: Mapping[str, int]
) -> dict[str, int]:
    """Return the positions according to the first convention that all names follow."""
    if known and all(name in known for name in names):
        return {name: known[name] for name in names}
    indices = _parse_indices(names)
    if indices is not None:
        return indices
    if known or any(_SEPARATOR in name for name in names):
        log.warning(
            "%s of model '%s' (%s) neither have the model's names (%s) nor do they all %s: they are "
            "assigned in the order of the configuration",
            f"{kind}s",
            config.name,
            ", ".join(names),
            ", ".join(known) or "it does not tell",
            _INDEX,
        )
    return {name: index for index, name in enumerate(names)}


def _is_named(positions: Mapping[str, int], known: Mapping[str, int]) -> bool:
    return positions == _parse_indices([*positions]) or positions.items() <= known.items()


def _parse_indices(names: Sequence[str]) -> dict[str, int] | None:
    indices = {name: index for name in names if (index := index_in(name)) is not None}
    return indices if len(indices) == len(names) else None


def _check_states(config: ModelConfig, field: str, known: Mapping[str, int], *, named: bool) -> None:
    """Raise ConfigError if states are used and any tensor is identified only by its order."""
    states = config.sequence_batching.state
    if states and not named:
        raise ConfigError(
            f"PyTorch model '{config.name}' is using sequence batching with state but not all inputs and "
            f"outputs {_INDEX}. ",
            field="sequence_batching.state",
        )
    for state in states:
        name = getattr(state, field)
        if name not in known and index_in(name) is None:
            raise ConfigError(
                f"PyTorch model '{config.name}' is using sequence batching with state but state '{name}' "
                f"does not {_INDEX}. ",
                field=path_of(config, state, field),
            )


def _check_count(config: ModelConfig, positions: Mapping[str, int], arguments: Sequence[TensorSlot]) -> None:
    given = set(positions.values())
    required = [index for index, slot in enumerate(arguments) if slot.required]
    if len(positions) < len(arguments) and given.issuperset(required):
        return
    if len(positions) == len(arguments):
        return  # duplicate or invalid positions are reported by name later
    raise ConfigError(
        f"unable to load model '{config.name}', configuration expects {len(positions)} inputs, model "
        f"provides {len(arguments)}"
        + (f" ({', '.join(names)})" if (names := [slot.name or slot.label for slot in arguments]) else "")
    )


def _check_positions(config: ModelConfig, positions: dict[str, int], count: int) -> dict[str, int]:
    taken: dict[int, str] = {}
    for name, position in positions.items():
        if position >= count:
            raise ConfigError(
                f"model '{config.name}': input '{name}' refers to index {position}, but the model has "
                f"{count} inputs, counted from 0",
                field=field_of(config, "input", name, "name"),
            )
        if position in taken:
            raise ConfigError(
                f"model '{config.name}': inputs '{taken[position]}' and '{name}' both refer to index "
                f"{position}",
                field=field_of(config, "input", name, "name"),
            )
        taken[position] = name
    return positions


_NOT_KNOWN = "skipping model configuration auto-complete for '%s': not supported for pytorch backend"
_NOT_INDUCTOR = (
    'Auto-complete configuration is not supported for Inductor models. Skipping auto-complete for model "%s".'
)


def complete(config: ModelConfig, interface: Interface, kind: Format, *, default_max_batch_size: int) -> None:
    """Fill in batching, inputs and outputs that the configuration leaves open.

    Only exported programs describe them; for other formats Triton's message is logged.
    """
    if config.input and config.output:
        return
    if not interface.complete:
        log.warning(_NOT_INDUCTOR if kind is Format.INDUCTOR else _NOT_KNOWN, config.name)
        return
    arguments, results = interface.arguments or (), interface.results or ()
    slots = (*arguments, *results)
    most = interface.most_rows or default_max_batch_size
    if interface.least_rows > 1 or not all((slot.shape or ())[:1] == (-1,) for slot in slots):
        most = -1
    elif not interface.rows_alike:
        most = 0  # independent first dimensions are a batch only if the configuration says so
    complete_empty(
        config,
        [
            _make_tensor(arguments[at], arguments[at].name)
            for at in _find_visible_positions(arguments, added_inputs(config))
        ],
        [
            _make_tensor(results[at], results[at].name or f"OUTPUT__{at}")
            for at in _find_visible_positions(results, taken_outputs(config))
        ],
        max_batch_size=most,
    )


def _find_visible_positions(slots: tuple[TensorSlot, ...], unseen: Mapping[str, int]) -> list[int]:
    """Return the positions of the tensors that clients see: all except the `unseen` ones."""
    known = {slot.name: place for place, slot in enumerate(slots) if slot.name}
    places = {known.get(name, index_in(name)) for name in unseen}
    return [place for place in range(len(slots)) if place not in places]


def _make_tensor(slot: TensorSlot, name: str) -> ModelTensor:
    return ModelTensor(name=name, datatype=slot.datatype, shape=slot.shape or ())


def check(config: ModelConfig, interface: Interface) -> TensorPositions:
    """Return the positions of the tensors. Raises ConfigError if the configuration does not fit forward."""
    inputs = input_positions(config, interface)
    outputs = output_positions(config, interface)
    _check_strings(config)
    for item in config.input:
        if item.optional and interface.arguments and interface.arguments[inputs[item.name]].required:
            raise ConfigError(
                f"model '{config.name}': input '{item.name}' is optional, but the model's forward has no "
                "default for it",
                field=path_of(config, item, "optional"),
            )
    if interface.complete:
        arguments, results = interface.arguments or (), interface.results or ()
        check_signature(
            config,
            [_make_tensor(arguments[place], name) for name, place in inputs.items()],
            [_make_tensor(results[place], name) for name, place in outputs.items()],
        )
    if interface.most_rows and config.max_batch_size > interface.most_rows:
        raise ConfigError(
            f"model '{config.name}': max_batch_size is {config.max_batch_size}, but the archive was exported "
            f"for at most {interface.most_rows} rows",
            field="max_batch_size",
        )
    return inputs, outputs


def _check_strings(config: ModelConfig) -> None:
    for kind, items in (("input", config.input), ("output", config.output)):
        for item in items:
            if BY_NUMBER[item.data_type].name != "BYTES":
                continue
            if len(dims_of(item)) + (config.max_batch_size > 0) > 1:
                raise ConfigError(
                    f"Triton only supports 1 dimensional List of String as {kind} for '{item.name}' for "
                    f"model '{config.name}'",
                    field=path_of(config, item, "dims"),
                )
