"""Inference requests as protobuf: what we cut out of a message is what protobuf itself finds in it."""

import tracemalloc
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.v2_requests import encode_grpc_request
from tpx.errors import InvalidRequest
from tpx.protocol import messages
from tpx.protocol.datatypes import BY_NAME
from tpx.protocol.protobuf_contents import encode_varint, split_raw_inputs
from tpx.protocol.tensors import Tensor, encode_bytes
from tpx.protocol.v2_protobuf import (
    decode_infer_request,
    request_id_of,
)

TAG = b"\x3a"  # raw_input_contents


def request(raw: list[bytes], **fields: Any) -> Any:
    message = messages.ModelInferRequest(model_name="m", raw_input_contents=raw, **fields)
    for index in range(len(raw)):
        message.inputs.add(name=f"i{index}", datatype="UINT8", shape=[len(raw[index])])
    return message


def as_protobuf_does(data: bytes) -> list[bytes] | None:
    """The raw inputs that protobuf finds; None where it finds no message."""
    try:
        return list(messages.ModelInferRequest.FromString(data).raw_input_contents)
    except DecodeError:
        return None


def as_we_do(data: bytes) -> list[bytes] | None:
    """The raw inputs that the split and protobuf together find."""
    size, views = split_raw_inputs(data)
    try:
        rest = messages.ModelInferRequest.FromString(data[:size])
    except DecodeError:
        return None
    return [*rest.raw_input_contents, *map(bytes, views)]


@given(
    raw=st.lists(st.binary(max_size=300), max_size=5), name=st.text(max_size=20), ident=st.text(max_size=9)
)
def test_the_tensors_of_a_message_are_found_where_they_are(raw: list[bytes], name: str, ident: str) -> None:
    data = messages.ModelInferRequest(model_name=name, id=ident, raw_input_contents=raw).SerializeToString()
    size, views = split_raw_inputs(data)
    assert list(map(bytes, views)) == raw == as_we_do(data)
    assert b"".join(TAG + encode_varint(len(r)) + r for r in raw) == data[size:]


def test_a_field_that_cannot_be_behind_the_tensors_is_protobufs_to_refuse() -> None:
    message = messages.ModelInferRequest(model_name="m", raw_input_contents=[b"a"]).SerializeToString()
    with pytest.raises(InvalidRequest, match="Unable to parse request"):
        decode_infer_request(message + b"\x00\x00" + b"\x3a\x01b")


@given(st.binary(max_size=80))
def test_of_arbitrary_bytes_we_make_what_protobuf_makes(data: bytes) -> None:
    assert as_we_do(data) == as_protobuf_does(data)


ODD = [
    b"\xba\x00\x01x",  # the tag in more bytes than it needs
    b"\xba\x80\x80\x80\x00\x01x",
    b"\xba\x80\x80\x80\x80\x80\x00\x01x",
    TAG + b"\x81\x00x",  # the length likewise
    TAG + b"\x81\x80\x80\x80\x00x",
    TAG + b"\x81\x80\x80\x80\x80\x80\x80\x80\x80\x00x",
    TAG + b"\xff\xff\xff\xff\x0f",
    TAG,
    TAG + b"\x05ab",
    b"\x38\x01",  # the number of the tensors with another type
    b"\x02\x00",  # field 0
    b"\x0b\x0c",  # a group
    b"\x0c",
    b"\x0f",
    b"\x50\xff",
    b"\xff" * 11,
]

field = st.one_of(
    st.binary(max_size=6).map(lambda b: TAG + encode_varint(len(b)) + b),
    st.binary(max_size=6).map(lambda b: b"\x0a" + encode_varint(len(b)) + b),
    st.integers(0, 2**64 - 1).map(lambda n: b"\x50" + encode_varint(n)),
    st.binary(min_size=8, max_size=8).map(lambda b: b"\x59" + b),
    st.binary(min_size=4, max_size=4).map(lambda b: b"\x5d" + b),
    st.sampled_from(ODD),
)


