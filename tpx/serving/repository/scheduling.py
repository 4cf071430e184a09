"""From a complete configuration to how its requests are scheduled and stacked."""

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from tpx.errors import ConfigError, InvalidRequest
from tpx.protocol.datatypes import BY_NUMBER, DataType
from tpx.protocol.messages import ModelConfig, ModelQueuePolicy, ModelSequenceBatching
from tpx.protocol.tensors import Array, as_array
from tpx.serving.backends.contract import TakesSamples, inside
from tpx.serving.scheduling.base import Scheduler
from tpx.serving.scheduling.direct import DirectScheduler
from tpx.serving.scheduling.dynamic import DynamicBatcher
from tpx.serving.scheduling.queue import QueuePolicies, QueuePolicy
from tpx.serving.scheduling.sequences import SequenceTable
from tpx.serving.scheduling.strategies import DirectSequences, OldestSequences
from tpx.serving.stacking.base import Stacking
from tpx.serving.stacking.plain import PlainStacking
from tpx.serving.stacking.ragged import RaggedStacking, added_inputs_of
from tpx.serving.stacking.samples import SampleStacking
from tpx.serving.stacking.sequences import SequenceStacking, State, check_correlation_id, controls_of


def scheduler_of(config: ModelConfig) -> Scheduler:
    """The policy that the configuration chooses."""
    choice = config.WhichOneof("scheduling_choice")
    if choice == "sequence_batching":
        return _sequences(config)
    if choice == "dynamic_batching":
        return _dynamic(config)
    return DirectScheduler()


def stacking_of(config: ModelConfig, directory: Path, model: object = None) -> Stacking:
    """Return how requests become arrays of an opened model; `directory` is its own. Raises ConfigError."""
    batched = config.max_batch_size > 0
    if isinstance(model, TakesSamples):
        return SampleStacking(batched=batched, joined=model.joined_outputs)
    stacking = _stacking_of_inputs(config, batched=batched)
    if not config.HasField("sequence_batching"):
        return stacking
    return SequenceStacking(controls_of(config), states_of(config, directory), stacking, batched=batched)


def _stacking_of_inputs(config: ModelConfig, *, batched: bool) -> Stacking:
    ragged = frozenset(item.name for item in config.input if item.allow_ragged_batch)
    if not (ragged or config.batch_input or config.batch_output):
        return PlainStacking(batched=batched)
    scattered = {name: item.source_input[0] for item in config.batch_output for name in item.target_name}
    return RaggedStacking(ragged, added_inputs_of(config), scattered, batched=batched)


def _dynamic(config: ModelConfig) -> Scheduler:
    batching = config.dynamic_batching
    policies = QueuePolicies(
        levels=batching.priority_levels,
        default_level=batching.default_priority_level,
        default=_policy(batching.default_queue_policy),
        by_level={level: _policy(policy) for level, policy in batching.priority_queue_policy.items()},
    )
    if config.max_batch_size <= 1 and policies.plain:
        return DirectScheduler()
    return DynamicBatcher(
        config.max_batch_size,
        list(batching.preferred_batch_size),
        batching.max_queue_delay_microseconds * 1000,
        policies,
    )


def _policy(policy: ModelQueuePolicy) -> QueuePolicy:
    return QueuePolicy(
        timeout_ns=policy.default_timeout_microseconds * 1000,
        delays=policy.timeout_action == policy.DELAY,
        allow_timeout_override=policy.allow_timeout_override,
        max_queue_size=policy.max_queue_size,
    )


def _sequences(config: ModelConfig) -> Scheduler:
    batching = config.sequence_batching
    oldest = batching.HasField("oldest")
    rows = max(1, config.max_batch_size)
    slots = batching.oldest.max_candidate_sequences or rows
    table = SequenceTable(
        config.name,
        instances=0,
        slots=slots,
        idle_ns=batching.max_sequence_idle_microseconds * 1000,
        check_id=partial(check_correlation_id, config.name, controls_of(config)),
        varying_shapes=varying_shapes_of(config),
        iterative=batching.iterative_sequence,
    )
    return _oldest(batching, table, rows) if oldest else _direct(batching, table, rows)


def _direct(batching: ModelSequenceBatching, table: SequenceTable, rows: int) -> Scheduler:
    direct = batching.direct
    delay_ns = direct.max_queue_delay_microseconds * 1000
    return DirectSequences(table, rows, delay_ns, direct.minimum_slot_utilization)


