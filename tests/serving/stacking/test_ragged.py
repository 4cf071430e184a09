"""Requests of different shapes, end to end, and what a model is told about them."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.serving.stacking.stacks import configured, request
from tpx.errors import ExecutionError
from tpx.serving.batch import Batch
from tpx.serving.repository.scheduling import stacking_of
from tpx.serving.request import InferRequest

RAGGED = """
input [
  { name: 'x' data_type: TYPE_FP32 dims: [ -1, -1 ] allow_ragged_batch: true },
  { name: 'flat' data_type: TYPE_INT32 dims: [ 1 ] }
]
output [
  { name: 'y' data_type: TYPE_FP32 dims: [ -1, -1 ] },
  { name: 'sum' data_type: TYPE_FP32 dims: [ 1 ] }
]
"""
SCATTER = "batch_output [{ target_name: 'y' kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: 'x' }]"


def added(kind: str, datatype: str = "TYPE_FP32") -> str:
    return f"batch_input [{{ kind: {kind} target_name: 'told' data_type: {datatype} source_input: 'x' }}]"


def requests(config: Any, *shapes: tuple[int, int, int]) -> list[InferRequest]:
    """One of each shape, batch dimension first; the elements are numbered through."""
    out, number = [], 0
    for shape in shapes:
        count = int(np.prod(shape))
        x = np.arange(number, number + count, dtype=np.float32).reshape(shape)
        number += count
        out.append(request(config, {"x": x, "flat": np.full((shape[0], 1), count, np.int32)}))
    return out


def told(kind: str, *shapes: tuple[int, int, int], datatype: str = "TYPE_FP32") -> npt.NDArray[Any]:
    config = configured(RAGGED + added(kind, datatype))
    return stacking_of(config, Path()).gather(Batch(requests(config, *shapes)))["told"]


SHAPES = ((1, 2, 3), (2, 1, 1), (1, 4, 1))


def test_requests_of_different_shapes_have_the_same_key() -> None:
    keys = {r.head.batch_key for r in requests(configured(RAGGED), *SHAPES)}
    assert len(keys) == 1


def test_ragged_inputs_lie_end_to_end_and_the_others_are_stacked() -> None:
    config = configured(RAGGED)
    arrays = stacking_of(config, Path()).gather(Batch(requests(config, *SHAPES)))
    assert arrays["x"].tolist() == list(range(12))
    assert arrays["flat"].tolist() == [[6], [2], [2], [4]]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("BATCH_ELEMENT_COUNT", [6, 2, 4]),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT", [6, 8, 12]),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO", [0, 6, 8, 12]),
        ("BATCH_ITEM_SHAPE", [[2, 3], [1, 1], [1, 1], [4, 1]]),
        ("BATCH_ITEM_SHAPE_FLATTEN", [2, 3, 1, 1, 1, 1, 4, 1]),
    ],
)
@pytest.mark.parametrize("datatype", ["TYPE_FP32", "TYPE_INT32"])
def test_each_kind_of_batch_input_tells_what_it_says(kind: str, expected: Any, datatype: str) -> None:
    array = told(kind, *SHAPES, datatype=datatype)
    assert array.tolist() == expected
    assert array.dtype == (np.float32 if datatype == "TYPE_FP32" else np.int32)


def test_the_largest_count_is_told_as_a_shape() -> None:
    assert told("BATCH_MAX_ELEMENT_COUNT_AS_SHAPE", *SHAPES).shape == (6,)


def test_one_batch_input_may_have_several_targets() -> None:
    config = configured(RAGGED + added("BATCH_ELEMENT_COUNT").replace("'told'", "[ 'a', 'b' ]"))
    arrays = stacking_of(config, Path()).gather(Batch(requests(config, *SHAPES)))
    assert arrays["a"].tolist() == arrays["b"].tolist() == [6, 2, 4]


def test_an_output_is_split_as_the_input_that_it_follows() -> None:
    config = configured(RAGGED + SCATTER)
    stacking = stacking_of(config, Path())
    batch = Batch(requests(config, *SHAPES))
    arrays = stacking.gather(batch)
    sums = np.array([[15], [6], [7], [38]], np.float32)
    stacking.scatter(batch, {"y": arrays["x"] * 2, "sum": sums})
    parts = [{t.name: t.numpy() for t in response.outputs} for response in batch.responses]
    assert [part["y"].shape for part in parts] == [*SHAPES]
    assert [part["y"].ravel().tolist() for part in parts] == [
        [0, 2, 4, 6, 8, 10],
        [12, 14],
        [16, 18, 20, 22],
    ]
    assert [part["sum"].tolist() for part in parts] == [[[15]], [[6], [7]], [[38]]]


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (np.zeros(11, np.float32), "output 'y' has 11 elements, fewer than its requests' inputs"),
        (np.zeros(12, np.float64), "output 'y' has type float64, the configuration says FP32"),
    ],
)
def test_an_output_that_cannot_be_split_is_an_error(output: npt.NDArray[Any], message: str) -> None:
    config = configured(RAGGED + SCATTER)
    batch = Batch(requests(config, *SHAPES))
    stacking = stacking_of(config, Path())
    stacking.gather(batch)
    with pytest.raises(ExecutionError) as caught:
        stacking.scatter(batch, {"y": output, "sum": np.zeros((4, 1), np.float32)})
    assert caught.value.message == message


def test_without_a_batch_dimension_a_model_is_told_of_its_one_request() -> None:
    text = RAGGED + SCATTER + added("BATCH_ELEMENT_COUNT")
    config = configured(text, max_batch_size=0)
    batch = Batch(
        [request(config, {"x": np.arange(6, dtype=np.float32).reshape(2, 3), "flat": np.ones(1, np.int32)})]
    )
    stacking = stacking_of(config, Path())
    arrays = stacking.gather(batch)
    assert {name: array.tolist() for name, array in arrays.items()} == {
        "x": [0, 1, 2, 3, 4, 5],
        "flat": [1],
        "told": [6],
    }
    stacking.scatter(batch, {"y": arrays["x"], "sum": np.full(1, 15, np.float32)})
    assert [tensor.shape for tensor in batch.responses[0].outputs] == [(2, 3), (1,)]
