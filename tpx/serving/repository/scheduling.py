"""Scheduling settings of a configuration: completion, validation, and the scheduler and stacking they
select (Triton: core/src/model_config_utils.cc).
"""

import math
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tpx.errors import ConfigError, InvalidRequest
from tpx.protocol.datatypes import BY_NUMBER, DataType
from tpx.protocol.messages import (
    BatchInput,
    BatchOutput,
    ModelConfig,
    ModelQueuePolicy,
    ModelSequenceBatching,
)
from tpx.protocol.model_config import path_of
from tpx.protocol.tensors import Array, as_array
from tpx.serving.backends.contract import TakesSamples, inside
from tpx.serving.batch import Stacking
from tpx.serving.scheduling.base import Scheduler
from tpx.serving.scheduling.direct import DirectScheduler
from tpx.serving.scheduling.dynamic import DynamicBatcher
from tpx.serving.scheduling.queue import QueuePolicies, QueuePolicy
from tpx.serving.stacking.plain import PlainStacking

if TYPE_CHECKING:
    from tpx.serving.stacking.sequences import SequenceState

DEFAULT_SEQUENCE_IDLE_US = 1_000_000
MAX_INT32 = 2**31 - 1
_MAX_PREFERRED = 1000
"""Maximum number of preferred batch sizes: each is compared with what waits."""
_KINDS = {0: "START", 1: "READY", 2: "END", 3: "CORRID"}
_FLAG_FIELDS = ("int32_false_true", "fp32_false_true", "bool_false_true")
_CORRID_TYPES = ("UINT64", "INT64", "UINT32", "INT32", "BYTES")
_RAGGED_TYPES = ("INT32", "FP32")


def fill_batching(config: ModelConfig) -> None:
    """Fill defaults that depend on the completed max_batch_size, and those of sequence batching."""
    choice = config.WhichOneof("scheduling_choice")
    if choice == "dynamic_batching":
        if not config.dynamic_batching.preferred_batch_size and config.max_batch_size > 0:
            config.dynamic_batching.preferred_batch_size.append(config.max_batch_size)
    elif choice == "sequence_batching":
        batching = config.sequence_batching
        idle_us = batching.max_sequence_idle_microseconds or DEFAULT_SEQUENCE_IDLE_US
        batching.max_sequence_idle_microseconds = idle_us
        preferred = batching.oldest.preferred_batch_size if batching.HasField("oldest") else None
        if preferred is not None and not preferred and config.max_batch_size > 0:
            preferred.append(config.max_batch_size)


def validate_batching(config: ModelConfig, *, completed: bool = True) -> None:
    """Raise ConfigError, naming the field, for invalid scheduling settings.

    If not `completed`, a missing max_batch_size may still come from the model file.
    """
    choice = config.WhichOneof("scheduling_choice")
    most = config.max_batch_size if completed or config.max_batch_size else MAX_INT32
    if choice == "dynamic_batching":
        _validate_dynamic_batching(config, most)
    elif choice == "sequence_batching":
        sizes = config.sequence_batching.oldest.preferred_batch_size
        fault = _preferred_fault(sizes, most)
        if fault:
            raise ConfigError(
                f"sequence batching preferred batch size {fault} for {config.name}",
                field="sequence_batching.oldest.preferred_batch_size",
            )
        _validate_sequences(config)


