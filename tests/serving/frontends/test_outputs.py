"""The top classes of an output: values, indices, labels, and ties."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.serving.fakes import config_of, decoded, signature_of
from tpx.errors import InvalidRequest
from tpx.protocol.datatypes import BY_NAME
from tpx.protocol.tensors import Tensor
from tpx.protocol.v2 import RequestedOutput
from tpx.serving.frontends.outputs import with_classes
from tpx.serving.request import RequestHead


class Model:
    """What classification needs to know of a model."""

    name, version, retired = "net", 1, False

    def __init__(self, max_batch_size: int) -> None:
        self.max_batch_size = max_batch_size
        self.signature = signature_of(config_of(max_batch_size=max_batch_size, dims=(-1,)))

    def submit(self, request: Any) -> None:
        raise AssertionError("requests are bound here, never submitted")

    def cancelled(self) -> None:
        pass


def classes(
    values: npt.NDArray[Any], count: int, *, labels: tuple[str, ...] = (), batch: bool = True
) -> tuple[tuple[int, ...], list[str]]:
    """Shape and elements of the classes of an output with these values."""
    model = Model(8 if batch else 0)
    rows = [[0.0]] * max(1, len(np.atleast_1d(values))) if batch else [0.0]
    asked = [RequestedOutput(name="y", classification=count)]
    head: RequestHead = model.signature.bind(model, decoded(rows, outputs=asked))  # type: ignore[arg-type]
    head.outputs[0].spec.labels = labels
    datatype = next(d.name for d in BY_NAME.values() if d.numpy == values.dtype and d.name != "BF16")
    [tensor] = with_classes([Tensor.from_numpy("y", values, datatype)], head)
    assert (tensor.name, tensor.datatype) == ("y", "BYTES")
    return tuple(tensor.shape), [element.decode() for element in tensor.numpy().reshape(-1)]


def test_values_are_sorted_with_their_index_and_label() -> None:
    shape, elements = classes(np.array([[0.1, 0.7, 0.2]], np.float32), 3, labels=("cat", "dog"))
    assert shape == (1, 3)
    assert elements == ["0.700000:1:dog", "0.200000:2", "0.100000:0:cat"]


def test_each_row_has_its_own_classes() -> None:
    shape, elements = classes(np.array([[1, 2], [4, 3]], np.float64), 1)
    assert (shape, elements) == ((2, 1), ["2.000000:1", "4.000000:0"])


@pytest.mark.parametrize(
    ("given", "shape"),
    [((0, 3), (0, 2)), ((0,), (0, 1)), ((2, 0), (2, 0)), ((2, 0, 3), (2, 0)), ((), (1, 1))],
)
def test_an_output_of_no_rows_or_of_no_batch_has_classes(
    given: tuple[int, ...], shape: tuple[int, ...]
) -> None:
    assert classes(np.zeros(given, np.float32), 2)[0] == shape


def test_no_more_classes_than_there_are_values() -> None:
    assert classes(np.array([[1, 2]], np.float32), 1000)[0] == (1, 2)


def test_without_a_batch_dimension_the_whole_output_is_one_row() -> None:
    assert classes(np.array([3, 5], np.float32), 1, batch=False) == ((1,), ["5.000000:1"])


def test_rows_of_several_dimensions_are_counted_through() -> None:
    values = np.arange(8, dtype=np.float32).reshape(2, 2, 2)
    assert classes(values, 1) == ((2, 1), ["3.000000:3", "7.000000:3"])


@pytest.mark.parametrize("dtype", ["i1", "u1", "i4", "i8", "u8"])
def test_integers_are_written_as_integers(dtype: str) -> None:
    values = np.array([[1, 100, 7]]).astype(dtype)
    assert classes(values, 2)[1] == ["100:1", "7:2"]


def test_large_integers_are_told_apart() -> None:
    values = np.array([[2**63, 2**63 + 1, 2**63 - 1]], np.uint64)
    assert classes(values, 3)[1] == [f"{2**63 + 1}:1", f"{2**63}:0", f"{2**63 - 1}:2"]
    values = np.array([[-(2**63), 2**62 + 1, 2**62]], np.int64)
    assert classes(values, 3)[1] == [f"{2**62 + 1}:1", f"{2**62}:2", f"{-(2**63)}:0"]


@pytest.mark.parametrize("dtype", ["f4", "i4", "u8"])
def test_equal_values_keep_their_order(dtype: str) -> None:
    elements = classes(np.array([[1, 5, 5, 1, 5]]).astype(dtype), 5)[1]
    assert [element.split(":")[1] for element in elements] == ["1", "2", "4", "0", "3"]


def test_not_a_number_comes_last() -> None:
    elements = classes(np.array([[np.nan, 1, np.inf, -np.inf]], np.float32), 4)[1]
    assert elements == ["inf:2", "1.000000:1", "-inf:3", "nan:0"]


def test_a_tensor_too_large_to_sort_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="classification output tensor too large"):
        classes(np.zeros((1, 1_000_001), np.float32), 1)


def test_empty_rows_have_no_classes() -> None:
    assert classes(np.zeros((2, 0), np.float32), 3) == ((2, 0), [])
