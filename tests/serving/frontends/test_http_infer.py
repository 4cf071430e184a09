"""Inference as only HTTP has it: heads, JSON beside bytes, compression."""

import gzip
import json
import math
import zlib
from typing import Any

import numpy as np
import pytest

from tests.serving.frontends.requests import JSON_X, binary_head
from tests.serving.live import Live, floats


def test_json_in_and_out(live: Live) -> None:
    answer = live.infer("double", {"inputs": [JSON_X]})
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert "inference-header-content-length" not in answer.headers
    assert list(answer.json.items()) == [
        ("model_name", "double"),
        ("model_version", "1"),
        ("outputs", [{"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [2.0, 4.0]}]),
    ]
    assert [list(output) for output in answer.json["outputs"]] == [["name", "datatype", "shape", "data"]]


def test_the_id_comes_back_in_front_if_there_is_one(live: Live) -> None:
    answer = live.infer("double", {"id": 'my "id" ü', "inputs": [JSON_X]})
    assert next(iter(answer.json.items())) == ("id", 'my "id" ü')
    assert "id" not in live.infer("double", {"id": "", "inputs": [JSON_X]}).json


@pytest.mark.parametrize("data", [[1, 2, 3, 4], [[1, 2], [3, 4]], [[[1], [2]], [[3], [4]]]])
def test_json_data_may_be_nested_or_flat(live: Live, data: Any) -> None:
    answer = live.infer("double", {"inputs": [{**JSON_X, "shape": [2, 2], "data": data}]})
    assert answer.json["outputs"][0]["data"] == [2, 4, 6, 8]


def test_binary_in_and_out(live: Live) -> None:
    answer = live.infer_binary("double", {"x": floats([1, 2], [3, 4])})
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/octet-stream"
    assert list(answer.head["outputs"][0].items()) == [
        ("name", "y"),
        ("datatype", "FP32"),
        ("shape", [2, 2]),
        ("parameters", {"binary_data_size": 16}),
    ]
    assert answer.tail == floats([2, 4], [6, 8]).tobytes()


def test_binary_in_and_json_out_and_the_other_way_round(live: Live) -> None:
    answer = live.infer("double", binary_head(), floats([1, 2]).tobytes())
    assert answer.json["outputs"][0]["data"] == [2, 4]
    answer = live.infer("double", {"inputs": [JSON_X], "parameters": {"binary_data_output": True}})
    assert answer.tail == floats([2, 4]).tobytes()


def test_inputs_may_be_mixed(live: Live) -> None:
    a = {"name": "a", "datatype": "FP32", "shape": [1, 2], "data": [5, 6]}
    b = {"name": "b", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": 8}}
    for inputs in ([a, b], [b, a]):
        answer = live.infer("two", {"inputs": inputs}, floats([1, 2]).tobytes())
        assert {o["name"]: o["data"] for o in answer.json["outputs"]} == {"sum": [6, 8], "difference": [4, 4]}


def test_outputs_come_as_asked_and_in_that_order(live: Live) -> None:
    asked = [{"name": "difference", "parameters": {"binary_data": True}}, {"name": "sum"}]
    inputs = [{**JSON_X, "name": "a"}, {**JSON_X, "name": "b", "data": [10, 20]}]
    answer = live.infer("two", {"inputs": inputs, "outputs": asked})
    assert [(o["name"], o.get("data")) for o in answer.head["outputs"]] == [
        ("difference", None),
        ("sum", [11, 22]),
    ]
    assert answer.tail == floats([-9, -18]).tobytes()


def test_binary_data_output_is_the_default_only_of_outputs_that_are_not_listed(live: Live) -> None:
    request = {"inputs": [JSON_X], "parameters": {"binary_data_output": True}}
    assert live.infer("double", request).tail
    listed = live.infer("double", {**request, "outputs": [{"name": "y"}]})
    assert listed.json["outputs"][0]["data"] == [2, 4]


def test_not_a_number_and_infinities_are_spoken(live: Live) -> None:
    body = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,3],"data":[NaN,Infinity,-Infinity]}]}'
    answer = live.infer("double", body)
    assert answer.status == 200
    assert b"NaN" in answer.body
    assert b"Infinity" in answer.body
    values = json.loads(answer.body)["outputs"][0]["data"]
    assert math.isnan(values[0])
    assert values[1:] == [math.inf, -math.inf]


