"""One trace: its records in the trace file's form."""

import itertools
import json
import tracemalloc
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.serving.tracing.requests import request_for
from tpx.errors import ExecutionError
from tpx.protocol.tensors import Tensor, encode_bytes
from tpx.serving.request import InferRequest, InferResponse
from tpx.serving.tracing.settings import Level
from tpx.serving.tracing.trace import TensorSeen, Trace, encode

BOTH: tuple[Level, ...] = ("TIMESTAMPS", "TENSORS")


@dataclass(frozen=True, slots=True)
class Times:
    """Of a computation on a clock of the test's."""

    started_ns: int = 0
    gathered_ns: int = 0
    computed_ns: int = 0
    ended_ns: int = 0


def new(levels: tuple[Level, ...] = BOTH) -> Trace:
    return Trace(itertools.count(1).__next__, levels, lambda _: None)


def records(trace: Trace) -> list[dict[str, Any]]:
    read: list[dict[str, Any]] = json.loads(b"[" + encode(trace) + b"]")
    return read


def names(trace: Trace) -> list[str]:
    """The names of what happened, in order."""
    out = []
    for record in records(trace):
        stamps = record.get("timestamps", [{}])
        out.append(stamps[0].get("name") or record.get("activity") or "which model")
    return out


def computed(trace: Trace, request: InferRequest) -> None:
    trace.begin(request)
    outputs = [Tensor.from_numpy("y", np.array([[2, 4.5]], dtype=np.float32))]
    trace.computed(request, Times(30, 40, 50, 60), InferResponse(outputs))


def test_a_computed_request_has_every_step_in_the_order_in_which_it_happened() -> None:
    trace = new()
    trace.stamp("HTTP_RECV_START", 5)
    computed(trace, request_for([[1, 2.25]], request_id="me"))
    told = records(trace)
    assert names(trace) == [
        "HTTP_RECV_START",
        "which model",
        "REQUEST_START",
        "QUEUE_START",
        "TENSOR_QUEUE_INPUT",
        "COMPUTE_START",
        "TENSOR_BACKEND_INPUT",
        "COMPUTE_INPUT_END",
        "COMPUTE_OUTPUT_START",
        "TENSOR_BACKEND_OUTPUT",
        "COMPUTE_END",
        "REQUEST_END",
    ]
    assert told[0] == {"id": 1, "timestamps": [{"name": "HTTP_RECV_START", "ns": 5}]}
    assert list(told[1].items()) == [
        ("id", 1),
        ("model_name", "net"),
        ("model_version", 3),
        ("request_id", "me"),
    ]
    times = {r["timestamps"][0]["name"]: r["timestamps"][0]["ns"] for r in told if "timestamps" in r}
    assert [times[f"COMPUTE_{step}"] for step in ("START", "INPUT_END", "OUTPUT_START", "END")] == [
        30, 40, 50, 60,
    ]  # fmt: skip
    assert times["QUEUE_START"] == 20
    assert told[4] == {
        "id": 1,
        "activity": "TENSOR_QUEUE_INPUT",
        "tensor": {"name": "x", "data": "1,2.25", "shape": "1,2", "dtype": "FP32"},
    }
    assert told[9]["tensor"] == {"name": "y", "data": "2,4.5", "shape": "1,2", "dtype": "FP32"}


def test_timestamps_alone_hold_no_tensor() -> None:
    trace = new(("TIMESTAMPS",))
    computed(trace, request_for([[1, 2]]))
    assert not [name for name in names(trace) if name.startswith("TENSOR")]
    assert trace.total_size == 0


def test_tensors_alone_have_no_times_and_say_whose_they_are() -> None:
    trace = new(("TENSORS",))
    computed(trace, request_for([[1, 2]]))
    assert names(trace) == [
        "which model",
        "TENSOR_QUEUE_INPUT",
        "TENSOR_BACKEND_INPUT",
        "TENSOR_BACKEND_OUTPUT",
    ]
    assert trace.total_size == 24


