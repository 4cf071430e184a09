"""What a configuration may say of sequences, states, ragged batches and queues, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.serving.stacking.stacks import configured
from tpx.errors import ConfigError
from tpx.protocol.tensors import encode_bytes
from tpx.serving.repository.configuration import validate
from tpx.serving.repository.scheduling import fill_batching, states_of

IO = (
    "input [{ name: 'x' data_type: TYPE_FP32 dims: [ 2 ] }] "
    "output [{ name: 'y' data_type: TYPE_FP32 dims: [ 2 ] }] "
)


def refused(text: str) -> str:
    """Why a configuration is refused."""
    with pytest.raises(ConfigError) as caught:
        validate(configured(IO + text))
    return caught.value.message


def sequences(text: str) -> str:
    return f"sequence_batching {{ {text} }}"


def control(kind: str, value: str = "int32_false_true: [ 0, 1 ]", name: str = "c") -> str:
    return f"control_input [{{ name: '{name}' control [{{ kind: CONTROL_SEQUENCE_{kind} {value} }}] }}] "


CORRID = "data_type: TYPE_UINT64"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            control("START") + control("START", name="d"),
            "sequence batching specifies multiple CONTROL_SEQUENCE_START tensors for net",
        ),
        (
            control("START") + control("END"),
            "sequence batching control tensor 'c' is specified for multiple control kinds for net",
        ),
        (
            "control_input [{ name: 'c' control [{ kind: CONTROL_SEQUENCE_START }, { kind: "
            "CONTROL_SEQUENCE_END }] }]",
            "sequence batching control tensor 'c' is specified for multiple control kinds for net",
        ),
        (
            control("READY", ""),
            "sequence batching must specify either 'int32_false_true', 'fp32_false_true' or "
            "'bool_false_true' for CONTROL_SEQUENCE_READY for net",
        ),
        (
            control("END", "int32_false_true: [ 0, 1 ] fp32_false_true: [ 0, 1 ]"),
            "sequence batching specifies more than one from 'int32_false_true', 'fp32_false_true' and "
            "'bool_false_true' for CONTROL_SEQUENCE_END for net",
        ),
        (
            control("START", "fp32_false_true: [ 0 ]"),
            "sequence batching control 'fp32_false_true' must have exactly 2 entries for "
            "CONTROL_SEQUENCE_START for net",
        ),
        (
            control("CORRID", "data_type: TYPE_FP32"),
            "unexpected data type for control CONTROL_SEQUENCE_CORRID for net. Allowed data types are "
            "TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING",
        ),
        (
            control("CORRID", CORRID + " int32_false_true: [ 0, 1 ]"),
            "sequence batching must not specify either 'int32_false_true', 'fp32_false_true' or "
            "'bool_false_true' for CONTROL_SEQUENCE_CORRID for net",
        ),
        (control("START", name=""), "sequence batching control tensor must have a name for net"),
        (
            "control_input [{ name: 'c' }]",
            "sequence batching control tensor 'c' must have a control kind for net",
        ),
        (control("START", name="x"), "sequence batching control tensor 'x' of net is also an input"),
        (
            "direct { minimum_slot_utilization: 1.5 }",
            "sequence batching minimum slot utilization must be in range (0.0, 1.0] for net",
        ),
        (
            "oldest { preferred_batch_size: [ 9 ] }",
            "sequence batching preferred batch size must be <= max batch size for net",
        ),
        (
            "oldest { max_candidate_sequences: -1 }",
            "sequence batching max_candidate_sequences must not be negative for net",
        ),
    ],
)
def test_what_is_wrong_with_sequences_is_named(text: str, message: str) -> None:
    assert refused(sequences(text)) == message


def test_every_control_at_once_is_right() -> None:
    kinds = [("START", "bool_false_true: [ false, true ]"), ("END", "fp32_false_true: [ 0, 1 ]")]
    kinds += [("READY", "int32_false_true: [ 0, 1 ]"), ("CORRID", CORRID)]
    text = "".join(control(kind, value, name=kind) for kind, value in kinds)
    validate(configured(IO + sequences(text + "direct { minimum_slot_utilization: 1 }")))


def test_sequences_have_defaults() -> None:
    config = configured(IO + sequences(""))
    fill_batching(config)
    assert not config.sequence_batching.HasField("direct")
    assert config.sequence_batching.max_sequence_idle_microseconds == 1_000_000
    config = configured(IO + sequences("oldest { } max_sequence_idle_microseconds: 5"))
    fill_batching(config)
    assert list(config.sequence_batching.oldest.preferred_batch_size) == [8]
    assert config.sequence_batching.max_sequence_idle_microseconds == 5
    config = configured(IO + sequences("oldest { }"), max_batch_size=0)
    fill_batching(config)
    assert not config.sequence_batching.oldest.preferred_batch_size


@pytest.mark.parametrize("strategy", ["direct { }", "oldest { }"])
def test_sequences_may_be_ragged(strategy: str) -> None:
    ragged = "input [{ name: 'r' data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true }] "
    counts = "batch_input [{ kind: %s target_name: 'n' data_type: TYPE_FP32 source_input: '%s' }] "
    validate(configured(IO + ragged + counts % ("BATCH_ELEMENT_COUNT", "r") + sequences(strategy)))
    assert refused(ragged + counts % ("BATCH_ELEMENT_COUNT", "q") + sequences(strategy)) == (
        "unknown source input name 'q' for net"
    )


# states


def state(more: str = "", dims: str = "2", datatype: str = "FP32", name: str = "s_in") -> str:
    return (
        f"state [{{ input_name: '{name}' output_name: 's_out' data_type: TYPE_{datatype} dims: [ {dims} ] "
        f"{more} }}] "
    )


def initial(more: str, dims: str = "2", datatype: str = "FP32") -> str:
    return f"initial_state {{ name: 'zero' data_type: TYPE_{datatype} dims: [ {dims} ] {more} }}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "state [{ output_name: 's_out' }]",
            "sequence state of net must specify 'input_name' and 'output_name'",
        ),
        (
            "state [{ input_name: 's' output_name: 't' data_type: TYPE_FP32 }]",
            "sequence state 's' of net must specify 'data_type' and 'dims'",
        ),
        (
            state(dims="0"),
            "sequence state 's_in' of net: dimension must be integer >= 1, or -1 to indicate a "
            "variable-size dimension",
        ),
        (state() + state(), "State input name 's_in' specified more than once."),
        (state(name="x"), "State input name 'x' specified more than once."),
    ],
)
def test_what_is_wrong_with_states_is_named(text: str, message: str) -> None:
    assert refused(sequences(text)) == message


def states(text: str, directory: Path) -> Any:
    return states_of(configured(IO + sequences(text)), directory)


def test_a_state_without_an_initial_one_begins_with_zeros_and_ones_for_what_varies(tmp_path: Path) -> None:
    [one] = states(state(dims="-1, 3"), tmp_path)
    assert one.initial.tolist() == [[0, 0, 0]]
    assert one.initial.dtype == np.float32
    [text] = states(state(dims="2", datatype="STRING"), tmp_path)
    assert text.initial.tolist() == [b"", b""]


def test_an_initial_state_of_zeros_has_its_own_shape(tmp_path: Path) -> None:
    [one] = states(state(initial("zero_data: true", "4"), dims="-1"), tmp_path)
    assert one.initial.shape == (4,)


@pytest.mark.parametrize("more", [b"", b"beyond"])
def test_an_initial_state_is_read_from_its_file(tmp_path: Path, more: bytes) -> None:
    (tmp_path / "initial_state").mkdir()
    (tmp_path / "initial_state" / "data").write_bytes(np.array([3, 4], "<f4").tobytes() + more)
    [one] = states(state(initial("data_file: 'data'")), tmp_path)
    assert one.initial.tolist() == [3, 4]
    assert one.initial.flags.owndata


def test_an_initial_state_of_strings_is_read_from_its_file(tmp_path: Path) -> None:
    (tmp_path / "initial_state").mkdir()
    (tmp_path / "initial_state" / "data").write_bytes(encode_bytes([b"a", b"bc"]))
    [one] = states(state(initial("data_file: 'data'", datatype="STRING"), datatype="STRING"), tmp_path)
    assert one.initial.tolist() == [b"a", b"bc"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            state(initial("zero_data: true") + initial("zero_data: true")),
            "initial_state field for state input 's_in' must contain exactly one or zero element. Found '2' "
            "elements.",
        ),
        (
            state(initial("zero_data: true", datatype="INT32")),
            "The data type used for 'initial_state' field of state 's_in' does not match the state data "
            "type.",
        ),
        (
            state(initial("zero_data: true").replace("'zero'", "''")),
            "Field 'name' must be set when using initial_state for state input 's_in'.",
        ),
        (
            state(initial("zero_data: true", "2, 2")),
            "Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions for state "
            "input 's_in'. 2 != 1",
        ),
        (
            state(initial("zero_data: true", "-1"), "-1"),
            "'initial_state' field for state input name 's_in' contains variable dimensions.",
        ),
        (
            state(initial("zero_data: true", "3")),
            "'initial_state' dim for input name 's_in' doesn't match 'state' dim description. 3 != 2",
        ),
        (state(initial("")), "initial_state setting expects state 's_in' to have state_data set"),
        (
            state(initial("data_file: 'short'")),
            "initial_state setting expects 8 bytes, but the data provided from short only has 4 bytes.",
        ),
    ],
)
def test_what_is_wrong_with_an_initial_state_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "initial_state").mkdir()
    (tmp_path / "initial_state" / "short").write_bytes(bytes(4))
    with pytest.raises(ConfigError) as caught:
        states(text, tmp_path)
    assert caught.value.message == message


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "none"])
def test_an_initial_state_lies_in_its_directory_or_nowhere(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret").write_bytes(bytes(8))
    with pytest.raises(ConfigError, match="initial_state"):
        states(state(initial(f"data_file: '{name}'")), tmp_path)


# queues and ragged batches


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("priority_levels: 2", "default priority level must be in range [1, 2] for net"),
        (
            "priority_levels: 2 default_priority_level: 3",
            "default priority level must be in range [1, 2] for net",
        ),
        (
            "priority_levels: 2 default_priority_level: 1 priority_queue_policy { key: 3 value { } }",
            "priority queue policy must have priority level in range [1, 2] for net",
        ),
        (
            "priority_levels: 2 default_priority_level: 1 preserve_ordering: true",
            "Only one priority level is allowed when 'preserve_ordering' is true for net",
        ),
        (
            "preserve_ordering: true default_queue_policy { timeout_action: DELAY "
            "default_timeout_microseconds: 5 }",
            "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for net",
        ),
    ],
)
def test_what_is_wrong_with_a_queue_is_named(text: str, message: str) -> None:
    assert refused(f"dynamic_batching {{ {text} }}") == message


def test_an_action_that_can_never_be_taken_is_no_conflict() -> None:
    queue = "preserve_ordering: true default_queue_policy { timeout_action: DELAY }"
    validate(configured(IO + f"dynamic_batching {{ {queue} }}"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "batch_input [{ kind: BATCH_ELEMENT_COUNT target_name: 't' data_type: TYPE_FP32 }]",
            "batch input kind 'BATCH_ELEMENT_COUNT' expects 1 source input, got 0 for net",
        ),
        (
            "batch_input [{ target_name: 't' data_type: TYPE_INT64 source_input: 'x' }]",
            "batch input data type must be TYPE_INT32 or TYPE_FP32 for net",
        ),
        (
            "batch_input [{ target_name: 't' data_type: TYPE_FP32 source_input: 'z' }]",
            "unknown source input name 'z' for net",
        ),
        ("batch_output [{ target_name: 'z' source_input: 'x' }]", "unknown target output name 'z' for net"),
        (
            "batch_output [{ target_name: [ 'y', 'y' ] source_input: 'x' }]",
            "target output name 'y' can only be specified once for net",
        ),
        ("batch_output [{ target_name: 'y' source_input: 'z' }]", "unknown source input name 'z' for net"),
        (
            "batch_output [{ target_name: 'y' }]",
            "batch output kind 'BATCH_SCATTER_WITH_INPUT_SHAPE' expects 1 source input, got 0 for net",
        ),
    ],
)
def test_what_is_wrong_with_ragged_batches_is_named(text: str, message: str) -> None:
    assert refused(text) == message