def test_an_empty_tensor_is_answered(live: Live) -> None:
    answer = live.infer("flat", {"inputs": [{"name": "x", "datatype": "FP32", "shape": [0], "data": []}]})
    assert answer.json["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [0], "data": []}]
    head = json.dumps(binary_head(0, (0,), parameters={"binary_data_output": True})).encode()
    answer = live.infer("flat", head, b"", **{"Inference-Header-Content-Length": str(len(head))})
    assert answer.headers["content-type"] == "application/json"
    assert answer.json["outputs"][0]["parameters"] == {"binary_data_size": 0}


# compression


@pytest.mark.parametrize(("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_compressed_requests_and_answers(live: Live, encoding: str, pack: Any) -> None:
    body = pack(json.dumps({"inputs": [JSON_X]}).encode())
    headers = {"Content-Encoding": encoding, "Accept-Encoding": encoding}
    answer = live.http("POST", "/v2/models/double/infer", body, headers)
    assert answer.headers["content-encoding"] == encoding
    unpack = gzip.decompress if encoding == "gzip" else zlib.decompress
    assert json.loads(unpack(answer.body))["outputs"][0]["data"] == [2, 4]


@pytest.mark.parametrize("binary", [True, False])
def test_large_compressed_requests_and_answers(live: Live, binary: bool) -> None:
    x = np.random.default_rng(3).random((2, 30_000), dtype=np.float32)
    item: dict[str, Any] = {"name": "x", "datatype": "FP32", "shape": [2, 30_000]}
    tail = b""
    if binary:
        item["parameters"], tail = {"binary_data_size": x.nbytes}, x.tobytes()
    else:
        item["data"] = x.reshape(-1).tolist()
    head = json.dumps({"inputs": [item], "parameters": {"binary_data_output": binary}}).encode()
    headers = {"Content-Encoding": "gzip", "Accept-Encoding": "gzip"}
    if binary:
        headers["Inference-Header-Content-Length"] = str(len(head))
    for _ in range(2):
        answer = live.http("POST", "/v2/models/double/infer", gzip.compress(head + tail, 1), headers)
        assert (answer.status, answer.headers["content-encoding"]) == (200, "gzip")
        body = gzip.decompress(answer.body)
        if binary:
            assert body[answer.head_size :] == (x * 2).tobytes()
        else:
            data = json.loads(body)["outputs"][0]["data"]
            assert np.array(data, np.float32).tobytes() == (x * 2).tobytes()


def test_large_compressed_garbage_is_refused(live: Live) -> None:
    body = gzip.compress(np.random.default_rng(3).bytes(100_000))
    for broken in (body[:-10], body[:50_000], b"x" * 50_000, body):
        answer = live.http("POST", "/v2/models/double/infer", broken, {"Content-Encoding": "gzip"})
        assert answer.status == 400
        assert answer.error


def test_a_compressed_body_may_hold_binary_tensors(live: Live) -> None:
    head = json.dumps(binary_head()).encode()
    headers = {"Content-Encoding": "gzip", "Inference-Header-Content-Length": str(len(head))}
    body = gzip.compress(head + floats([1, 2]).tobytes())
    answer = live.http("POST", "/v2/models/double/infer", body, headers)
    assert answer.json["outputs"][0]["data"] == [2, 4]


@pytest.mark.parametrize(
    ("accept", "encoding"),
    [
        ("gzip;q=0.5, deflate;q=0.9", "deflate"),
        ("identity, gzip;q=0.9", ""),
        ("gzip, identity;q=0.5", "gzip"),
        ("br, gzip;q=0", ""),
        ("*", ""),
        ("gzip;q=", ""),
        (";;;,,,@ q=z", ""),
        ("GZIP", "gzip"),
    ],
)
def test_the_best_accepted_encoding_is_chosen_and_garbage_is_ignored(
    live: Live, accept: str, encoding: str
) -> None:
    answer = live.infer("double", {"inputs": [JSON_X]}, Accept_Encoding=accept)
    assert answer.status == 200
    assert answer.headers.get("content-encoding", "") == encoding