@pytest.mark.parametrize("odd", ODD, ids=bytes.hex)
def test_of_odd_fields_we_make_what_protobuf_makes(odd: bytes) -> None:
    good = TAG + b"\x02ab"
    for data in (odd, odd + good, good + odd, good + odd + good):
        assert as_we_do(data) == as_protobuf_does(data)


@given(st.lists(field, max_size=6))
def test_of_fields_in_any_order_we_make_what_protobuf_makes(fields: list[bytes]) -> None:
    data = b"".join(fields)
    assert as_we_do(data) == as_protobuf_does(data)


MANY = {
    "inputs": b"\x2a\x00",
    "outputs": b"\x32\x00",
    "parameters": b"\x22\x00",
    "tensors": TAG + b"\x00",
}


@pytest.mark.parametrize(
    "start", [b"", b"\x5d1234", TAG + b"\x00"], ids=["alone", "behind odd", "behind tensors"]
)
@pytest.mark.parametrize("what", MANY)
def test_a_message_of_very_many(what: str, start: bytes) -> None:
    data = start + MANY[what] * 100_000
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest, match="at most 16384 inputs, outputs"):
            decode_infer_request(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20
    assert request_id_of(data) == ""


@pytest.mark.parametrize(
    "odd", [b"\x0b\x0c", b"\xaa\x80\x80\x80\x80\x80\x00\x00"], ids=["a group", "a long tag"]
)
def test_what_is_large_and_no_plain_sequence_of_fields_is_not_parsed(odd: bytes) -> None:
    with pytest.raises(InvalidRequest, match="Unable to parse request"):
        decode_infer_request(odd + MANY["outputs"] * (1 << 20))


def test_large_tensors_may_come_before_other_fields() -> None:
    message = request([b"a" * (2 << 20)])
    tensors = messages.ModelInferRequest(raw_input_contents=message.raw_input_contents)
    message.ClearField("raw_input_contents")
    data = tensors.SerializeToString() + message.SerializeToString()
    [tensor] = decode_infer_request(data).inputs
    assert bytes(tensor.data) == b"a" * (2 << 20)


def test_tensors_are_views_of_the_message() -> None:
    data = bytearray(request([b"abc", b"", b"defg"]).SerializeToString())
    decoded = decode_infer_request(data)
    assert [bytes(tensor.data) for tensor in decoded.inputs] == [b"abc", b"", b"defg"]
    data[-1:] = b"X"
    assert bytes(decoded.inputs[2].data) == b"defX"
    assert bytes(data[decoded.tensor_offset :]) == b"\x3a\x03abc\x3a\x00\x3a\x04defX"


def test_a_request_is_decoded_with_everything_it_says() -> None:
    message = request([b"ab"], model_version="3", id="seven")
    for key, value in {"a": True, "b": -5, "c": "text", "d": 2.5}.items():
        kind = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}
        setattr(message.parameters[key], kind[type(value)], value)
    message.outputs.add(name="y").parameters["classification"].int64_param = 3
    decoded = decode_infer_request(message.SerializeToString())
    assert (decoded.model_name, decoded.model_version, decoded.request_id) == ("m", "3", "seven")
    assert decoded.parameters == {"a": True, "b": -5, "c": "text", "d": 2.5}
    assert {key: type(value) for key, value in decoded.parameters.items()} == {
        "a": bool,
        "b": int,
        "c": str,
        "d": float,
    }
    (output,) = decoded.outputs
    assert (output.name, output.classification, output.parameters) == ("y", 3, {})