def test_a_request_that_was_not_computed_has_no_computation() -> None:
    trace, request = new(), request_for([[1, 2]])
    trace.begin(request)
    trace.computed(request, Times(), InferResponse([], ExecutionError("no")))
    assert names(trace) == [
        "which model",
        "REQUEST_START",
        "QUEUE_START",
        "TENSOR_QUEUE_INPUT",
        "REQUEST_END",
    ]


def test_a_decoupled_request_leaves_the_queue_once_and_has_all_its_outputs() -> None:
    trace, request = new(), request_for([[1, 2]])
    trace.begin(request)
    for value in (1, 2):
        response = InferResponse([Tensor.from_numpy("y", np.array([[value, 0]], dtype=np.float32))])
        response.final = False
        trace.computed(request, Times(30, 40, 50, 60), response)
    trace.computed(request, Times(30, 40, 70, 80), InferResponse([]))
    told = names(trace)
    assert told.count("QUEUE_START") == told.count("COMPUTE_START") == told.count("COMPUTE_END") == 1
    assert told[-4:] == ["TENSOR_BACKEND_OUTPUT", "TENSOR_BACKEND_OUTPUT", "COMPUTE_END", "REQUEST_END"]


def test_a_request_that_another_gave_rise_to_names_its_parent() -> None:
    trace = new(("TIMESTAMPS",))
    trace.begin(request_for([[1, 2]]))
    trace.child(request_for([[1, 2]]))
    told = [record for record in records(trace) if "model_name" in record]
    assert [(record["id"], record.get("parent_id")) for record in told] == [(1, None), (2, 1)]


@pytest.mark.parametrize(
    ("datatype", "count", "data", "text"),
    [
        ("FP32", 5, np.array([1, 0.1, 1e20, np.nan, -np.inf], np.float32).tobytes(), "1,0.1,1e+20,nan,-inf"),
        ("FP64", 2, np.array([0.1, 3], np.float64).tobytes(), "0.1,3"),
        ("FP16", 2, np.array([0.5, 3], np.float16).tobytes(), "0.5,3"),
        ("BF16", 2, np.array([0.5, 3], np.float32).view(np.uint16)[1::2].tobytes(), "0.5,3"),
        ("UINT8", 3, bytes([0, 65, 255]), "0,65,255"),
        ("INT8", 2, bytes([255, 1]), "-1,1"),
        ("INT64", 1, np.array([-(2**63)], np.int64).tobytes(), "-9223372036854775808"),
        ("UINT64", 1, np.array([2**64 - 1], np.uint64).tobytes(), "18446744073709551615"),
        ("BOOL", 2, bytes([1, 0]), "1,0"),
        ("BYTES", 2, encode_bytes([b"a", b'"\xff\n']), '"a",""\\xff\n"'),
        ("BYTES", 1, b"\x05\0\0\0ab", ""),
        ("FP32", 0, b"", ""),
    ],
)
def test_elements_are_as_short_as_they_can_be_read_back(
    datatype: str, count: int, data: bytes, text: str
) -> None:
    trace = new(("TENSORS",))
    response = InferResponse([Tensor("y", datatype, [count], data)])
    trace.computed(request_for([[1, 2]]), Times(1), response)
    assert records(trace)[-1]["tensor"]["data"] == text


def test_its_end_is_told() -> None:
    ended: list[Trace] = []
    trace = Trace(itertools.count(1).__next__, BOTH, ended.append)
    trace.end()
    assert ended == [trace]


def test_the_text_of_a_large_tensor_is_made_in_pieces() -> None:
    """At once, it would keep all other threads waiting, and take 128 bytes per element."""
    values = np.linspace(0, 1, 50_000, dtype=np.float32)
    seen = TensorSeen("TENSOR_QUEUE_INPUT", Tensor.from_numpy("x", values))
    tracemalloc.start()
    try:
        record: Any = seen.record(1)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100 * len(values)
    assert np.array_equal(np.array(record["tensor"]["data"].split(","), np.float32), values)