def _validate_dynamic_batching(config: ModelConfig, most: int) -> None:
    def wrong(fault: str, field: str) -> ConfigError:
        return ConfigError(f"{fault} for {config.name}", field=f"dynamic_batching.{field}")

    batching = config.dynamic_batching
    levels = batching.priority_levels
    fault = _preferred_fault(batching.preferred_batch_size, most)
    if fault:
        raise wrong(f"dynamic batching preferred size {fault}", "preferred_batch_size")
    if levels and not 1 <= batching.default_priority_level <= levels:
        raise wrong(f"default priority level must be in range [1, {levels}]", "default_priority_level")
    for level in batching.priority_queue_policy if levels else ():
        if not 1 <= level <= levels:
            fault = f"priority queue policy must have priority level in range [1, {levels}]"
            raise wrong(fault, f"priority_queue_policy[{level}]")
    if not batching.preserve_ordering:
        return
    if levels > 1:
        raise wrong(
            "Only one priority level is allowed when 'preserve_ordering' is true", "preserve_ordering"
        )
    policies = {"default_queue_policy": batching.default_queue_policy}
    policies |= {
        f"priority_queue_policy[{k}]": batching.priority_queue_policy[k]
        for k in batching.priority_queue_policy
    }
    for field, policy in policies.items():
        if policy.timeout_action == policy.DELAY and policy.default_timeout_microseconds:
            fault = "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true"
            raise wrong(fault, f"{field}.timeout_action")


def _preferred_fault(sizes: Sequence[int], most: int) -> str:
    """Return what is wrong with preferred batch sizes, or ""."""
    if len(sizes) > _MAX_PREFERRED:
        return f"must have at most {_MAX_PREFERRED} values, got {len(sizes)},"
    if any(size <= 0 for size in sizes):
        return "must be positive"
    return "must be <= max batch size" if any(size > most for size in sizes) else ""


def _validate_sequences(config: ModelConfig) -> None:
    batching = config.sequence_batching
    utilization = batching.direct.minimum_slot_utilization
    if batching.HasField("direct") and not 0.0 <= utilization <= 1.0:
        raise ConfigError(
            f"sequence batching minimum slot utilization must be in range (0.0, 1.0] for {config.name}",
            field="sequence_batching.direct.minimum_slot_utilization",
        )
    if batching.oldest.max_candidate_sequences < 0:
        raise ConfigError(
            f"sequence batching max_candidate_sequences must not be negative for {config.name}",
            field="sequence_batching.oldest.max_candidate_sequences",
        )
    _validate_controls(config)
    taken = {item.name for item in config.input}
    taken |= {control.name for control in config.sequence_batching.control_input}
    for index, state in enumerate(config.sequence_batching.state):
        name, field = state.input_name, f"sequence_batching.state[{index}]"
        if not name or not state.output_name:
            raise ConfigError(
                f"sequence state of {config.name} must specify 'input_name' and 'output_name'", field=field
            )
        if state.data_type not in BY_NUMBER or not state.dims:
            raise ConfigError(
                f"sequence state '{name}' of {config.name} must specify 'data_type' and 'dims'", field=field
            )
        if any(dim < 1 and dim != -1 for dim in state.dims):
            raise ConfigError(
                f"sequence state '{name}' of {config.name}: dimension must be integer >= 1, or -1 to "
                "indicate a variable-size dimension",
                field=f"{field}.dims",
            )
        if name in taken:
            raise ConfigError(
                f"State input name '{name}' specified more than once.", field=f"{field}.input_name"
            )
        taken.add(name)


def _validate_controls(config: ModelConfig) -> None:
    seen: set[str] = set()
    names: set[str] = set()
    for index, control_input in enumerate(config.sequence_batching.control_input):
        name, field = control_input.name, f"sequence_batching.control_input[{index}]"
        tensor, model = f"sequence batching control tensor '{name}'", config.name
        if not name:
            raise ConfigError(f"sequence batching control tensor must have a name for {model}", field=field)
        if any(item.name == name for item in config.input):
            raise ConfigError(f"{tensor} of {model} is also an input", field=f"{field}.name")
        if not control_input.control:
            raise ConfigError(f"{tensor} must have a control kind for {model}", field=field)
        if len(control_input.control) > 1 or name in names:
            raise ConfigError(f"{tensor} is specified for multiple control kinds for {model}", field=field)
        control = control_input.control[0]
        kind = _KINDS[control.kind]
        if kind in seen:
            raise ConfigError(
                f"sequence batching specifies multiple CONTROL_SEQUENCE_{kind} tensors for {model}",
                field=f"{field}.control[0].kind",
            )
        seen.add(kind)
        names.add(control_input.name)
        if kind == "CORRID":
            _validate_correlation_id(config, control)
        else:
            _validate_flag(config, kind, control)


