"""Outputs compared with expected ones: by bits, within a tolerance, as text."""

import math

import numpy as np
import pytest

from tpx.errors import UsageError
from tpx.perf.inputs.base import EXACT, Tolerance, parse_tolerance
from tpx.perf.inputs.steps import difference
from tpx.perf.inputs.values import encode_values
from tpx.protocol.datatypes import BY_NAME
from tpx.protocol.tensors import Tensor

NAN = math.nan


def tensor(datatype: str, *values: object) -> Tensor:
    return Tensor("y", datatype, (len(values),), encode_values(values, datatype, "here"))


@pytest.mark.parametrize("datatype", list(BY_NAME))
def test_every_datatype_is_equal_to_itself_and_differs_where_one_element_does(datatype: str) -> None:
    values: list[object] = ["a", "b"] if datatype == "BYTES" else [1, 0]
    other: list[object] = ["a", "c"] if datatype == "BYTES" else [1, 1]
    for tolerance in (EXACT, Tolerance(0.01, 0.01)):
        assert difference(tensor(datatype, *values), tensor(datatype, *values), tolerance) == ""
        wrong = difference(tensor(datatype, *values), tensor(datatype, *other), tolerance)
        assert "element 1 is" in wrong
        assert "(1 of 2 differ)" in wrong


@pytest.mark.parametrize("datatype", ["FP16", "BF16", "FP32", "FP64"])
def test_floats_may_be_as_far_off_as_the_tolerance_says(datatype: str) -> None:
    expected, found = tensor(datatype, 100.0, 0.0), tensor(datatype, 101.0, 0.5)
    assert difference(expected, found, Tolerance(0.5, 0.01)) == ""
    assert "element 1 is 0.5, expected 0.0" in difference(expected, found, Tolerance(0.4, 0.01))
    assert "element 0 is 101.0, expected 100.0" in difference(expected, found, Tolerance(0.5, 0.004))


def test_integers_may_be_off_too() -> None:
    assert difference(tensor("INT32", 7), tensor("INT32", 8), Tolerance(1)) == ""


def test_nan_is_nan_within_a_tolerance_and_exactly_by_its_bits() -> None:
    other_nan = Tensor("y", "FP32", (1,), np.array([0x7FC00001], "<u4").tobytes())
    assert difference(tensor("FP32", NAN), tensor("FP32", NAN)) == ""
    assert difference(tensor("FP32", NAN), other_nan) != ""
    assert difference(tensor("FP32", NAN), other_nan, Tolerance(1e-9)) == ""
    assert difference(tensor("FP32", NAN), tensor("FP32", 1.0), Tolerance(1e-9)) != ""
    assert difference(tensor("FP32", 0.0), tensor("FP32", -0.0)) != ""
    assert difference(tensor("FP32", math.inf), tensor("FP32", 1.0), Tolerance(1, 1)) != ""


def test_another_size_or_datatype_and_nothing_at_all_are_told() -> None:
    assert "2 elements, expected 1" in difference(tensor("FP32", 1), tensor("FP32", 1, 2))
    assert difference(tensor("FP32", 1), tensor("INT32", 1)) == "it is INT32, expected FP32"
    assert difference(tensor("FP32", 1), None) == "it is not in the response"


@pytest.mark.parametrize(
    ("text", "tolerance"),
    [("0.1", Tolerance(0.1, 0)), ("0,1e-3", Tolerance(0, 0.001)), ("1,2", Tolerance(1, 2))],
)
def test_a_tolerance_is_absolute_and_relative(text: str, tolerance: Tolerance) -> None:
    assert parse_tolerance(text) == tolerance


@pytest.mark.parametrize("text", ["", "a", "-1", "1,-1", "nan", "inf", "1,2,3"])
def test_a_bad_tolerance_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="Failed to parse --tolerance"):
        parse_tolerance(text)
