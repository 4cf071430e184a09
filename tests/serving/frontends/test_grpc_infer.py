"""Inference as only gRPC can be asked for it: typed contents, and messages that contradict themselves."""

import math
from typing import Any

import pytest

from tests.serving.frontends.requests import grpc_request, refused
from tests.serving.live import Channel, outputs_of
from tpx.protocol import messages

TYPED = [
    ("double", "FP32", "fp32_contents", [1.0, 2.0], [2.0, 4.0]),
    ("bool", "BOOL", "bool_contents", [True, False], [True, False]),
    ("int8", "INT8", "int_contents", [-128, 127], [-128, 127]),
    ("int64", "INT64", "int64_contents", [-(2**63), 2**63 - 1], [-(2**63), 2**63 - 1]),
    ("uint64", "UINT64", "uint64_contents", [0, 2**64 - 1], [0, 2**64 - 1]),
    ("fp64", "FP64", "fp64_contents", [0.1, math.inf], [0.1, math.inf]),
    ("words", "BYTES", "bytes_contents", [b"", b"a\0b"], [b"", b"a\0b"]),
]


@pytest.mark.parametrize(("model", "datatype", "field", "values", "expected"), TYPED)
def test_typed_contents_of_every_type(
    channel: Channel, model: str, datatype: str, field: str, values: list[Any], expected: list[Any]
) -> None:
    message = messages.ModelInferRequest(model_name=model)
    item = message.inputs.add(name="x", datatype=datatype, shape=[1, 2])
    getattr(item.contents, field).extend(values)
    answer = messages.ModelInferResponse.FromString(channel.send("ModelInfer", message.SerializeToString()))
    assert outputs_of(answer) == {"y": [expected]}


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (grpc_request(), "unable to find data for input tensor 'x' for model 'double' in request."),
        (grpc_request(bytes(8), bytes(8)), "unexpected additional input data for model 'double'"),
        (grpc_request(bytes(8), shape=(1, -1)), "contains one or more invalid dimensions"),
        (grpc_request(bytes(8), shape=(-8, -1)), "contains one or more invalid dimensions"),
        (grpc_request(bytes(8), shape=(1, 2**40)), "input byte size mismatch"),
        (grpc_request(bytes(8), shape=()), "input 'x' has no shape but model requires batch dimension"),
        (grpc_request(bytes(8), datatype="FP33"), "inference input 'x' data-type is '<invalid>', but model"),
        (grpc_request(bytes(8), datatype=""), "inference input 'x' data-type is '<invalid>', but model"),
    ],
)
def test_tensors_that_cannot_be_are_refused(channel: Channel, message: Any, text: str) -> None:
    assert text in refused(channel, message)


def test_contents_that_do_not_belong_are_refused(channel: Channel) -> None:
    both = grpc_request(bytes(8))
    both.inputs[0].contents.fp32_contents.extend([1, 2])
    assert refused(channel, both).startswith(
        "contents field must not be specified when using raw_input_contents"
    )
    wrong = grpc_request()
    wrong.inputs[0].contents.int_contents.extend([1, 2])
    assert refused(channel, wrong).startswith("unexpected explicit tensor data for input tensor 'x'")
    short = grpc_request()
    short.inputs[0].contents.fp32_contents.extend([1])
    assert "input byte size mismatch" in refused(channel, short)
    overflow = messages.ModelInferRequest(model_name="int8")
    overflow.inputs.add(name="x", datatype="INT8", shape=[1, 1]).contents.int_contents.append(1000)
    assert "out of range for INT8" in refused(channel, overflow)


@pytest.mark.parametrize(
    ("key", "field", "value", "text"),
    [
        ("priority", "int64_param", -1, "invalid value for 'priority', expected value >= 0."),
        ("timeout", "string_param", "1", "invalid value type for 'timeout' parameter"),
        ("sequence_start", "int64_param", 1, "invalid value type for 'sequence_start' parameter"),
        ("mine", "", None, "invalid value type for 'mine' parameter"),
    ],
)
def test_parameters_that_cannot_be_are_refused(
    channel: Channel, key: str, field: str, value: Any, text: str
) -> None:
    message = grpc_request(bytes(8))
    if field:
        setattr(message.parameters[key], field, value)
    else:
        message.parameters[key].SetInParent()
    assert text in refused(channel, message)


def test_models_and_versions_that_cannot_be_are_refused(channel: Channel) -> None:
    version, model = grpc_request(bytes(8), model_version="x"), grpc_request(bytes(8), model="double\0")
    assert channel.outcome("ModelInfer", version.SerializeToString()) == "INVALID_ARGUMENT"
    assert channel.outcome("ModelInfer", model.SerializeToString()) == "NOT_FOUND"
