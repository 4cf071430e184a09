"""JSON values become tensors exactly, or not at all."""

import tracemalloc
from typing import Any

import numpy as np
import pytest

from tpx.errors import InvalidRequest
from tpx.protocol.json_values import encode_values, json_data
from tpx.protocol.tensors import Tensor, as_array


@pytest.mark.parametrize(
    ("datatype", "values"),
    [
        ("FP32", [True, 2]),
        ("INT32", [1, False]),
        ("FP32", [1e39]),
        ("FP32", ["1"]),
        ("FP32", [None, 1]),
        ("INT8", [128]),
        ("UINT8", [-1]),
        ("INT32", [1.5]),
        ("UINT64", [2**64]),
        ("BOOL", [0, 1]),
        ("BYTES", [1]),
        ("BYTES", ["\ud800"]),
    ],
)
def test_a_value_that_the_datatype_does_not_hold_is_refused(datatype: str, values: list[Any]) -> None:
    with pytest.raises(InvalidRequest):
        encode_values("x", datatype, len(values), values)


@pytest.mark.parametrize(
    ("datatype", "values"),
    [
        ("FP32", [1, 2.5, -0.0]),
        ("FP32", [float("inf"), float("-inf"), float("nan")]),
        ("FP64", [1e300, 2**53]),
        ("UINT64", [2**64 - 1, 1]),
        ("INT64", [-(2**63), 2**63 - 1]),
        ("BOOL", [True, False]),
    ],
)
def test_a_value_that_the_datatype_holds_arrives_unchanged(datatype: str, values: list[Any]) -> None:
    data = encode_values("x", datatype, len(values), values)
    np.testing.assert_array_equal(as_array(data, datatype, (len(values),)).tolist(), values)


def test_a_long_text_among_numbers_is_refused_before_it_is_one_of_many() -> None:
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest, match="non-number as double"):
            encode_values("x", "FP32", 1001, [*range(1000), "x" * 10_000])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


def test_nested_and_flat_data_mean_the_same() -> None:
    nested = encode_values("x", "INT16", 6, [[1, 2, 3], [4, 5, 6]])
    assert bytes(nested) == bytes(encode_values("x", "INT16", 6, [1, 2, 3, 4, 5, 6]))


def test_what_is_beside_nan_is_told_as_without_it() -> None:
    values = np.array([0.1, np.nan, -np.inf, np.inf, 1e-9, np.nan], dtype=np.float32)
    assert json_data(Tensor.from_numpy("y", values)) == b"[0.1,NaN,-Infinity,Infinity,1e-9,NaN]"