CONTENTS: dict[str, tuple[str, list[Any]]] = {
    "BOOL": ("bool_contents", [True, False]),
    "INT8": ("int_contents", [-128, 127]),
    "INT16": ("int_contents", [-(2**15), 2**15 - 1]),
    "INT32": ("int_contents", [-(2**31), 2**31 - 1]),
    "INT64": ("int64_contents", [-(2**63), 2**63 - 1]),
    "UINT8": ("uint_contents", [0, 255]),
    "UINT16": ("uint_contents", [0, 2**16 - 1]),
    "UINT32": ("uint_contents", [0, 2**32 - 1]),
    "UINT64": ("uint64_contents", [0, 2**64 - 1]),
    "FP32": ("fp32_contents", [0.5, float("inf")]),
    "FP64": ("fp64_contents", [1e300, -0.0]),
    "BYTES": ("bytes_contents", [b"", b"\0\xff text"]),
}


def typed(datatype: str, field: str, values: list[Any]) -> bytes:
    message = messages.ModelInferRequest(model_name="m")
    item = message.inputs.add(name="x", datatype=datatype, shape=[len(values)])
    getattr(item.contents, field).extend(values)
    data: bytes = message.SerializeToString()
    return data


@pytest.mark.parametrize("datatype", CONTENTS)
def test_typed_contents_become_raw_bytes(datatype: str) -> None:
    field, values = CONTENTS[datatype]
    (tensor,) = decode_infer_request(typed(datatype, field, values)).inputs
    assert tensor.numpy().tolist() == values
    expected = (
        encode_bytes(values) if datatype == "BYTES" else np.array(values, BY_NAME[datatype].numpy).tobytes()
    )
    assert bytes(tensor.data) == expected


@pytest.mark.parametrize(
    ("datatype", "field", "values"),
    [
        ("INT8", "int_contents", [128]),
        ("INT16", "int_contents", [-(2**15) - 1]),
        ("UINT8", "uint_contents", [256]),
        ("UINT16", "uint_contents", [2**16]),
        ("FP32", "fp64_contents", [1.0]),
        ("INT64", "int_contents", [1]),
        ("BYTES", "int_contents", [1]),
        ("FP16", "fp32_contents", [1.0]),
        ("BF16", "fp32_contents", [1.0]),
        ("FP33", "fp32_contents", [1.0]),
    ],
)
def test_contents_that_do_not_fit_the_datatype_are_refused(
    datatype: str, field: str, values: list[Any]
) -> None:
    with pytest.raises(InvalidRequest):
        decode_infer_request(typed(datatype, field, values))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\xff\xff", "not a ModelInferRequest"),
        (
            request(
                [b"a"],
            ).SerializeToString()
            + b"\x3a\x01b",
            "2 raw_input_contents for 1 inputs",
        ),
        (request([b"a", b"b"]).SerializeToString()[:-3], "unable to find data for input tensor 'i1'"),
    ],
)
def test_a_message_whose_tensors_do_not_agree_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        decode_infer_request(data)


def test_what_we_encode_is_what_we_decode() -> None:
    inputs = [
        Tensor.from_numpy("a", np.arange(6, dtype=np.float32).reshape(2, 3)),
        Tensor.from_numpy("b", np.array(["x", "yz"], dtype=np.object_)),
    ]
    data = encode_grpc_request(
        "m", "2", inputs, request_id="r", outputs=["y"], parameters={"p": 1, "q": "s", "t": True, "f": 0.5}
    )
    decoded = decode_infer_request(data)
    assert (decoded.model_name, decoded.model_version, decoded.request_id) == ("m", "2", "r")
    assert decoded.parameters == {"p": 1, "q": "s", "t": True, "f": 0.5}
    assert [output.name for output in decoded.outputs] == ["y"]
    np.testing.assert_array_equal(decoded.inputs[0].numpy(), np.arange(6).reshape(2, 3))
    assert decoded.inputs[1].numpy().tolist() == [b"x", b"yz"]


@pytest.mark.parametrize("value", [0, 1, 127, 128, 16_383, 16_384, 2**32, 2**63])
def test_varints_are_protobufs(value: int) -> None:
    message = messages.InferParameter(uint64_param=value)
    assert message.SerializeToString() == b"\x28" + encode_varint(value)


