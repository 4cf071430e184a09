"""Raw binary requests over HTTP: a body, no JSON, and a model that says the rest."""

import gzip
from collections.abc import Iterator

import numpy as np
import pytest

from tests.serving.live import Answer, Live, floats, serving
from tests.serving.onnx_files import graph, identity, node, value, write_model
from tpx.protocol.tensors import encode_bytes

UNKNOWN = "[request id: <id_unknown>] "
MISMATCH = UNKNOWN + "input byte size mismatch for input 'x' for model '{}'. Expected {}, got {}"


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server whose models a body alone may or may not mean."""
    repository = tmp_path_factory.mktemp("raw")
    write_model(repository, "fixed")
    write_model(repository, "free", identity("FP32", "batch", "n"), io("FP32", "-1"))
    write_model(repository, "half", identity("FP32", "batch", 3, "n"), io("FP32", "3, -1"))
    write_model(repository, "two_free", identity("FP32", "batch", "n", "m"), io("FP32", "-1, -1"))
    write_model(repository, "flat", identity("FP32", "n"), io("FP32", "-1", batch=0))
    write_model(repository, "word", identity("BYTES", "batch", 1), io("STRING", "1"))
    write_model(repository, "words", identity("BYTES", "batch", "n"), io("STRING", "-1"))
    inputs = [value(name, "FP32", "batch", 2) for name in ("a", "b")]
    add = graph([node("Add", ["a", "b"], ["y"])], inputs, [value("y", "FP32", "batch", 2)])
    write_model(repository, "two", add)
    with serving(repository, http_max_input_size=4096) as running:
        yield running


def io(datatype: str, dims: str, batch: int = 8) -> str:
    tensor = f"data_type: TYPE_{datatype} dims: [ {dims} ]"
    return f"max_batch_size: {batch} input [{{ name: 'x' {tensor} }}] output [{{ name: 'y' {tensor} }}]"


def raw(live: Live, model: str, body: bytes, **headers: str) -> Answer:
    sent = {"Inference-Header-Content-Length": "0"} | {k.replace("_", "-"): v for k, v in headers.items()}
    return live.http("POST", f"/v2/models/{model}/infer", body, sent)


@pytest.mark.parametrize(
    ("model", "count", "shape"),
    [
        ("fixed", 2, [1, 2]),
        ("free", 3, [1, 3]),
        ("free", 0, [1, 0]),
        ("half", 6, [1, 3, 2]),
        ("flat", 4, [4]),
    ],
)
def test_the_shape_follows_from_the_model_and_the_size(
    live: Live, model: str, count: int, shape: list[int]
) -> None:
    body = np.arange(count, dtype=np.float32)
    answer = raw(live, model, body.tobytes())
    assert answer.status == 200
    assert (
        answer.head["outputs"][0]["shape"] == shape if count else answer.json["outputs"][0]["shape"] == shape
    )
    if count:
        assert answer.tail == (body * (2 if model == "fixed" else 1)).tobytes()
        assert answer.headers["content-type"] == "application/octet-stream"


@pytest.mark.parametrize("text", [b"", b"abc", "ü\0".encode(), b"x" * 4000])
def test_a_body_is_one_string(live: Live, text: bytes) -> None:
    answer = raw(live, "word", text)
    assert answer.head["outputs"][0]["shape"] == [1, 1]
    assert answer.tail == encode_bytes([text])


def test_a_body_may_be_compressed(live: Live) -> None:
    packed = gzip.compress(floats([1, 2]).tobytes())
    assert raw(live, "fixed", packed, Content_Encoding="gzip").tail == floats([2, 4]).tobytes()


def test_a_header_may_have_space_around_its_value(live: Live) -> None:
    headers = {"Inference-Header-Content-Length": " 0 "}
    answer = live.http("POST", "/v2/models/fixed/infer", floats([1, 2]).tobytes(), headers)
    assert answer.tail == floats([2, 4]).tobytes()


@pytest.mark.parametrize(
    ("model", "size", "message"),
    [
        ("fixed", 4, MISMATCH.format("fixed", 8, 4)),
        ("fixed", 16, MISMATCH.format("fixed", 8, 16)),
        ("fixed", 0, MISMATCH.format("fixed", 8, 0)),
        ("free", 13, MISMATCH.format("free", 12, 13)),
        ("half", 16, MISMATCH.format("half", 12, 16)),
        (
            "two",
            16,
            UNKNOWN
            + "Raw request must only have 1 input (found 1) to be deduced but got 2 inputs in 'two' model "
            "configuration",
        ),
        (
            "two_free",
            16,
            UNKNOWN + "The shape of the raw input 'x' can not be deduced because there are more than one "
            "variable-sized dimension",
        ),
        ("words", 3, UNKNOWN + "For BYTE datatype raw input 'x', the model must have input shape [1]"),
    ],
)
def test_a_body_that_cannot_be_the_input_is_refused(live: Live, model: str, size: int, message: str) -> None:
    answer = raw(live, model, bytes(size))
    assert (answer.status, answer.error) == (400, message)


def test_an_unknown_model_and_an_unknown_version_are_not_found(live: Live) -> None:
    assert raw(live, "nobody", bytes(8)).error == "Request for unknown model: 'nobody' is not found"
    answer = raw(live, "fixed/versions/9", bytes(8))
    assert (answer.status, answer.error) == (
        404,
        "Request for unknown model: 'fixed' version 9 is not found",
    )
    assert raw(live, "fixed/versions/1", bytes(8)).status == 200


def test_a_large_body_is_refused_as_any_other(live: Live) -> None:
    assert raw(live, "free", bytes(5000)).status == 413
    bomb = gzip.compress(bytes(1 << 20))
    assert raw(live, "free", bomb, Content_Encoding="gzip").status == 400