def _validate_correlation_id(config: ModelConfig, control: "ModelSequenceBatching.Control") -> None:
    if control.data_type not in BY_NUMBER or BY_NUMBER[control.data_type].name not in _CORRID_TYPES:
        raise ConfigError(
            f"unexpected data type for control CONTROL_SEQUENCE_CORRID for {config.name}. Allowed data types "
            "are TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING",
            field=path_of(config, control, "data_type"),
        )
    given = [field for field in _FLAG_FIELDS if len(getattr(control, field))]
    if given:
        raise ConfigError(
            "sequence batching must not specify either 'int32_false_true', 'fp32_false_true' or "
            f"'bool_false_true' for CONTROL_SEQUENCE_CORRID for {config.name}",
            field=path_of(config, control, given[0]),
        )


def _validate_flag(config: ModelConfig, kind: str, control: "ModelSequenceBatching.Control") -> None:
    given = [field for field in _FLAG_FIELDS if len(getattr(control, field))]
    if not given:
        raise ConfigError(
            "sequence batching must specify either 'int32_false_true', 'fp32_false_true' or "
            f"'bool_false_true' for CONTROL_SEQUENCE_{kind} for {config.name}",
            field=path_of(config, control),
        )
    if len(given) > 1:
        raise ConfigError(
            "sequence batching specifies more than one from 'int32_false_true', 'fp32_false_true' and "
            f"'bool_false_true' for CONTROL_SEQUENCE_{kind} for {config.name}",
            field=path_of(config, control, given[1]),
        )
    if len(getattr(control, given[0])) != 2:
        raise ConfigError(
            f"sequence batching control '{given[0]}' must have exactly 2 entries for "
            f"CONTROL_SEQUENCE_{kind} for {config.name}",
            field=path_of(config, control, given[0]),
        )


def validate_batch_tensors(config: ModelConfig) -> None:
    """Raise ConfigError, with Triton's wording, for invalid `batch_input` and `batch_output` entries."""
    inputs = {item.name for item in config.input}
    for item in config.batch_input:
        _validate_source(config, "input", item, inputs)
        if item.data_type not in BY_NUMBER or BY_NUMBER[item.data_type].name not in _RAGGED_TYPES:
            raise ConfigError(
                f"batch input data type must be TYPE_INT32 or TYPE_FP32 for {config.name}",
                field=path_of(config, item, "data_type"),
            )
    outputs = {item.name for item in config.output}
    seen: set[str] = set()
    for output in config.batch_output:
        _validate_source(config, "output", output, inputs)
        field = path_of(config, output, "target_name")
        for name in output.target_name:
            if name not in outputs:
                raise ConfigError(f"unknown target output name '{name}' for {config.name}", field=field)
            if name in seen:
                raise ConfigError(
                    f"target output name '{name}' can only be specified once for {config.name}", field=field
                )
            seen.add(name)


def _validate_source(
    config: ModelConfig, what: str, item: BatchInput | BatchOutput, inputs: Collection[str]
) -> None:
    kind, field = type(item).Kind.Name(item.kind), path_of(config, item, "source_input")
    if len(item.source_input) != 1:
        raise ConfigError(
            f"batch {what} kind '{kind}' expects 1 source input, got {len(item.source_input)} for "
            f"{config.name}",
            field=field,
        )
    if item.source_input[0] not in inputs:
        raise ConfigError(
            f"unknown source input name '{item.source_input[0]}' for {config.name}", field=field
        )


def scheduler_of(config: ModelConfig) -> Scheduler:
    """Return the scheduler that the configuration selects."""
    choices = {"sequence_batching": _make_sequence_scheduler, "dynamic_batching": _make_dynamic_scheduler}
    choice = config.WhichOneof("scheduling_choice")
    return choices[choice](config) if choice in choices else DirectScheduler()


