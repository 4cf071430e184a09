"""Rows of sequences: controls, states, and the rows of nobody."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.serving.stacking.stacks import configured, request
from tpx.errors import ExecutionError, InvalidRequest
from tpx.protocol.v2 import Parameter
from tpx.serving.batch import Arrays, Batch, Stacking
from tpx.serving.repository.scheduling import stacking_of
from tpx.serving.request import InferRequest, LiveSequence
from tpx.serving.stacking.sequences import check_correlation_id, controls_of

IO = (
    "input [{ name: 'x' data_type: TYPE_FP32 dims: [ -1 ] }] "
    "output [{ name: 'y' data_type: TYPE_FP32 dims: [ -1 ] }] "
)
CONTROLS = """
control_input [
  { name: 'start' control [{ kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] }] },
  { name: 'ready' control [{ kind: CONTROL_SEQUENCE_READY fp32_false_true: [ -1, 2.5 ] }] },
  { name: 'end' control [{ kind: CONTROL_SEQUENCE_END bool_false_true: [ false, true ] }] },
  { name: 'id' control [{ kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 }] }
]
"""
STATE = "state [{ input_name: 's_in' output_name: 's_out' data_type: TYPE_FP32 dims: [ 2 ] }]"


class Table:
    """Sequences by id, each in a slot of its own."""

    def __init__(self, config: Any) -> None:
        self.config = config
        self.live: dict[int | str, LiveSequence] = {}

    def part(
        self, correlation_id: int | str, slot: int, flags: str = "", x: tuple[float, ...] = (1, 2)
    ) -> InferRequest:
        parameters: dict[str, Parameter] = {"sequence_id": correlation_id}
        parameters |= {"sequence_start": "S" in flags, "sequence_end": "E" in flags}
        rows = np.array([x] if self.config.max_batch_size else x, np.float32)
        out = request(self.config, {"x": rows}, parameters)
        out.sequence = self.live.setdefault(correlation_id, LiveSequence(correlation_id))
        out.sequence.slot = slot
        return out


def made(batching: str, max_batch_size: int = 8) -> tuple[Table, Stacking]:
    config = configured(f"{IO} sequence_batching {{ {batching} }}", max_batch_size)
    return Table(config), stacking_of(config, Path())


def lists(arrays: Arrays) -> dict[str, Any]:
    return {name: array.tolist() for name, array in arrays.items()}


def test_every_kind_and_type_of_control_tells_of_its_row() -> None:
    table, stacking = made(CONTROLS)
    arrays = stacking.gather(
        Batch([table.part(7, 0, "S"), table.part(8, 1), table.part(9, 2, "E"), table.part(3, 3, "SE")])
    )
    assert arrays["start"].dtype == np.int32
    assert arrays["ready"].dtype == np.float32
    assert arrays["end"].dtype == np.bool_
    assert arrays["id"].dtype == np.uint64
    assert lists(arrays) == {
        "x": [[1, 2]] * 4,
        "start": [[1], [0], [0], [1]],
        "ready": [[2.5]] * 4,
        "end": [[False], [False], [True], [True]],
        "id": [[7], [8], [9], [3]],
    }


def test_slots_without_a_request_are_rows_of_nothing() -> None:
    table, stacking = made(CONTROLS)
    batch = Batch.of_rows([None, table.part(7, 1, "S"), None, table.part(8, 3, "S"), None])
    arrays = stacking.gather(batch)
    assert lists(arrays) == {
        "x": [[0, 0], [1, 2], [0, 0], [1, 2], [0, 0]],
        "start": [[0], [1], [0], [1], [0]],
        "ready": [[-1], [2.5], [-1], [2.5], [-1]],
        "end": [[False]] * 5,
        "id": [[0], [7], [0], [8], [0]],
    }
    stacking.scatter(batch, {"y": np.arange(10, dtype=np.float32).reshape(5, 2)})
    rows = [response.outputs[0].numpy().tolist() for response in batch.responses]
    assert rows == [[[2, 3]], [[6, 7]]]
    assert batch.size == 2


def test_a_batch_of_one_has_the_row_that_it_had_among_others() -> None:
    table, stacking = made(CONTROLS)
    batch = Batch.of_rows([table.part(6, 0, "S"), None, table.part(8, 2, "S")])
    assert stacking.gather(batch.single(0))["id"].tolist() == [[6], [0], [0]]
    assert stacking.gather(batch.single(1))["id"].tolist() == [[0], [0], [8]]
    full = Batch.of_rows([table.part(6, 0), table.part(8, 1)])
    assert stacking.gather(full.single(1))["id"].tolist() == [[0], [8]]


RAGGED_IO = (
    "input [{ name: 'x' data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true }] "
    "output [{ name: 'y' data_type: TYPE_FP32 dims: [ -1 ] }] "
    "batch_input [{ kind: BATCH_ACCUMULATED_ELEMENT_COUNT target_name: 'ends' data_type: TYPE_INT32 "
    "source_input: 'x' }] "
    "batch_output [{ target_name: 'y' kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: 'x' }] "
)


@pytest.mark.parametrize("strategy", ["", "oldest { max_candidate_sequences: 8 } "])
def test_ragged_inputs_of_sequences_lie_end_to_end(strategy: str) -> None:
    config = configured(f"{RAGGED_IO} sequence_batching {{ {strategy} {CONTROLS} {STATE} }}")
    table, stacking = Table(config), stacking_of(config, Path())
    parts = [table.part(7, 0, "S", (1, 2, 3)), table.part(8, 1, "S", (4,)), table.part(9, 2, "S", (5, 6))]
    assert len({part.head.batch_key for part in parts}) == 1
    arrays = stacking.gather(batch := Batch.of_rows(parts))
    assert lists(arrays)["x"] == [1, 2, 3, 4, 5, 6]
    assert lists(arrays)["ends"] == [3, 4, 6]
    assert (lists(arrays)["id"], lists(arrays)["s_in"]) == ([[7], [8], [9]], [[0, 0]] * 3)
    stacking.scatter(batch, {"y": arrays["x"] * 2, "s_out": np.ones((3, 2), np.float32)})
    assert [response.outputs[0].numpy().tolist() for response in batch.responses] == [
        [[2, 4, 6]],
        [[8]],
        [[10, 12]],
    ]
    assert parts[2].live_sequence.states["s_in"].tolist() == [1, 1]


def test_an_empty_slot_has_the_shape_of_the_first_request_where_inputs_are_ragged() -> None:
    config = configured(f"{RAGGED_IO} sequence_batching {{ {CONTROLS} }}")
    table, stacking = Table(config), stacking_of(config, Path())
    batch = Batch.of_rows([None, table.part(7, 1, "S", (1, 2)), None, table.part(8, 3, "S", (3,))])
    arrays = lists(stacking.gather(batch))
    assert (arrays["x"], arrays["ends"]) == ([0, 0, 1, 2, 0, 0, 3], [2, 4, 6, 7])
    assert arrays["ready"] == [[-1], [2.5], [-1], [2.5]]
    stacking.scatter(batch, {"y": np.arange(7, dtype=np.float32)})
    rows = [response.outputs[0].numpy().tolist() for response in batch.responses]
    assert rows == [[[2, 3]], [[6]]]


def test_rows_of_the_oldest_strategy_are_those_of_the_batch_and_no_slots() -> None:
    table, stacking = made("oldest { max_candidate_sequences: 8 } " + CONTROLS)
    arrays = stacking.gather(Batch([table.part(7, 5), table.part(8, 1)]))
    assert arrays["id"].tolist() == [[7], [8]]


def test_without_a_batch_dimension_controls_are_single_elements() -> None:
    table, stacking = made(CONTROLS + STATE, max_batch_size=0)
    arrays = stacking.gather(Batch([table.part(7, 0, "S")]))
    assert lists(arrays) == {
        "x": [1, 2],
        "start": [1],
        "ready": [2.5],
        "end": [False],
        "id": [7],
        "s_in": [0, 0],
    }


@pytest.mark.parametrize("datatype", ["UINT64", "INT64", "UINT32", "INT32"])
def test_numeric_ids_come_in_every_type(datatype: str) -> None:
    table, stacking = made(
        "control_input [{ name: 'id' control [{ kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_"
        + datatype
        + " }] }]"
    )
    [array] = [stacking.gather(Batch([table.part(7, 0)]))["id"]]
    assert (array.dtype.name.upper(), array.tolist()) == (datatype, [[7]])


STRING_ID = (
    "control_input [{ name: 'id' control [{ kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING }] }]"
)


def test_ids_that_are_strings_come_as_strings() -> None:
    table, stacking = made(STRING_ID)
    array = stacking.gather(Batch.of_rows([None, table.part("ä", 1)]))["id"]
    assert array.tolist() == [[b""], ["ä".encode()]]


def controls(batching: str) -> Any:
    return controls_of(configured(f"{IO} sequence_batching {{ {batching} }}"))


@pytest.mark.parametrize(
    ("batching", "correlation_id", "message"),
    [
        (
            CONTROLS,
            "seven",
            "sequence batching control 'id' data-type is 'BYTES', but model 'net' expects 'UINT64'",
        ),
        (
            STRING_ID,
            7,
            "sequence batching control 'id' data-type is 'UINT64', but model 'net' expects 'BYTES'",
        ),
        (
            CONTROLS.replace("UINT64", "INT32"),
            2**31,
            "correlation ID 2147483648 does not fit control 'id' of model 'net', which is INT32",
        ),
    ],
)
def test_an_id_that_its_control_cannot_carry_is_refused(
    batching: str, correlation_id: int | str, message: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_correlation_id("net", controls(batching), correlation_id)
    assert caught.value.message == message


def test_a_model_that_is_not_told_takes_any_id() -> None:
    check_correlation_id("net", controls(""), "x")
    check_correlation_id("net", controls(""), 2**64 - 1)


# states


def computed(stacking: Stacking, batch: Batch) -> list[Any]:
    """One step of a model that adds x to its state; returns what the requests get."""
    arrays = stacking.gather(batch)
    total = arrays["s_in"] + arrays["x"]
    stacking.scatter(batch, {"y": total, "s_out": total})
    return [response.outputs[0].numpy().tolist() for response in batch.responses]


def test_a_state_goes_from_one_request_of_a_sequence_to_the_next() -> None:
    table, stacking = made(STATE)
    for step in (1, 2, 3):
        flags = "S" if step == 1 else ""
        batch = Batch([table.part(7, 0, flags, (1, 10)), table.part(8, 1, flags, (2, 20))])
        assert computed(stacking, batch) == [[[step, 10 * step]], [[2 * step, 20 * step]]]


def test_a_state_is_of_its_sequence_whatever_its_row() -> None:
    table, stacking = made("oldest { max_candidate_sequences: 8 } " + STATE)
    computed(stacking, Batch([table.part(7, 0, "S", (1, 1)), table.part(8, 1, "S", (5, 5))]))
    assert computed(stacking, Batch([table.part(8, 1), table.part(7, 0)])) == [[[6, 7]], [[2, 3]]]


def test_a_start_begins_with_the_initial_state_again() -> None:
    table, stacking = made(STATE)
    computed(stacking, Batch([table.part(7, 0, "S")]))
    assert computed(stacking, Batch([table.part(7, 0, "S")])) == [[[1, 2]]]


def test_rows_of_nobody_have_a_state_of_nothing_and_keep_none() -> None:
    table, stacking = made(STATE)
    computed(stacking, Batch([table.part(7, 0, "S"), table.part(8, 1, "S")]))
    assert computed(stacking, Batch.of_rows([None, table.part(8, 1)])) == [[[2, 4]]]
    assert computed(stacking, Batch([table.part(7, 0)])) == [[[2, 4]]]


def test_states_of_different_shapes_cannot_be_stacked() -> None:
    table, stacking = made(STATE.replace("[ 2 ]", "[ -1 ]"))
    first = table.part(7, 0)
    first.live_sequence.states["s_in"] = np.zeros(3, np.float32)
    with pytest.raises(ExecutionError, match=r"state 's_in' of sequence 8 has shape \[1\], another"):
        stacking.gather(Batch([first, table.part(8, 1)]))


def float32(*shape: int) -> npt.NDArray[np.float32]:
    return np.zeros(shape, np.float32)


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ({"y": float32(1, 2)}, "the model returned no state 's_out'"),
        (
            {"y": float32(1, 2), "s_out": np.zeros((1, 2), np.int64)},
            "state 's_out' has type int64, the configuration says FP32",
        ),
        ({"y": float32(1, 2), "s_out": float32(2, 2)}, r"state 's_out' has shape \[2, 2\], expected 1 rows"),
        ({"s_out": float32(1, 2)}, "the model returned no output 'y'"),
    ],
)
def test_what_a_model_should_have_given_is_an_error_and_changes_no_state(
    outputs: Arrays, message: str
) -> None:
    table, stacking = made(STATE)
    part = table.part(7, 0, "S")
    batch = Batch([part])
    stacking.gather(batch)
    with pytest.raises(ExecutionError, match=message):
        stacking.scatter(batch, outputs)
    assert part.live_sequence.states == {}


def test_of_several_states_all_change_or_none() -> None:
    second = "state [{ input_name: 't_in' output_name: 't_out' data_type: TYPE_INT32 dims: [ 1 ] }]"
    table, stacking = made(STATE + second)
    part = table.part(7, 0, "S")
    batch = Batch([part])
    stacking.gather(batch)
    with pytest.raises(ExecutionError, match="the model returned no state 't_out'"):
        stacking.scatter(batch, {"y": float32(1, 2), "s_out": float32(1, 2)})
    assert part.live_sequence.states == {}
    assert batch.responses == []


def test_a_kept_state_does_not_change_when_the_model_uses_its_memory_again() -> None:
    table, stacking = made(STATE)
    part = table.part(7, 0, "S")
    batch = Batch([part])
    stacking.gather(batch)
    memory = np.full((1, 2), 5, np.float32)
    stacking.scatter(batch, {"y": memory, "s_out": memory})
    memory[:] = 9
    assert part.live_sequence.states["s_in"].tolist() == [5, 5]
