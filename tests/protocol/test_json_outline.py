"""Large JSON that is mostly structure is refused before it takes time and memory; large data is not."""

import json
import random
import time
import tracemalloc
from typing import Any

import numpy as np
import orjson
import pytest

from tpx.errors import InvalidRequest
from tpx.protocol.json_outline import (
    LARGE_BYTES,
    MAX_TENSORS,
    check_flat,
    check_request,
    cut_lists,
    mark_of,
    pieces,
)
from tpx.protocol.v2_json import decode_infer_request

SIZE = 2 << 20
X = b'{"name":"x","datatype":"FP32","shape":[1,1],"data":[1]}'


def repeated(start: bytes, piece: bytes, end: bytes) -> bytes:
    """SIZE bytes of the same, between a start and an end."""
    return start + piece * (SIZE // len(piece)) + end


def of_data(start: bytes, piece: bytes, end: bytes) -> bytes:
    """An input whose data is SIZE bytes of the same."""
    return repeated(
        b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,1],"data":[' + start, piece, end + b"]}]}"
    )


FULL = {
    "outputs": repeated(b'{"inputs":[' + X + b'],"outputs":[{"name":"y"}', b',{"name":"y"}', b"]}"),
    "outputs beside NaN": repeated(
        b'{"inputs":[' + X.replace(b"[1]}", b"[NaN]}") + b'],"outputs":[{"name":"y"}', b',{"name":"y"}', b"]}"
    ),
    "inputs": repeated(b'{"inputs":[' + X, b"," + X, b"]}"),
    "parameters": repeated(b'{"inputs":[' + X + b'],"parameters":{"a":1', b',"b":1', b"}}"),
    "parameters of an input": repeated(
        b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[1],"parameters":{"a":1',
        b',"b":1',
        b"}}]}",
    ),
    "dimensions": repeated(b'{"inputs":[{"name":"x","datatype":"FP32","data":[1],"shape":[1', b",1", b"]}]}"),
    "empty lists": of_data(b"1", b",[]", b""),
    "empty objects": of_data(b"1", b",{}", b""),
    "lists of lists": of_data(b"1", b",[[[[]]]]", b""),
    "lists beside texts": of_data(b'"a"', b",[]", b"").replace(b"FP32", b"BYTES"),
    "objects beside texts": of_data(b'"a"', b",{}", b"").replace(b"FP32", b"BYTES"),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", FULL)
def test_a_request_full_of(what: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest):
            decode_infer_request("m", FULL[what], None, SIZE)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 * SIZE  # the parser of numbers alone reserves twelve times what it reads


def one_input(data: Any, **fields: Any) -> bytes:
    """A request with one FP64 input."""
    item = {"name": "x", "datatype": "FP64", "data": data, **fields}
    return orjson.dumps({"inputs": [item]}, option=orjson.OPT_SERIALIZE_NUMPY)


@pytest.mark.parametrize("shape", [(1, 200_000), (200_000, 1), (50_000, 2, 2), (2, 2, 50_000)])
def test_large_data_is_read_however_it_is_nested(shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(1).random(shape)
    body = one_input(values, shape=list(shape))
    assert len(body) > LARGE_BYTES
    [tensor] = decode_infer_request("m", body, None, SIZE).inputs
    assert (tensor.numpy() == values).all()


def test_large_data_with_an_object_or_a_word_in_it_is_refused() -> None:
    values = np.arange(200_000.0).tolist()
    oddities: list[object] = [{}, "1", [None], True]
    for odd in oddities:
        with pytest.raises(InvalidRequest, match="Unable to parse 'data'"):
            decode_infer_request("m", one_input([*values, odd], shape=[200_001]), None, SIZE)


def test_brackets_in_large_texts_are_text() -> None:
    texts = ["[{:[{:"] * 300_000
    body = orjson.dumps({"inputs": [{"name": "x", "datatype": "BYTES", "shape": [300_000], "data": texts}]})
    [tensor] = decode_infer_request("m", body, None, SIZE).inputs
    assert tensor.numpy().tolist() == [text.encode() for text in texts]


def test_a_look_at_words_that_are_numbers_takes_no_multiple_of_their_size() -> None:
    body = of_data(b"1", b",NaN", b",Infinity,-Infinity")
    tracemalloc.start()
    try:
        check_request(body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * SIZE


@pytest.mark.parametrize("shape", [(1, 100_000), (100_000, 1), (50_000, 2, 1)])
def test_large_texts_are_read_however_they_are_nested(shape: tuple[int, ...]) -> None:
    texts = np.array([f'{n}[[]]{{"\\"{{' for n in range(100_000)], dtype=object)
    item = {"name": "x", "datatype": "BYTES", "shape": list(shape), "data": texts.reshape(shape).tolist()}
    body = orjson.dumps({"inputs": [item]})
    assert len(body) > LARGE_BYTES
    [tensor] = decode_infer_request("m", body, None, SIZE).inputs
    assert tensor.numpy().ravel().tolist() == [text.encode() for text in texts]


def test_one_value_in_many_lists_costs_what_it_is_long() -> None:
    deep = b"[" * 97 + b'"a"' + b"]" * 97
    count = 200_000
    data = b"[" + deep + b',"a"' * count + b"]"
    head = b'{"inputs":[{"name":"x","datatype":"BYTES","shape":[%d],"data":' % (count + 1)
    began = time.thread_time()
    [tensor] = decode_infer_request("m", head + data + b"}]}", None, SIZE).inputs
    assert time.thread_time() - began < 1  # twenty times what it takes, and half of a look at all for each
    assert tensor.numpy().tolist() == [b"a"] * (count + 1)


@pytest.mark.parametrize(
    ("field", "what"),
    [("id", "id and names"), ("name", "id and names"), ("datatype", "id and names"), ("shape", "shapes")],
)
def test_what_errors_quote_and_responses_repeat_is_not_large(field: str, what: str) -> None:
    text = "x" * (3 << 20)
    item = {"name": "x", "datatype": "FP32", "shape": [1], "data": [1], field: text}
    body = orjson.dumps({"id": item.pop("id", ""), "inputs": [item]})
    with pytest.raises(
        InvalidRequest, match=f"the {what} of a request take at most 2097152 bytes, got 31457"
    ):
        decode_infer_request("m", body, None, SIZE)


def test_as_many_inputs_as_allowed_may_be_large() -> None:
    item = {"name": "x", "datatype": "FP32", "shape": [100], "data": [1.25] * 100}
    body = orjson.dumps({"inputs": [item] * MAX_TENSORS})
    assert len(body) > LARGE_BYTES
    assert len(decode_infer_request("m", body, None, SIZE).inputs) == MAX_TENSORS


@pytest.mark.parametrize(
    "body", [b"[[],[]]", b'"' + b"[" * SIZE + b'"', b'{"a":"' + b'\\"[{:' * 400_000 + b'"}']
)
def test_flat_json_may_have_large_texts(body: bytes) -> None:
    check_flat(body)


@pytest.mark.parametrize("piece", [b"[],", b"{},", b'"a":1,', b"[[[[]]]],"])
def test_large_json_of_nothing_but_structure_is_not_flat(piece: bytes) -> None:
    with pytest.raises(InvalidRequest, match="more than 50000 lists, objects and"):
        check_flat(repeated(b"[", piece, b"0]"))


@pytest.mark.slow
@pytest.mark.parametrize("datatype", ["BYTES", "FP32", "UINT64"])
def test_a_long_list_takes_little_more_memory_than_its_text_and_its_elements(datatype: str) -> None:
    """A parser makes objects of it that take ten times as much, and locks out other threads meanwhile."""
    size = 3 << 20
    count = size // 8
    value = b'"abcde"' if datatype == "BYTES" else b"1234567"
    body = b'{"inputs":[{"name":"x","datatype":"%b","shape":[%d],"data":[%b]}]}' % (
        datatype.encode(),
        count,
        b",".join([value] * count),
    )
    tracemalloc.start()
    try:
        [tensor] = decode_infer_request("m", body, None, size).inputs
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert tensor.data[-5:] == (b"abcde" if datatype == "BYTES" else bytes(tensor.data[:8])[-5:])
    assert peak < 3.5 * size


def test_pieces_end_behind_commas_that_are_in_no_string() -> None:
    pick = random.Random(1)
    words = ["", ",", '"', "\\", '\\"', "a,b", '",', "\\\\,", "[{", "é", "x" * 300_000]
    values = [pick.choice(words[:-1]) for _ in range(200_000)] + [words[-1], ","]
    text = json.dumps(values).encode()
    cut = list(pieces(text))
    assert len(cut) > 5
    assert b"".join(cut) == text
    parsed = [json.loads(b"[" + piece.strip(b" []").removesuffix(b",") + b"]") for piece in cut[1:-1]]
    assert [value for part in parsed for value in part] == values[
        len(json.loads(cut[0].rstrip(b",") + b"]")) : -len(json.loads(b"[" + cut[-1]))
    ]


@pytest.mark.slow
def test_long_lists_are_cut_out_where_they_are_a_members_value() -> None:
    numbers, texts = list(range(100_000)), ["]" * 10] * 30_000
    value = {
        "a": numbers,
        "b": [{"data": texts, "small": [1, 2], "id": '[NaN,"]'}, {"data": [[number] for number in numbers]}],
        "c": [{}, numbers],
    }
    text = json.dumps(value).encode()
    rest, lists = cut_lists(text)
    assert [json.loads(bytes(part)) for part in lists] == [
        numbers,
        texts,
        [[number] for number in numbers],
        numbers,
    ]
    left = json.loads(rest)
    assert [mark_of(left["a"]), *[mark_of(item["data"]) for item in left["b"]]] == [0, 1, 2]
    assert left["b"][0]["small"] == [1, 2]
    assert left["b"][0]["id"] == value["b"][0]["id"]  # type: ignore[index]
    assert len(rest) < 200


@pytest.mark.parametrize("data", ["[1,2,]", "[,1]", "[1,,2]", "[1 2]", "[1]]", "[[1]", "[1,2", '["a"]["b"]'])
def test_a_long_list_that_is_no_json_is_refused(data: str) -> None:
    long = data.replace("1", "1" + ",1" * LARGE_BYTES)
    body = '{"inputs":[{"name":"x","datatype":"FP32","shape":[9999999],"data":' + long + "}]}"
    with pytest.raises(InvalidRequest, match=r"parse|request JSON"):
        decode_infer_request("m", body.encode(), None, 1 << 40)


def test_words_that_are_numbers_arrive_in_a_long_list_and_texts_beside_it_stay() -> None:
    data = ",".join(["NaN", "-Infinity", "1.5", "Infinity"] * 50_000)
    item = f'{{"name":"x","datatype":"FP64","shape":[200000],"data":[{data}]}}'
    body = f'{{"id":"NaN, Infinity","inputs":[{item}]}}'
    request = decode_infer_request("m", body.encode(), None, 1 << 40)
    assert request.request_id == "NaN, Infinity"
    expected = [float("nan"), float("-inf"), 1.5, float("inf")] * 50_000
    np.testing.assert_array_equal(request.inputs[0].numpy(), expected)
