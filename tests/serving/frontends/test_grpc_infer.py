"""Inference over gRPC, through grpcio: tensors, and requests that are told what is wrong with them."""

import math
import struct
from typing import Any

import numpy as np
import pytest

from tests.serving.frontends.requests import grpc_request, refused
from tests.serving.live import Channel, floats, infer_message, outputs_of
from tpx.protocol import messages
from tpx.protocol.tensors import encode_bytes


def test_raw_tensors_go_in_and_come_out(channel: Channel) -> None:
    answer = channel.infer("two", {"a": floats([5, 6]), "b": floats([1, 2])}, id="7")
    assert (answer.model_name, answer.model_version, answer.id) == ("two", "1", "7")
    assert [(o.name, o.datatype, list(o.shape)) for o in answer.outputs] == [
        ("sum", "FP32", [1, 2]),
        ("difference", "FP32", [1, 2]),
    ]
    assert outputs_of(answer) == {"sum": [[6, 8]], "difference": [[4, 4]]}
    assert not any(output.HasField("contents") for output in answer.outputs)


def test_outputs_come_as_asked(channel: Channel) -> None:
    inputs = {"a": floats([5, 6]), "b": floats([1, 2])}
    answer = channel.infer("two", inputs, outputs=[{"name": "difference"}])
    assert outputs_of(answer) == {"difference": [[4, 4]]}


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


@pytest.mark.parametrize("datatype", [np.float16, np.uint64, np.int8, np.bool_])
def test_raw_tensors_of_other_types(channel: Channel, datatype: Any) -> None:
    names = {np.float16: "fp16", np.uint64: "uint64", np.int8: "int8", np.bool_: "bool"}
    array = np.array([[1, 0, 1]]).astype(datatype)
    assert outputs_of(channel.infer(names[datatype], {"x": array})) == {"y": array.tolist()}


def test_bfloat16_comes_back_bit_by_bit(channel: Channel) -> None:
    raw = struct.pack("<HH", 0x3FC0, 0xFF80)
    message = messages.ModelInferRequest(model_name="bf16", raw_input_contents=[raw])
    message.inputs.add(name="x", datatype="BF16", shape=[1, 2])
    answer = messages.ModelInferResponse.FromString(channel.send("ModelInfer", message.SerializeToString()))
    assert list(answer.raw_output_contents) == [raw]


def test_classes(channel: Channel) -> None:
    message = messages.ModelInferRequest.FromString(infer_message("label", {"x": floats([1, 3, 2])}))
    message.outputs.add(name="y").parameters["classification"].int64_param = 2
    answer = messages.ModelInferResponse.FromString(channel.send("ModelInfer", message.SerializeToString()))
    assert outputs_of(answer) == {"y": [[b"3.000000:1:dog", b"2.000000:2"]]}
    assert answer.outputs[0].datatype == "BYTES"


def test_unknown_models_are_not_found(channel: Channel) -> None:
    data = grpc_request(bytes(8), model="nobody").SerializeToString()
    assert channel.error("ModelInfer", data) == (
        "NOT_FOUND",
        "Request for unknown model: 'nobody' is not found",
    )
    data = grpc_request(bytes(8), model_version="x").SerializeToString()
    assert channel.error("ModelInfer", data)[0] == "INVALID_ARGUMENT"
    data = grpc_request(bytes(8), model="double\0").SerializeToString()
    assert channel.error("ModelInfer", data)[0] == "NOT_FOUND"


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (
            grpc_request(bytes(4)),
            "input byte size mismatch for input 'x' for model 'double'. Expected 8, got 4",
        ),
        (
            grpc_request(bytes(12)),
            "input byte size mismatch for input 'x' for model 'double'. Expected 8, got 12",
        ),
        (grpc_request(), "unable to find data for input tensor 'x' for model 'double' in request."),
        (grpc_request(bytes(8), bytes(8)), "unexpected additional input data for model 'double'"),
        (grpc_request(bytes(8), shape=(1, -1)), "contains one or more invalid dimensions"),
        (grpc_request(bytes(8), shape=(-8, -1)), "contains one or more invalid dimensions"),
        (grpc_request(bytes(8), shape=(2**62 + 2,)), "byte size overflow for input 'x'"),
        (grpc_request(bytes(8), shape=(2**62,)), "byte size overflow for input 'x'"),
        (grpc_request(bytes(8), shape=(2**32, 2**32)), "causes total element count to exceed maximum size"),
        (grpc_request(bytes(8), shape=(1, 2**40)), "input byte size mismatch"),
        (grpc_request(bytes(8), shape=()), "input 'x' has no shape but model requires batch dimension"),
        (grpc_request(bytes(8), shape=(2,)), "unexpected shape for input 'x' for model 'double'"),
        (grpc_request(bytes(20), shape=(5, 1)), "inference request batch-size must be <= 4 for 'double'"),
        (grpc_request(b"", shape=(0, 2)), "inference request batch-size must be >= 1 for 'double'"),
        (grpc_request(bytes(8), datatype="FP33"), "inference input 'x' data-type is '<invalid>', but model"),
        (grpc_request(bytes(8), datatype=""), "inference input 'x' data-type is '<invalid>', but model"),
        (grpc_request(bytes(8), datatype="INT32"), "data-type is 'INT32', but model 'double' expects 'FP32'"),
    ],
)
def test_tensors_that_cannot_be_are_refused(channel: Channel, message: Any, text: str) -> None:
    assert text in refused(channel, message)


@pytest.mark.parametrize("raw", [b"\xff\xff\xff\xff", b"\x01\x00", encode_bytes([b"a"]), b""])
def test_strings_with_lengths_that_lie_are_refused(channel: Channel, raw: bytes) -> None:
    message = grpc_request(raw, datatype="BYTES", model="words")
    assert "for inference input 'x' for model 'words'" in refused(channel, message)


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


def test_inputs_and_outputs_that_are_unknown_or_given_twice_are_refused(channel: Channel) -> None:
    twice = grpc_request(bytes(8), bytes(8), id="9")
    twice.inputs.add(name="x", datatype="FP32", shape=[1, 2])
    assert refused(channel, twice) == "[request id: 9] input 'x' already exists in request"
    outputs = grpc_request(bytes(8))
    outputs.outputs.add(name="y")
    outputs.outputs.add(name="y")
    assert refused(channel, outputs).endswith("output 'y' already exists in request")
    outputs.outputs[1].name = "z"
    assert refused(channel, outputs).endswith("unexpected inference output 'z' for model 'double'")
    assert "expected 1 inputs but got 0 inputs" in refused(
        channel, messages.ModelInferRequest(model_name="double")
    )


@pytest.mark.parametrize(
    ("key", "field", "value", "text"),
    [
        ("triton_x", "bool_param", True, "parameter keys starting with 'triton_' are reserved"),
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


@pytest.mark.parametrize("value", [-1, "3"])
def test_a_number_of_classes_that_is_none_is_refused(channel: Channel, value: Any) -> None:
    message = grpc_request(bytes(8))
    parameter = message.outputs.add(name="y").parameters["classification"]
    setattr(parameter, "string_param" if isinstance(value, str) else "int64_param", value)
    assert "for 'classification'" in refused(channel, message)


def test_giant_ids_and_names_are_answered(channel: Channel) -> None:
    giant = "g" * (1 << 20)
    assert channel.infer("double", {"x": floats([1, 2])}, id=giant).id == giant
    message = grpc_request(bytes(8))
    message.inputs[0].name = giant
    assert "unexpected inference input 'ggg" in refused(channel, message)