def stacking_of(config: ModelConfig, directory: Path, model: object = None) -> Stacking:
    """Return the stacking for an opened model in `directory`. Raises ConfigError."""
    batched = config.max_batch_size > 0
    if isinstance(model, TakesSamples):
        from tpx.serving.stacking.samples import SampleStacking  # late, as others here: few models need it

        return SampleStacking(batched=batched, joined=model.joined_outputs)
    stacking: Stacking = PlainStacking(batched=batched)
    ragged = frozenset(item.name for item in config.input if item.allow_ragged_batch)
    if ragged or config.batch_input or config.batch_output:
        from tpx.serving.stacking.ragged import RaggedStacking, added_inputs_of

        scattered = {name: item.source_input[0] for item in config.batch_output for name in item.target_name}
        added = added_inputs_of(config)
        stacking = RaggedStacking(ragged=ragged, added=added, scattered=scattered, batched=batched)
    if not config.HasField("sequence_batching"):
        return stacking
    from tpx.serving.stacking.sequences import SequenceStacking, controls_of

    controls, states = controls_of(config), states_of(config, directory)
    return SequenceStacking(controls=controls, states=states, inner=stacking, batched=batched)


def _make_dynamic_scheduler(config: ModelConfig) -> Scheduler:
    batching = config.dynamic_batching
    policies = QueuePolicies(
        levels=batching.priority_levels,
        default_level=batching.default_priority_level,
        default=_make_queue_policy(batching.default_queue_policy),
        by_level={
            level: _make_queue_policy(policy) for level, policy in batching.priority_queue_policy.items()
        },
    )
    if config.max_batch_size <= 1 and policies.plain:
        return DirectScheduler()
    return DynamicBatcher(
        config.max_batch_size,
        list(batching.preferred_batch_size),
        batching.max_queue_delay_microseconds * 1000,
        policies,
    )


def _make_queue_policy(policy: ModelQueuePolicy) -> QueuePolicy:
    return QueuePolicy(
        timeout_ns=policy.default_timeout_microseconds * 1000,
        delays=policy.timeout_action == policy.DELAY,
        allow_timeout_override=policy.allow_timeout_override,
        max_queue_size=policy.max_queue_size,
    )


def _make_sequence_scheduler(config: ModelConfig) -> Scheduler:
    from tpx.serving.scheduling.sequences import SequenceTable
    from tpx.serving.scheduling.strategies import DirectSequences, OldestSequences
    from tpx.serving.stacking.sequences import check_correlation_id, controls_of

    batching = config.sequence_batching
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
    settings = batching.oldest if batching.HasField("oldest") else batching.direct
    delay_ns = settings.max_queue_delay_microseconds * 1000
    if not batching.HasField("oldest"):
        return DirectSequences(table, rows, delay_ns, batching.direct.minimum_slot_utilization)
    preferred = list(batching.oldest.preferred_batch_size)
    return OldestSequences(table, lambda: DynamicBatcher(rows, preferred, delay_ns))


def states_of(config: ModelConfig, directory: Path) -> "list[SequenceState]":
    """Return the states; the model's `directory` contains `initial_state/`. Raises ConfigError."""
    from tpx.serving.stacking.sequences import SequenceState

    states = []
    for index, state in enumerate(config.sequence_batching.state):
        field = f"sequence_batching.state[{index}]"
        if state.use_growable_memory and not state.use_same_buffer_for_input_output:
            raise ConfigError(
                "In order to 'use_growable_memory', you must also enable "
                f"'use_same_buffer_for_input_output' for state input name '{state.input_name}'.",
                field=f"{field}.use_growable_memory",
            )
        datatype = BY_NUMBER[state.data_type]
        initial = _make_zeros(datatype, _fix_variable_dims(state))
        for given in state.initial_state:
            _validate_initial_state(state, given, f"{field}.initial_state[0]")
            initial = _read_initial_state(config, given, datatype, directory)
        names = {"input_name": state.input_name, "output_name": state.output_name}
        states.append(SequenceState(**names, datatype=datatype, initial=initial))
    return states


