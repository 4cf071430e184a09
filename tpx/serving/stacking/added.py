"""Tensors between server and model that clients do not see, added by sequence and ragged batching."""

from collections.abc import Iterable

from tpx.protocol.messages import ModelConfig, ModelSequenceBatching


def added_inputs(config: ModelConfig) -> dict[str, int]:
    """Return the inputs made by the server, with their DataType numbers (0: unspecified): sequence
    controls and states, batch inputs.
    """
    added: dict[str, int] = {}
    batching = config.sequence_batching
    for control_input in batching.control_input:
        added[control_input.name] = _find_control_type(control_input.control)
    for state in batching.state:
        added[state.input_name] = state.data_type
    for batch_input in config.batch_input:
        for name in batch_input.target_name:
            added[name] = batch_input.data_type
    return added


def taken_outputs(config: ModelConfig) -> dict[str, int]:
    """Return the outputs kept by the server, with their DataType numbers: sequence states."""
    return {state.output_name: state.data_type for state in config.sequence_batching.state}


def _find_control_type(controls: Iterable["ModelSequenceBatching.Control"]) -> int:
    for control in controls:
        if control.data_type:
            return int(control.data_type)
        for field, number in (("int32_false_true", 8), ("fp32_false_true", 11), ("bool_false_true", 1)):
            if len(getattr(control, field)):
                return number
    return 0
