"""Malformed inference requests over HTTP: each is told what is wrong, and the server lives."""

import json
from typing import Any

import pytest

from tests.serving.frontends.requests import JSON_X, binary_head, refusal
from tests.serving.live import Live


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "failed to parse the request JSON buffer"),
        (b"{", "failed to parse the request JSON buffer"),
        (b"\xef\xbb\xbf{}", "failed to parse the request JSON buffer"),
        (b'{"id":"\xff","inputs":[]}', "failed to parse the request JSON buffer"),
        (b"null", "Unable to parse"),
        (b"[]", "Unable to parse"),
        (b"{}", "Unable to parse 'inputs'"),
        (b"5" * 400, "Unable to parse 'request': Number out of range"),
        (b'{"inputs":[],"parameters":{"a":' + b"5" * 5000 + b"}}", "Unable to parse 'parameters'"),
        (b'{"id":1e999,"inputs":[]}', "Unable to parse 'id': Number out of range"),
        (b'{"inputs":{}}', "Unable to parse 'inputs'"),
        (b'{"inputs":[3]}', "Unable to parse"),
        (b'{"inputs":[{"datatype":"FP32","shape":[1],"data":[1]}]}', "Unable to parse 'name'"),
        (b'{"inputs":[{"name":"x","shape":[1],"data":[1]}]}', "Unable to parse 'datatype'"),
        (b'{"inputs":[{"name":"x","datatype":"FP32","data":[1]}]}', "Unable to parse 'shape'"),
        (b'{"inputs":[{"name":"x","datatype":"FP32","shape":2,"data":[1]}]}', "Unable to parse 'shape'"),
        (b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1.5],"data":[1]}]}', "Unable to parse 'shape'"),
        (b'{"inputs":[{"name":"x","datatype":"FP32","shape":["1"],"data":[1]}]}', "Unable to parse 'shape'"),
        (b'{"inputs":[{"name":1,"datatype":"FP32","shape":[1],"data":[1]}]}', "Unable to parse 'name'"),
        (b'{"id":3,"inputs":[]}', "Unable to parse 'id'"),
        (b'{"inputs":[],"outputs":{}}', "Unable to parse 'outputs'"),
        (b'{"inputs":[],"outputs":[{}]}', "Unable to parse 'name'"),
        (b'{"inputs":[],"parameters":[]}', "failed to get request params.: attempt to get"),
    ],
)
def test_json_that_is_no_request_is_refused_by_its_field(live: Live, body: bytes, message: str) -> None:
    assert refusal(live, body).startswith(message)


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'{"inputs":[{"data":'])
def test_json_nested_without_end_is_refused(live: Live, opening: bytes) -> None:
    assert refusal(live, opening * 250_000)


def test_data_nested_deeper_than_the_limit_is_refused(live: Live) -> None:
    deep = b"[" * 120 + b"1,2" + b"]" * 120
    body = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"data":%b}]}' % deep
    assert refusal(live, body) == "JSON nesting depth exceeds maximum allowed limit (100)"


@pytest.mark.parametrize("word", ["id", "name", "datatype"])
@pytest.mark.parametrize("escape", [r"\ud800", r"\udc80\ud800", "\\ud800x"])
def test_text_that_is_no_text_is_refused_and_answered(live: Live, word: str, escape: str) -> None:
    """Half a surrogate pair: in JSON with NaN another parser reads it."""
    fields = {"id": "1", "name": "x", "datatype": "FP32", word: "@@"}
    for data in ("[1,2]", "[NaN,2]"):
        body = (
            f'{{"id":"{fields["id"]}","inputs":[{{"name":"{fields["name"]}",'
            f'"datatype":"{fields["datatype"]}","shape":[1,2],"data":{data}}}]}}'
        ).replace("@@", escape)
        assert refusal(live, body.encode())


@pytest.mark.parametrize(
    "parameters", [r'"sequence_id":"\ud800"', r'"key":"\udc80"', r'"\ud800":1', '"key":"a\\u0000b"']
)
def test_parameters_that_are_no_text_are_refused(live: Live, parameters: str) -> None:
    body = (
        f'{{"parameters":{{{parameters}}},'
        '"inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"data":[NaN,2]}]}'
    )
    assert refusal(live, body.encode()).startswith("Unable to parse '")