def varying_shapes_of(config: ModelConfig) -> list[tuple[int, ...]]:
    """Return the initial shapes of the states of a validated configuration; empty if shapes never change."""
    states = config.sequence_batching.state
    if not any(dim < 0 for state in states for dim in state.dims):
        return []
    return [
        tuple(state.initial_state[0].dims) if state.initial_state else _fix_variable_dims(state)
        for state in states
    ]


def _fix_variable_dims(state: "ModelSequenceBatching.State") -> tuple[int, ...]:
    return tuple(1 if dim < 0 else dim for dim in state.dims)


def _validate_initial_state(
    state: "ModelSequenceBatching.State", given: "ModelSequenceBatching.InitialState", field: str
) -> None:
    """Validate an initial state, with Triton's wording and order of checks."""
    name = state.input_name
    if len(state.initial_state) > 1:
        raise ConfigError(
            f"initial_state field for state input '{name}' must contain exactly one or zero element. Found "
            f"'{len(state.initial_state)}' elements.",
            field=field,
        )
    if given.data_type != state.data_type:
        raise ConfigError(
            f"The data type used for 'initial_state' field of state '{name}' does not match the state data "
            "type.",
            field=f"{field}.data_type",
        )
    if not given.name:
        raise ConfigError(
            f"Field 'name' must be set when using initial_state for state input '{name}'.",
            field=f"{field}.name",
        )
    _validate_initial_dims(state, given, f"{field}.dims")
    if given.WhichOneof("state_data") is None:
        raise ConfigError(f"initial_state setting expects state '{name}' to have state_data set", field=field)


def _validate_initial_dims(
    state: "ModelSequenceBatching.State", given: "ModelSequenceBatching.InitialState", field: str
) -> None:
    name = state.input_name
    if len(given.dims) != len(state.dims):
        raise ConfigError(
            "Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions for state "
            f"input '{name}'. {len(given.dims)} != {len(state.dims)}",
            field=field,
        )
    for dim, wanted in zip(given.dims, state.dims, strict=True):
        if dim < 1:
            raise ConfigError(
                f"'initial_state' field for state input name '{name}' contains variable dimensions.",
                field=field,
            )
        if wanted not in (-1, dim):
            raise ConfigError(
                f"'initial_state' dim for input name '{name}' doesn't match 'state' dim description. "
                f"{dim} != {wanted}",
                field=field,
            )


def _read_initial_state(
    config: ModelConfig, given: "ModelSequenceBatching.InitialState", datatype: DataType, directory: Path
) -> Array:
    shape, model = tuple(given.dims), config.name
    if given.WhichOneof("state_data") == "zero_data":
        return _make_zeros(datatype, shape)
    field = path_of(config, given, "data_file")
    path = inside(directory / "initial_state", given.data_file, field)
    try:
        data = path.read_bytes()
    except OSError as exc:
        raise ConfigError(
            f"failed to open text file for read {path}: {exc.strerror} (initial_state of model '{model}')",
            field=field,
        ) from exc
    needed = math.prod(shape) * datatype.size
    if needed > len(data):
        raise ConfigError(
            f"initial_state setting expects {needed} bytes, but the data provided from {given.data_file} "
            f"only has {len(data)} bytes.",
            field=field,
        )
    try:
        return as_array(data[:needed] if needed else data, datatype.name, shape).copy()
    except InvalidRequest as exc:
        raise ConfigError(
            f"initial_state file '{path}' of model '{model}': {exc.message}", field=field
        ) from exc


def _make_zeros(datatype: DataType, shape: Sequence[int]) -> Array:
    # np.zeros allocates pages only when written: states may be large
    return np.zeros(shape, datatype.numpy) if datatype.size else np.full(shape, b"", datatype.numpy)
