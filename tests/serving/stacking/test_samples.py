"""Batches whose samples have shapes of their own."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.serving.stacking.stacks import configured, request
from tpx.errors import ExecutionError
from tpx.protocol.tensors import Tensor
from tpx.serving.batch import Batch
from tpx.serving.stacking.samples import SampleStacking

IO = (
    "input [{ name: 'x' data_type: TYPE_INT32 dims: [-1] allow_ragged_batch: true }]"
    "output [{ name: 'y' data_type: TYPE_INT32 dims: [-1] }]"
)


def batch(*arrays: npt.NDArray[Any], max_batch_size: int = 8) -> Batch:
    """One request for each array."""
    config = configured(IO, max_batch_size)
    return Batch([request(config, {"x": array}) for array in arrays])


def ints(*rows: list[int]) -> npt.NDArray[np.int32]:
    return np.array(rows, np.int32)


def samples(*values: list[int]) -> npt.NDArray[Any]:
    """One array per sample."""
    found = np.empty(len(values), np.object_)
    for index, value in enumerate(values):
        found[index] = np.array(value, np.int32)
    return found


def answers(stacking: SampleStacking, todo: Batch, outputs: Mapping[str, Any]) -> list[list[Any]]:
    """What each request gets as y."""
    stacking.scatter(todo, dict(outputs))
    tensors: list[Tensor] = [response.outputs[0] for response in todo.responses]
    return [tensor.numpy().tolist() for tensor in tensors]


def test_samples_of_one_shape_are_one_array() -> None:
    gathered = SampleStacking(batched=True).gather(batch(ints([1, 2], [3, 4]), ints([5, 6])))
    assert gathered["x"].tolist() == [[1, 2], [3, 4], [5, 6]]


def test_samples_of_different_shapes_come_one_by_one() -> None:
    gathered = SampleStacking(batched=True).gather(batch(ints([1, 2], [3, 4]), ints([5, 6, 7])))
    assert [each.tolist() for each in gathered["x"]] == [[1, 2], [3, 4], [5, 6, 7]]


@pytest.mark.parametrize("outputs", [ints([1], [2], [3]), samples([1], [2], [3])])
def test_each_request_gets_its_samples(outputs: npt.NDArray[Any]) -> None:
    todo = batch(ints([0], [0]), ints([0]))
    assert answers(SampleStacking(batched=True), todo, {"y": outputs}) == [[[1], [2]], [[3]]]


def test_requests_may_get_samples_of_different_shapes_but_one_request_may_not() -> None:
    stacking = SampleStacking(batched=True)
    apart = batch(ints([0], [0]), ints([0]))
    assert answers(stacking, apart, {"y": samples([1], [2], [3, 4])}) == [[[1], [2]], [[3, 4]]]
    with pytest.raises(ExecutionError, match=r"'y' has samples of different shapes \(\[1\], \[2\]\)"):
        answers(stacking, batch(ints([0], [0])), {"y": samples([1], [2, 3])})


def test_joined_outputs_lay_samples_end_to_end() -> None:
    stacking = SampleStacking(batched=True, joined=frozenset({"y"}))
    todo = batch(ints([0], [0]), ints([0]))
    assert answers(stacking, todo, {"y": samples([1, 2], [3], [4])}) == [[1, 2, 3], [4]]


def test_without_a_batch_dimension_a_request_is_one_sample() -> None:
    stacking = SampleStacking(batched=False)
    todo = batch(np.array([7, 8], np.int32), max_batch_size=0)
    assert stacking.gather(todo)["x"].tolist() == [[7, 8]]
    assert answers(stacking, todo, {"y": ints([9, 9, 9])}) == [[9, 9, 9]]


def test_an_output_that_is_missing_or_too_short_is_named() -> None:
    todo = batch(ints([0], [0]))
    with pytest.raises(ExecutionError, match="returned no output 'y'"):
        SampleStacking(batched=True).scatter(todo, {})
    with pytest.raises(ExecutionError, match="'y' has 1 samples, fewer than"):
        SampleStacking(batched=True).scatter(todo, {"y": ints([1])})
