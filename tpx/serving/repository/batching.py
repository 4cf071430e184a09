"""What a configuration may say of batching: dynamic, ragged and of sequences (Triton:
core/src/model_config_utils.cc)."""

from typing import Any

from tpx.errors import ConfigError
from tpx.protocol.datatypes import BY_NUMBER

DEFAULT_SEQUENCE_IDLE_US = 1_000_000
_KINDS = {0: "START", 1: "READY", 2: "END", 3: "CORRID"}
_FLAG_FIELDS = ("int32_false_true", "fp32_false_true", "bool_false_true")
_CORRID_TYPES = ("UINT64", "INT64", "UINT32", "INT32", "BYTES")
_RAGGED_TYPES = ("INT32", "FP32")


def fill_batching(config: Any) -> None:
    """What depends on the completed max_batch_size, and the defaults of sequences."""
    choice = config.WhichOneof("scheduling_choice")
    if choice == "dynamic_batching":
        if not config.dynamic_batching.preferred_batch_size and config.max_batch_size > 0:
            config.dynamic_batching.preferred_batch_size.append(config.max_batch_size)
    elif choice == "sequence_batching":
        batching = config.sequence_batching
        batching.max_sequence_idle_microseconds = (
            batching.max_sequence_idle_microseconds or DEFAULT_SEQUENCE_IDLE_US
        )
        if batching.WhichOneof("strategy_choice") is None:
            batching.direct.SetInParent()
        if batching.HasField("oldest") and not batching.oldest.preferred_batch_size:
            batching.oldest.preferred_batch_size.append(max(1, config.max_batch_size))


def validate_batching(config: Any) -> None:
    """Raise ConfigError for what is wrong, naming the field."""
    choice = config.WhichOneof("scheduling_choice")
    if choice == "dynamic_batching":
        _validate_preferred("dynamic batching", config.dynamic_batching.preferred_batch_size, config)
        _validate_levels(config)
    elif choice == "sequence_batching":
        _validate_sequences(config)
    _validate_ragged(config)


def _validate_preferred(what: str, sizes: Any, config: Any) -> None:
    for size in sizes:
        if size <= 0:
            raise ConfigError(f"{what} preferred size must be positive for {config.name}")
        if size > max(1, config.max_batch_size):
            raise ConfigError(f"{what} preferred size must be <= max batch size for {config.name}")


def _validate_levels(config: Any) -> None:
    batching = config.dynamic_batching
    levels = batching.priority_levels
    if levels and not 1 <= batching.default_priority_level <= levels:
        raise ConfigError(f"default priority level must be in range [1, {levels}] for {config.name}")
    for level in batching.priority_queue_policy:
        if not 1 <= level <= levels:
            raise ConfigError(
                f"priority queue policy must have priority level in range [1, {levels}] for {config.name}"
            )
    if batching.preserve_ordering:
        if levels > 1:
            raise ConfigError(
                f"Only one priority level is allowed when 'preserve_ordering' is true for {config.name}"
            )
        policies = [batching.default_queue_policy, *batching.priority_queue_policy.values()]
        if any(p.timeout_action == p.DELAY and p.default_timeout_microseconds for p in policies):
            raise ConfigError(
                "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for "
                f"{config.name}"
            )


def _validate_sequences(config: Any) -> None:
    batching = config.sequence_batching
    utilization = batching.direct.minimum_slot_utilization
    if batching.HasField("direct") and not 0.0 <= utilization <= 1.0:
        raise ConfigError(
            f"sequence batching minimum slot utilization must be in range (0.0, 1.0] for {config.name}"
        )
    if batching.HasField("oldest"):
        _validate_preferred("sequence batching", batching.oldest.preferred_batch_size, config)
        if batching.oldest.max_candidate_sequences < 0:
            raise ConfigError(
                f"sequence batching max_candidate_sequences must not be negative for {config.name}"
            )
    _validate_controls(config)
    _validate_states(config)
    if config.batch_input or config.batch_output or any(item.allow_ragged_batch for item in config.input):
        raise ConfigError(
            f"model '{config.name}' has sequences and ragged batches: tpx stacks the requests of sequences "
            "by their slots, with equal shapes"
        )