def test_strings_that_are_no_text_are_refused_and_answered(live: Live) -> None:
    body = rb'{"inputs":[{"name":"x","datatype":"BYTES","shape":[1,1],"data":["\ud800"]}]}'
    assert refusal(live, body, model="words")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"shape": [1, 3]},
            "Failed to parse 'data' field: shape does not match true shape: "
            "input 'x' has 2 values, its shape 3",
        ),
        (
            {"shape": [1, 1]},
            "Unable to parse 'data': Shape does not match true shape of 'data' field: "
            "input 'x' has more values than the 1 of its shape",
        ),
        ({"data": ["1", "2"]}, "Unable to parse 'data'"),
        ({"data": [None, 2]}, "Unable to parse 'data'"),
        ({"data": [True, False]}, "Unable to parse 'data'"),
        ({"data": [{}, 2]}, "Unable to parse 'data'"),
        ({"data": 7}, "Unable to parse 'data'"),
        ({"data": "ab"}, "Unable to parse 'data'"),
        ({"datatype": "FP33"}, "invalid datatype for input x"),
        ({"datatype": "fp32"}, "invalid datatype for input x"),
        ({"name": "x\0"}, "Unable to parse 'name'"),
        (
            {"shape": [1, -1]},
            "Unable to parse 'shape': attempt to access JSON non-unsigned-integer as unsigned-integer",
        ),
        (
            {"shape": [-2, 1]},
            "Unable to parse 'shape': attempt to access JSON non-unsigned-integer as unsigned-integer",
        ),
        ({"shape": [2**4, 2**60 + 2]}, "invalid shape for input 'x'"),
        ({"shape": [2**64]}, ""),
        ({"shape": [2**40]}, "JSON input 'x' has a byte_size (4398046511104 bytes) that exceeds the maximum"),
        ({"shape": []}, "Unable to parse 'data': Shape does not match true shape of 'data' field"),
    ],
)
def test_a_tensor_that_cannot_be_is_refused(live: Live, change: dict[str, Any], message: str) -> None:
    assert refusal(live, {"inputs": [{**JSON_X, **change}]}).startswith(message)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"mine": [1]}, "parameter 'mine' has invalid type. It should be either 'int', 'bool', or 'string'."),
        ({"mine": {}}, "parameter 'mine' has invalid type"),
        ({"mine": None}, "parameter 'mine' has invalid type"),
        ({"timeout": -1}, "Unable to parse 'timeout': attempt to access JSON non-unsigned-integer"),
        ({"sequence_id": -1}, "Unable to parse 'sequence_id': attempt to access JSON non-string as string"),
        ({"priority": "x"}, "Unable to parse 'priority': attempt to access JSON non-unsigned-integer"),
        ({"binary_data_output": 1}, "Unable to parse 'binary_data_output'"),
    ],
)
def test_parameters_that_cannot_be_are_refused(live: Live, parameters: dict[str, Any], message: str) -> None:
    assert message in refusal(live, {"inputs": [JSON_X], "parameters": parameters})


@pytest.mark.parametrize("value", [1.5, True])
def test_a_number_of_classes_that_is_none_is_refused(live: Live, value: Any) -> None:
    request = {"inputs": [JSON_X], "outputs": [{"name": "y", "parameters": {"classification": value}}]}
    assert "Unable to set 'classification'" in refusal(live, request)


# binary tensors that lie about themselves


@pytest.mark.parametrize(
    ("request_head", "tail", "message"),
    [
        (
            binary_head(8),
            bytes(4),
            "unexpected size for input 'x', expecting 4 additional bytes for model 'double'",
        ),
        (
            binary_head(800),
            bytes(8),
            "unexpected size for input 'x', expecting 792 additional bytes for model",
        ),
        (binary_head(8), bytes(9), "unexpected additional input data for model 'double'"),
        (binary_head(-8), bytes(8), "Unable to parse 'binary_data_size'"),
        (binary_head(2**63), bytes(8), "Unable to parse 'binary_data_size'"),
        (binary_head(2**63 - 1), bytes(8), "unexpected size for input 'x'"),
        (
            {"inputs": [{**JSON_X, "parameters": {"binary_data_size": 8}}]},
            bytes(8),
            "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters'",
        ),
        (
            {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2]}]},
            bytes(8),
            "Input must set only one of the following fields",
        ),
    ],
)
def test_sizes_that_do_not_agree_are_refused(
    live: Live, request_head: Any, tail: bytes, message: str
) -> None:
    assert refusal(live, request_head, tail).startswith(message)


def test_binary_data_without_the_header_is_refused(live: Live) -> None:
    assert refusal(live, binary_head()).startswith(
        "must specify valid 'Infer-Header-Content-Length' in request header and 'binary_data_size' when "
        "passing inputs in binary data format"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("abc", "Unable to parse Inference-Header-Content-Length, got: abc"),
        ("-5", "inference header size should be in range (0, "),
        ("1 2", "Unable to parse Inference-Header-Content-Length"),
        (
            "99999999999",
            "Inference-Header-Content-Length value is out of range [ -2147483648, 2147483647 ], got:",
        ),
        ("9" * 1000, "Inference-Header-Content-Length value is out of range"),
        ("9" * 5000, "Inference-Header-Content-Length value is out of range"),
        ("100000", "inference header size should be in range (0, "),
        ("20", "failed to parse the request JSON buffer"),
    ],
)
def test_a_header_length_that_cannot_be_is_refused(live: Live, text: str, message: str) -> None:
    head = json.dumps(binary_head()).encode()
    sent = {"Inference-Header-Content-Length": text}
    assert refusal(live, head, bytes(8), **sent).startswith(message)


def test_a_body_over_the_limit_is_refused_from_its_header(live: Live) -> None:
    with live.raw_http() as connection:
        connection.sendall(
            b"POST /v2/models/double/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2147483648\r\n\r\n"
        )
        assert b" 413 " in connection.recv(1000)