def _oldest(batching: ModelSequenceBatching, table: SequenceTable, rows: int) -> Scheduler:
    settings = batching.oldest
    preferred, delay_ns = list(settings.preferred_batch_size), settings.max_queue_delay_microseconds * 1000
    return OldestSequences(table, lambda: DynamicBatcher(rows, preferred, delay_ns))


def states_of(config: ModelConfig, directory: Path) -> list[State]:
    """The states of a validated configuration; `directory` is the model's, with `initial_state/` in it.

    Raises ConfigError.
    """
    states = []
    for state in config.sequence_batching.state:
        if state.use_growable_memory and not state.use_same_buffer_for_input_output:
            raise ConfigError(
                "In order to 'use_growable_memory', you must also enable "
                f"'use_same_buffer_for_input_output' for state input name '{state.input_name}'."
            )
        datatype = BY_NUMBER[state.data_type]
        initial = _zeros(datatype, _first_dims(state))
        for given in state.initial_state:
            _check(state, given)
            initial = _initial(config.name, given, datatype, directory)
        states.append(
            State(
                input_name=state.input_name,
                output_name=state.output_name,
                datatype=datatype,
                initial=initial,
            )
        )
    return states


def varying_shapes_of(config: ModelConfig) -> list[tuple[int, ...]]:
    """The shapes that the states of a validated configuration begin with, none where they never change."""
    states = config.sequence_batching.state
    if not any(dim < 0 for state in states for dim in state.dims):
        return []
    return [
        tuple(state.initial_state[0].dims) if state.initial_state else _first_dims(state) for state in states
    ]


def _first_dims(state: "ModelSequenceBatching.State") -> tuple[int, ...]:
    return tuple(1 if dim < 0 else dim for dim in state.dims)


def _check(state: "ModelSequenceBatching.State", given: "ModelSequenceBatching.InitialState") -> None:
    """In the order and the words of Triton."""
    name = state.input_name
    if len(state.initial_state) > 1:
        raise ConfigError(
            f"initial_state field for state input '{name}' must contain exactly one or zero element. Found "
            f"'{len(state.initial_state)}' elements."
        )
    if given.data_type != state.data_type:
        raise ConfigError(
            f"The data type used for 'initial_state' field of state '{name}' does not match the state data "
            "type."
        )
    if not given.name:
        raise ConfigError(f"Field 'name' must be set when using initial_state for state input '{name}'.")
    if len(given.dims) != len(state.dims):
        raise ConfigError(
            "Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions for state "
            f"input '{name}'. {len(given.dims)} != {len(state.dims)}"
        )
    for dim, wanted in zip(given.dims, state.dims, strict=True):
        if dim < 1:
            raise ConfigError(
                f"'initial_state' field for state input name '{name}' contains variable dimensions."
            )
        if wanted not in (-1, dim):
            raise ConfigError(
                f"'initial_state' dim for input name '{name}' doesn't match 'state' dim description. "
                f"{dim} != {wanted}"
            )
    if given.WhichOneof("state_data") is None:
        raise ConfigError(f"initial_state setting expects state '{name}' to have state_data set")


def _initial(
    model: str, given: "ModelSequenceBatching.InitialState", datatype: DataType, directory: Path
) -> Array:
    shape = tuple(given.dims)
    if given.WhichOneof("state_data") == "zero_data":
        return _zeros(datatype, shape)
    path = inside(directory / "initial_state", given.data_file, "initial_state.data_file")
    try:
        data = path.read_bytes()
    except OSError as exc:
        raise ConfigError(
            f"failed to open text file for read {path}: {exc.strerror} (initial_state of model '{model}')"
        ) from exc
    needed = math.prod(shape) * datatype.size
    if needed > len(data):
        raise ConfigError(
            f"initial_state setting expects {needed} bytes, but the data provided from {given.data_file} "
            f"only has {len(data)} bytes."
        )
    try:
        return as_array(data[:needed] if needed else data, datatype.name, shape).copy()
    except InvalidRequest as exc:
        raise ConfigError(f"initial_state file '{path}' of model '{model}': {exc.message}") from exc


def _zeros(datatype: DataType, shape: Sequence[int]) -> Array:
    # np.zeros touches no memory before it is used, and states may be large
    return np.zeros(shape, datatype.numpy) if datatype.size else np.full(shape, b"", datatype.numpy)
