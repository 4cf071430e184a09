"""What a model says besides its outputs is judged where it says it: some of it no protocol can tell."""

import json

import pytest

from tpx.serving.backends.python.worker.errors import TritonModelException
from tpx.serving.backends.python.worker.request import InferenceRequest
from tpx.serving.backends.python.worker.response import InferenceResponse


@pytest.mark.parametrize(
    "value", [2**64, -(2**63) - 1, 10**5000, "\ud800"], ids=["large", "small", "huge", "half"]
)
def test_a_parameter_that_cannot_be_told_is_refused(value: int | str) -> None:
    with pytest.raises(TritonModelException, match="parameter 'p'"):
        InferenceResponse(parameters={"p": value})


def test_a_parameter_whose_name_cannot_be_told_is_refused() -> None:
    with pytest.raises(TritonModelException, match="must be Unicode text"):
        InferenceResponse(parameters={"\ud800": 1})


@pytest.mark.parametrize("value", [2**64 - 1, -(2**63), "ü", True, 1.5])
def test_a_parameter_that_can_be_told_is(value: object) -> None:
    assert json.loads(InferenceResponse(parameters={"p": value}).parameters()) == {"p": value}


def test_a_request_may_have_any_whole_number() -> None:
    assert json.loads(InferenceRequest(parameters={"p": 2**70}).parameters()) == {"p": 2**70}
