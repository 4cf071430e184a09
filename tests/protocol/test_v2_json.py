"""Inference requests as JSON, with tensors in it and behind it."""

import json
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.v2_requests import encode_infer_request
from tpx.errors import InvalidRequest
from tpx.protocol.datatypes import BY_NAME
from tpx.protocol.json_outline import MAX_JSON_DEPTH
from tpx.protocol.tensors import Tensor, encode_bytes
from tpx.protocol.v2 import DecodedRequest
from tpx.protocol.v2_json import MAX_ELEMENTS, decode_infer_request, element_count

LIMIT = 64 << 20


def decode(head: Any, tail: bytes = b"", *, limit: int = LIMIT) -> DecodedRequest:
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    return decode_infer_request("m", text + tail, len(text) if tail else None, limit)


def one_input(**fields: Any) -> dict[str, Any]:
    return {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2]} | fields]}


def test_binary_tensors_are_views_of_the_body() -> None:
    head = {
        "id": "seven",
        "parameters": {"binary_data_output": True, "priority": 2, "note": "text", "flag": False, "f": 0.5},
        "inputs": [
            {"name": "a", "datatype": "UINT8", "shape": [3], "parameters": {"binary_data_size": 3}},
            {"name": "b", "datatype": "INT16", "shape": [1], "parameters": {"binary_data_size": 2}},
        ],
        "outputs": [
            {"name": "y", "parameters": {"classification": 3}},
            {"name": "z", "parameters": {"binary_data": True, "other": 1}},
        ],
    }
    text = json.dumps(head).encode()
    body = bytearray(text + b"abc\x01\x02")
    decoded = decode_infer_request("m", body, len(text), LIMIT)
    assert decoded.request_id == "seven"
    assert decoded.default_binary
    assert decoded.parameters == {"priority": 2, "note": "text", "flag": False, "f": 0.5}
    assert decoded.tensor_offset == len(text)
    assert [(o.name, o.binary, o.classification, o.parameters) for o in decoded.outputs] == [
        ("y", False, 3, {}),
        ("z", True, 0, {"other": 1}),
    ]
    body[len(text)] = ord("X")
    assert bytes(decoded.inputs[0].data) == b"Xbc"
    assert decoded.inputs[1].numpy().tolist() == [513]


def test_tensors_in_the_json_and_behind_it_may_be_mixed() -> None:
    head = one_input()
    head["inputs"].append(
        {"name": "y", "datatype": "UINT8", "shape": [2], "parameters": {"binary_data_size": 2}}
    )
    decoded = decode(head, b"\x07\x08")
    assert [tensor.numpy().tolist() for tensor in decoded.inputs] == [[1, 2], [7, 8]]
    assert decoded.tensor_offset == -1, "the bytes before the tensors are not all that matters"


numbers: dict[str, st.SearchStrategy[Any]] = {
    "BOOL": st.booleans(),
    **{
        name: st.integers(int(np.iinfo(kind.numpy).min), int(np.iinfo(kind.numpy).max))
        for name, kind in BY_NAME.items()
        if name.startswith(("INT", "UINT"))
    },
    "FP32": st.floats(width=32),
    "FP64": st.floats(),
    "BYTES": st.text(st.characters(codec="utf-8"), max_size=20),
}


@given(data=st.data())
@pytest.mark.parametrize("datatype", numbers)
def test_every_value_of_every_datatype_travels_both_ways(datatype: str, data: st.DataObject) -> None:
    values = data.draw(st.lists(numbers[datatype], max_size=6))
    if datatype == "BYTES":
        raw = encode_bytes([value.encode() for value in values])
    else:
        raw = np.array(values, dtype=BY_NAME[datatype].numpy).tobytes()
    tensor = Tensor("x", datatype, [len(values)], raw)
    head, tail = encode_infer_request([tensor], binary=False)
    assert tail == []
    assert bytes(decode(head).inputs[0].data) == raw or _only_nan_differs(decode(head), tensor)


def _only_nan_differs(decoded: DecodedRequest, tensor: Tensor) -> bool:
    """There are many NaN, and JSON has one word for them."""
    return bool(np.array_equal(decoded.inputs[0].numpy(), tensor.numpy(), equal_nan=True))


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_half_precision_does_not_travel_in_json(datatype: str) -> None:
    with pytest.raises(InvalidRequest, match=f"{datatype} data via JSON"):
        encode_infer_request([Tensor("x", datatype, [1], b"ab")], binary=False)
    with pytest.raises(InvalidRequest, match=f"{datatype} data via JSON"):
        decode(one_input(datatype=datatype))


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_the_words_that_json_lacks_are_understood(word: str) -> None:
    text = json.dumps(one_input()).replace("[1, 2]", f"[{word}, 2]").encode()
    first, second = decode(text).inputs[0].numpy().tolist()
    assert str(first).lower().startswith(word[:3].lower())
    assert second == 2


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"inputs": NaN}',
        b'{"inputs": [], "id": NaN}',
        b'{"inputs":[{"name":"x","datatype":"FP32","shape":[NaN],"data":[1]}]}',
        b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[NaN}]}',
        b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[NaN, 1e999]}]}',
        b'{"inputs":[{"name":"x","datatype":"INT32","shape":[2],"data":[NaN, 1]}]}',
        b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[' + b"9" * 5000 + b"]}]}",
        b'{"inputs":[{"name":"x","datatype":"FP32","shape":[2],"data":[NaN,' + b"9" * 5000 + b"]}]}",
        b"\xff\xfe{}",
        b"\xef\xbb\xbf{}",
    ],
)
def test_what_is_no_request_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidRequest):
        decode(text)


