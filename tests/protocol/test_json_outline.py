"""Large JSON that is mostly structure is refused before it takes time and memory; large data is not."""

import time
import tracemalloc
from typing import Any

import numpy as np
import orjson
import pytest

from tpx.errors import InvalidRequest
from tpx.protocol.json_outline import LARGE_BYTES, MAX_TENSORS, check_flat, check_request
from tpx.protocol.v2_json import decode_infer_request

SIZE = 8 << 20
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


@pytest.mark.parametrize("what", FULL)
def test_a_request_full_of(what: str) -> None:
    tracemalloc.start()
    began = time.thread_time()
    try:
        with pytest.raises(InvalidRequest):
            decode_infer_request("m", FULL[what], None, SIZE)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 * SIZE  # the parser of numbers alone reserves twelve times what it reads
    assert time.thread_time() - began < 3


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