def _validate_states(config: Any) -> None:
    taken = {item.name for item in config.input}
    taken |= {control.name for control in config.sequence_batching.control_input}
    for state in config.sequence_batching.state:
        name = state.input_name
        if not name or not state.output_name:
            raise ConfigError(f"sequence state of {config.name} must specify 'input_name' and 'output_name'")
        if state.data_type not in BY_NUMBER or not state.dims:
            raise ConfigError(f"sequence state '{name}' of {config.name} must specify 'data_type' and 'dims'")
        if any(dim < 1 and dim != -1 for dim in state.dims):
            raise ConfigError(
                f"sequence state '{name}' of {config.name}: dimension must be integer >= 1, or -1 to "
                "indicate a variable-size dimension"
            )
        if name in taken:
            raise ConfigError(f"State input name '{name}' specified more than once.")
        taken.add(name)


def _only_control(config: Any, control_input: Any, names: set[str]) -> Any:
    """What a control tensor says; `names` are those before it."""
    name = control_input.name
    if not name:
        raise ConfigError(f"sequence batching control tensor must have a name for {config.name}")
    if any(item.name == name for item in config.input):
        raise ConfigError(f"sequence batching control tensor '{name}' of {config.name} is also an input")
    if not control_input.control:
        raise ConfigError(
            f"sequence batching control tensor '{name}' must have a control kind for {config.name}"
        )
    if len(control_input.control) > 1 or name in names:
        raise ConfigError(
            f"sequence batching control tensor '{name}' is specified for multiple control kinds for "
            f"{config.name}"
        )
    return control_input.control[0]


def _validate_controls(config: Any) -> None:
    seen: set[str] = set()
    names: set[str] = set()
    for control_input in config.sequence_batching.control_input:
        control = _only_control(config, control_input, names)
        kind = _KINDS[control.kind]
        if kind in seen:
            raise ConfigError(
                f"sequence batching specifies multiple CONTROL_SEQUENCE_{kind} tensors for {config.name}"
            )
        seen.add(kind)
        names.add(control_input.name)
        if kind == "CORRID":
            _validate_correlation_id(config, control)
        else:
            _validate_flag(config, kind, control)


def _validate_correlation_id(config: Any, control: Any) -> None:
    if control.data_type not in BY_NUMBER or BY_NUMBER[control.data_type].name not in _CORRID_TYPES:
        raise ConfigError(
            f"unexpected data type for control CONTROL_SEQUENCE_CORRID for {config.name}. Allowed data types "
            "are TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING"
        )
    if any(len(getattr(control, field)) for field in _FLAG_FIELDS):
        raise ConfigError(
            "sequence batching must not specify 'int32_false_true', 'fp32_false_true' or 'bool_false_true' "
            f"for CONTROL_SEQUENCE_CORRID for {config.name}"
        )


def _validate_flag(config: Any, kind: str, control: Any) -> None:
    given = [field for field in _FLAG_FIELDS if len(getattr(control, field))]
    if len(given) != 1:
        word = "only one of" if given else "either"
        raise ConfigError(
            f"sequence batching must specify {word} 'int32_false_true', 'fp32_false_true' or "
            f"'bool_false_true' for CONTROL_SEQUENCE_{kind} for {config.name}"
        )
    if len(getattr(control, given[0])) != 2:
        raise ConfigError(
            f"sequence batching control '{given[0]}' must have exactly 2 entries for "
            f"CONTROL_SEQUENCE_{kind} for {config.name}"
        )


def _validate_ragged(config: Any) -> None:
    inputs = {item.name for item in config.input}
    for item in config.batch_input:
        kind = item.DESCRIPTOR.fields_by_name["kind"].enum_type.values_by_number[item.kind].name
        if len(item.source_input) != 1:
            raise ConfigError(
                f"batch input kind '{kind}' expects 1 source input, got {len(item.source_input)}"
            )
        if item.data_type not in BY_NUMBER or BY_NUMBER[item.data_type].name not in _RAGGED_TYPES:
            raise ConfigError("batch input data type must be TYPE_INT32 or TYPE_FP32")
        if item.source_input[0] not in inputs:
            raise ConfigError(f"unknown source input name '{item.source_input[0]}'")
    _validate_scattered(config, inputs)


def _validate_scattered(config: Any, inputs: set[str]) -> None:
    outputs = {item.name for item in config.output}
    seen: set[str] = set()
    for item in config.batch_output:
        if len(item.source_input) != 1:
            raise ConfigError(
                "batch output kind 'BATCH_SCATTER_WITH_INPUT_SHAPE' expects 1 source input, got "
                f"{len(item.source_input)}"
            )
        if item.source_input[0] not in inputs:
            raise ConfigError(f"unknown source input name '{item.source_input[0]}'")
        for name in item.target_name:
            if name not in outputs:
                raise ConfigError(f"unknown target output name '{name}'")
            if name in seen:
                raise ConfigError(f"target output name '{name}' can only be specified once")
            seen.add(name)