@pytest.mark.parametrize("depth", [MAX_JSON_DEPTH + 2, 900, 2000, 250_000])
@pytest.mark.parametrize("inside", ["data", "parameters", "inputs", "with NaN"])
def test_depth_is_refused_and_does_not_end_the_process(depth: int, inside: str) -> None:
    nest = b"[" * depth + b"1" + b"]" * depth
    text = {
        "data": b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":%b}]}' % nest,
        "parameters": b'{"inputs":[],"parameters":{"a":%b}}' % nest,
        "inputs": b'{"inputs":%b}' % nest,
        "with NaN": b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[NaN,%b]}]}' % nest,
    }[inside]
    with pytest.raises(InvalidRequest):
        decode(text)


def test_data_nested_to_the_limit_is_taken() -> None:
    nest = "[" * MAX_JSON_DEPTH + "1" + "]" * MAX_JSON_DEPTH
    text = json.dumps(one_input(shape=[1])).replace("[1, 2]", nest).encode()
    assert decode(text).inputs[0].numpy().tolist() == [1]


@pytest.mark.parametrize(
    ("shape", "count"), [([], 1), ([0], 0), ([2, 3], 6), ([0, 2**40], 0), ([2**40, 0], 0), ([2**59], 2**59)]
)
def test_elements_are_counted(shape: list[int], count: int) -> None:
    assert element_count("x", shape) == count


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ([-1], "invalid dimensions"),
        ([0, -2], "invalid dimensions"),
        ([2**32, 2**32], f"maximum size of {MAX_ELEMENTS}"),
        ([2**4, 2**60 + 2], f"maximum size of {MAX_ELEMENTS}"),
        ([2**62], "byte size overflow for input 'x'"),
        ([0, 2**62], "byte size overflow for input 'x'"),
        ([2**40, 0, 2**40], "byte size overflow for input 'x'"),
        ([9] * 4097, "at most 4096 dimensions, got 4097"),
    ],
)
def test_shapes_of_no_tensor_are_refused(shape: list[int], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        element_count("x", shape)


@pytest.mark.parametrize("dim", [1.5, "2", None, True, 2**64, -(2**63) - 1, [1]])
def test_dimensions_that_are_no_numbers_are_refused(dim: Any) -> None:
    with pytest.raises(InvalidRequest):
        decode(one_input(shape=[dim]))


def test_a_tensor_over_the_limit_is_refused_before_it_is_made() -> None:
    with pytest.raises(InvalidRequest, match="exceeds the maximum allowed value of 100 bytes"):
        decode(one_input(shape=[26]), limit=100)
    assert decode(one_input(), limit=8).inputs[0].shape == (2,)


@pytest.mark.parametrize(
    ("size", "tail"),
    [
        (3, b"ab"),
        (1, b"ab"),
        (-1, b"ab"),
        (2**63, b"ab"),
        (1.0, b"ab"),
        ("2", b"ab"),
        (True, b"a"),
        (None, b"ab"),
    ],
)
def test_sizes_that_do_not_agree_are_refused(size: Any, tail: bytes) -> None:
    head = {
        "inputs": [{"name": "x", "datatype": "UINT8", "shape": [2], "parameters": {"binary_data_size": size}}]
    }
    with pytest.raises(InvalidRequest):
        decode(head, tail)


def test_what_we_encode_is_what_we_decode() -> None:
    inputs = [
        Tensor.from_numpy("a", np.arange(6, dtype=np.float32).reshape(2, 3)),
        Tensor.from_numpy("h", np.arange(4, dtype=np.float16)),
        Tensor.from_numpy("b", np.array([b"x", b"\0\xff"], dtype=np.object_)),
    ]
    head, tail = encode_infer_request(inputs, request_id="r", parameters={"priority": 1})
    decoded = decode_infer_request("m", head + b"".join(map(bytes, tail)), len(head), LIMIT)
    assert (decoded.request_id, decoded.parameters, decoded.default_binary) == ("r", {"priority": 1}, True)
    for got, sent in zip(decoded.inputs, inputs, strict=True):
        assert (got.name, got.datatype, got.shape, bytes(got.data)) == (
            sent.name,
            sent.datatype,
            sent.shape,
            bytes(sent.data),
        )
    head, _ = encode_infer_request(inputs[:1], outputs=["y"], binary=False)
    assert orjson.loads(head)["outputs"] == [{"name": "y", "parameters": {"binary_data": False}}]