@pytest.mark.parametrize("value", [0, -1, 2**63 - 1, 2**63, 2**64 - 1])
def test_a_whole_number_of_either_sign_is_the_parameter_that_it_was(value: int) -> None:
    encoded = encode_grpc_request("m", "", [], parameters={"n": value, "flag": True})
    assert decode_infer_request(encoded).parameters == {"n": value, "flag": True}


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(
    ("datatype", "field", "value"),
    [
        ("BOOL", "bool_contents", True),
        ("INT16", "int_contents", -3),
        ("INT64", "int64_contents", -(2**62)),
        ("UINT8", "uint_contents", 200),
        ("UINT64", "uint64_contents", 2**63),
        ("FP32", "fp32_contents", 1.5),
        ("FP64", "fp64_contents", -0.1),
    ],
)
def test_long_explicit_contents_arrive_as_short_ones_do(
    datatype: str, field: str, value: Any, packed: bool
) -> None:
    count = 100_000
    message = messages.ModelInferRequest(model_name="m", id="r")
    message.inputs.add(name="before", datatype="INT32", shape=[1]).contents.int_contents.append(7)
    item = message.inputs.add(name="x", datatype=datatype, shape=[count])
    contents = messages.InferTensorContents(**{field: [value, 0]})
    if packed:
        getattr(item.contents, field).extend([value, 0] * (count // 2))
        data = message.SerializeToString()
    else:
        tag = contents.SerializeToString()[0] & ~7 | {"FP32": 5, "FP64": 1}.get(datatype, 0)
        one = messages.InferTensorContents(**{field: [value]}).SerializeToString()[2:]
        zero = bytes({"FP32": 4, "FP64": 8}.get(datatype, 1))
        many = (bytes((tag,)) + one + bytes((tag,)) + zero) * (count // 2)
        inner = item.SerializeToString()
        data = message.SerializeToString()[: -len(inner) - 2]
        whole = inner + b"\x2a" + encode_varint(len(many)) + many
        data += b"\x2a" + encode_varint(len(whole)) + whole
    decoded = decode_infer_request(data)
    assert decoded.request_id == "r"
    assert decoded.inputs[0].data == np.array([7], np.int32).tobytes()
    numbers = decoded.inputs[1].numpy()
    assert numbers.dtype == BY_NAME[datatype].numpy
    assert (numbers == np.array([value, 0] * (count // 2), numbers.dtype)).all()


@pytest.mark.slow
def test_many_short_strings_take_little_more_memory_than_their_bytes() -> None:
    count = 300_000
    message = messages.ModelInferRequest(model_name="m")
    item = message.inputs.add(name="x", datatype="BYTES", shape=[count])
    item.contents.bytes_contents.extend([b"ab", b"", b"c"] * (count // 3))
    data = message.SerializeToString()
    tracemalloc.start()
    try:
        [tensor] = decode_infer_request(data).inputs
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert tensor.data == encode_bytes([b"ab", b"", b"c"] * (count // 3))
    assert peak < (4 << 20) + 3 * len(data)  # some thousands of strings are objects at a time


@pytest.mark.parametrize("cut", [1, 2, 50])
def test_long_contents_that_end_early_are_refused(cut: int) -> None:
    message = messages.ModelInferRequest(model_name="m")
    message.inputs.add(name="x", datatype="BYTES", shape=[1]).contents.bytes_contents.extend(
        [b"abc"] * 90_000
    )
    data = message.SerializeToString()
    with pytest.raises(InvalidRequest, match="Unable to parse request"):
        decode_infer_request(data[:-cut])


def test_more_strings_than_the_server_takes_are_refused_before_all_are_read() -> None:
    message = messages.ModelInferRequest(model_name="m")
    message.inputs.add(name="x", datatype="BYTES", shape=[1]).contents.bytes_contents.extend(
        [b"abc"] * 90_000
    )
    with pytest.raises(InvalidRequest, match="more than the 1000 that this server accepts"):
        decode_infer_request(message.SerializeToString(), max_strings=1000)
