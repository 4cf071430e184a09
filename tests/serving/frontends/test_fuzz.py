"""Random requests: each gets an answer that blames the client, and the server goes on."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.serving.frontends.requests import grpc_request
from tests.serving.live import Live, floats
from tpx.protocol.tensors import encode_bytes

MODELS = ("double", "words", "label", "flat", "bool", "int8", "uint64", "fp64", "bf16", "two")
FUZZ = settings(
    max_examples=200,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**65), 2**65)
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["x", "y", "FP32", "BYTES", "INT8", "\ud800", "\0"])
)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
sizes = st.integers(-2, 9) | st.sampled_from([2**31, 2**62, 2**63, 2**64, -(2**63)])
shapes = st.lists(sizes, max_size=4) | anything
data = st.lists(scalars, max_size=4) | anything
parameters = st.dictionaries(
    st.sampled_from(["binary_data_size", "classification", "binary_data", "shared_memory_region", "k"]),
    sizes | anything,
    max_size=2,
)
tensors = st.fixed_dictionaries(
    {"name": st.sampled_from(["x", "a", "b", "z"]) | anything},
    optional={
        "datatype": st.sampled_from(["FP32", "BYTES", "INT8", "BOOL", "UINT64", "BF16"]) | anything,
        "shape": shapes,
        "data": data,
        "parameters": parameters | anything,
    },
)
outputs = st.fixed_dictionaries(
    {"name": st.sampled_from(["y", "sum", "z"]) | anything}, optional={"parameters": parameters | anything}
)
requests = st.fixed_dictionaries(
    {"inputs": st.lists(tensors, max_size=3) | anything},
    optional={
        "id": anything,
        "outputs": st.lists(outputs, max_size=3) | anything,
        "parameters": st.dictionaries(
            st.sampled_from(["binary_data_output", "timeout", "sequence_id", "triton_x", "k"]), anything
        )
        | anything,
    },
)


def is_alive(live: Live) -> bool:
    """Whether a good request is still answered rightly."""
    answer = live.infer_binary("double", {"x": floats([1, 2])})
    return answer.status == 200 and answer.tail == floats([2, 4]).tobytes()


@pytest.mark.slow
@FUZZ
@given(request=requests | anything, model=st.sampled_from(MODELS), tail=st.binary(max_size=12))
def test_random_json_is_never_our_fault(live: Live, request: Any, model: str, tail: bytes) -> None:
    answer = live.infer(model, json.dumps(request).encode(), tail)
    assert answer.status in (200, 400, 501), (answer.status, answer.body)
    assert answer.status == 200 or answer.error
    assert is_alive(live)


@pytest.mark.slow
@FUZZ
@given(st.data(), st.sampled_from(MODELS))
def test_random_bytes_in_a_good_request_are_never_our_fault(
    live: Live, data: st.DataObject, model: str
) -> None:
    item = {"name": "x", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": 8}}
    body = bytearray(json.dumps({"inputs": [item]}).encode() + floats([1, 2]).tobytes())
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    size = data.draw(st.integers(0, len(body) + 2))
    headers = {"Inference-Header-Content-Length": str(size)} if data.draw(st.booleans()) else {}
    answer = live.http("POST", f"/v2/models/{model}/infer", bytes(body), headers)
    assert answer.status in (200, 400, 501), (answer.status, answer.body)
    assert is_alive(live)


GOOD = [
    grpc_request(floats([1, 2]).tobytes(), id="7"),
    grpc_request(encode_bytes([b"a", b"bc"]), datatype="BYTES", model="words"),
    grpc_request(floats([1, 2, 3]).tobytes(), shape=(1, 3), model="label"),
]


@pytest.mark.slow
@FUZZ
@given(st.data(), st.sampled_from(GOOD))
def test_random_bytes_in_a_good_message_are_never_our_fault(
    live: Live, data: st.DataObject, message: Any
) -> None:
    body = bytearray(message.SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        kind = data.draw(st.sampled_from(["change", "cut", "insert"]))
        at = data.draw(st.integers(0, max(0, len(body) - 1)))
        if kind == "change" and body:
            body[at] = data.draw(st.integers(0, 255))
        elif kind == "cut":
            del body[at:]
        else:
            body[at:at] = data.draw(st.binary(max_size=5))
    with live.channel() as channel:
        code = channel.outcome("ModelInfer", bytes(body))
    assert code in ("OK", "INVALID_ARGUMENT", "NOT_FOUND", "UNIMPLEMENTED"), code
    assert is_alive(live)
