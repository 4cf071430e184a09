"""Traces of real requests, read back from the file: what each protocol adds, in the order of time."""

import http.client
import json
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.serving.frontends.streams import (
    counters,
    repeat,
    repeat_body,
    request,
    stream,
    write_streaming_models,
)
from tests.serving.live import SERVICE, Live, floats, in_one_process, infer_message, reset, serving
from tests.serving.onnx_files import busy, doubling, write_model
from tests.serving.transports import Given, connected
from tests.waiting import eventually
from tpx.serving.tracing.flags import trace_flag

MODEL = [
    "REQUEST_START",
    "QUEUE_START",
    "COMPUTE_START",
    "COMPUTE_INPUT_END",
    "COMPUTE_OUTPUT_START",
    "COMPUTE_END",
    "REQUEST_END",
]
HTTP = [
    *("HTTP_RECV_START", "HTTP_RECV_END"),
    *MODEL,
    *("INFER_RESPONSE_COMPLETE", "HTTP_SEND_START", "HTTP_SEND_END"),
]
GRPC = [
    *("GRPC_WAITREAD_START", "GRPC_WAITREAD_END"),
    *MODEL,
    *("INFER_RESPONSE_COMPLETE", "GRPC_SEND_START", "GRPC_SEND_END"),
]

X = {"x": floats([1, 2])}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models")
    write_streaming_models(path)
    write_model(path, "net", doubling())
    write_model(path, "wide", doubling("batch", 1 << 20))
    write_model(path, "busy", busy(rounds=10))
    return path


@contextmanager
def traced(repository: Path, file: Path, *flags: str, **options: Any) -> Iterator[Live]:
    """A server that traces into `file`; afterwards its traces are complete."""
    words = (f"triton,file={file}", *(flags or ("level=TIMESTAMPS", "rate=1")))
    with serving(repository, trace_config=tuple(map(trace_flag, words)), **options) as live:
        yield live


class Told:
    """What a trace file says of one request."""

    def __init__(self, records: list[dict[str, Any]]) -> None:
        stamps = [stamp for record in records for stamp in record.get("timestamps", ())]
        self.names = [stamp["name"] for stamp in stamps]
        self.times = [stamp["ns"] for stamp in stamps]
        [self.about] = [record for record in records if "model_name" in record]
        self.tensors = [
            (record["activity"], record["tensor"]["name"], record["tensor"]["data"])
            for record in records
            if "activity" in record
        ]


def unordered(file: Path) -> list[Told]:
    """The traces of a file by their ids."""
    records = defaultdict(list)
    for record in json.loads(file.read_bytes()):
        records[record["id"]].append(record)
    return [Told(of_one) for _, of_one in sorted(records.items())]


def read(file: Path) -> list[Told]:
    """The same, of requests with one answer: their times are in order."""
    told = unordered(file)
    for trace in told:
        assert trace.times == sorted(trace.times), trace.names
    return told


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "trace.json"


@pytest.mark.parametrize(("over", "steps"), [("HTTP", HTTP), ("gRPC", GRPC)])
def test_a_request_has_every_step_in_the_order_of_time(
    repository: Path, file: Path, over: str, steps: list[str]
) -> None:
    with traced(repository, file) as live, connected(live, over) as client:
        client.infer("net", Given())
        client.infer("net", Given(), request_id="mine")
    first, second = read(file)
    assert first.names == second.names == steps
    assert first.about == {"id": 1, "model_name": "net", "model_version": 1}
    assert second.about == {"id": 2, "model_name": "net", "model_version": 1, "request_id": "mine"}
    assert second.times[0] > first.times[0]


def json_request(request_id: str = "") -> dict[str, Any]:
    return {"id": request_id, "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}


def test_tensors_are_written_as_they_went_in_and_came_out(repository: Path, file: Path) -> None:
    with traced(repository, file, "level=TENSORS", "rate=1") as live:
        assert live.infer_binary("net", X).status == 200
    [trace] = read(file)
    assert trace.names == []
    assert trace.tensors == [
        ("TENSOR_QUEUE_INPUT", "x", "1,2"),
        ("TENSOR_BACKEND_INPUT", "x", "1,2"),
        ("TENSOR_BACKEND_OUTPUT", "y", "2,4"),
    ]


def test_every_third_request_is_traced_whatever_it_came_over(repository: Path, file: Path) -> None:
    with traced(repository, file, "level=TIMESTAMPS", "rate=3") as live, live.channel() as channel:
        for number in range(9):
            if number % 2:
                channel.infer("net", X, id=str(number))
            else:
                assert live.infer("net", json_request(str(number))).status == 200
    assert [trace.about["request_id"] for trace in read(file)] == ["2", "5", "8"]


def test_a_count_and_a_frequency_make_numbered_files(repository: Path, file: Path) -> None:
    flags = ("level=TIMESTAMPS", "rate=1", "count=5", "triton,log-frequency=2")
    with traced(repository, file, *flags) as live:
        for number in range(9):
            assert live.infer("net", json_request(str(number))).status == 200
        assert live.get("/v2/trace/setting").json["trace_count"] == "0"
        assert not live.server.tracer.on
    ids = [[t.about["request_id"] for t in read(file.with_name(f"trace.json.{n}"))] for n in range(3)]
    assert ids == [["0", "1"], ["2", "3"], ["4"]]
    assert not file.exists()


def test_settings_changed_over_the_network_govern_the_next_request(repository: Path, file: Path) -> None:
    def change(path: str, **values: Any) -> None:
        assert live.http("POST", path, json.dumps(values).encode()).status == 200

    with traced(repository, file, "rate=1") as live:
        live.infer("net", json_request("off"))
        change("/v2/models/net/trace/setting", trace_level=["TIMESTAMPS"])
        live.infer("net", json_request("model"))
        live.infer("wide", {"inputs": []})
        change("/v2/models/net/trace/setting", trace_level=None)
        live.infer("net", json_request("cleared"))
        change("/v2/trace/setting", trace_level=["TIMESTAMPS"])
        live.infer("net", json_request("server"))
    assert [trace.about["request_id"] for trace in read(file)] == ["model", "server"]


def test_sending_ends_when_the_client_has_taken_the_answer(repository: Path, file: Path) -> None:
    head = infer_head(1 << 20, rows=4)
    with traced(repository, file) as live, live.raw_http() as raw:
        raw.sendall(head + bytes(16 << 20))
        eventually(lambda: counters(live, "wide")["success"] == 1)
        pause = threading.Event()
        assert not pause.wait(0.2)
        answer = http.client.HTTPResponse(raw)
        answer.begin()
        answer.read()
    [trace] = read(file)
    at = dict(zip(trace.names, trace.times, strict=True))
    assert trace.names == HTTP
    assert at["HTTP_SEND_END"] - at["HTTP_SEND_START"] > 100_000_000


def infer_head(width: int, rows: int) -> bytes:
    """The head of a request to `wide` whose answer no socket takes at once."""
    size = width * rows * 4
    item = {"name": "x", "datatype": "FP32", "shape": [rows, width], "parameters": {"binary_data_size": size}}
    head = json.dumps({"inputs": [item], "parameters": {"binary_data_output": True}}).encode()
    lines = [
        "POST /v2/models/wide/infer HTTP/1.1",
        "Host: localhost",
        f"Inference-Header-Content-Length: {len(head)}",
        f"Content-Length: {len(head) + size}",
        "",
        "",
    ]
    return "\r\n".join(lines).encode() + head


def test_a_compressed_answer_is_traced_to_its_end(repository: Path, file: Path) -> None:
    with traced(repository, file) as live:
        answer = live.http(
            "POST", "/v2/models/net/infer", json.dumps(json_request()).encode(), {"Accept-Encoding": "gzip"}
        )
        assert answer.headers["content-encoding"] == "gzip"
        large = {
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1 << 20], "data": [0] * (1 << 20)}]
        }
        body = json.dumps(large).encode()
        assert live.http("POST", "/v2/models/wide/infer", body, {"Accept-Encoding": "gzip"}).status == 200
    assert [trace.names for trace in read(file)] == [HTTP, HTTP]


def test_a_request_that_fails_in_the_model_is_traced_to_its_answer(repository: Path, file: Path) -> None:
    values = repeat([1, 2])
    values["DELAY"] = values["DELAY"][:1]
    with traced(repository, file) as live, stream(live) as calls:
        calls.send(request("repeat", values, "bad"))
        assert calls.next().error
        calls.half_close()
        calls.rest()
    [trace] = read(file)
    assert trace.names == GRPC


def test_a_client_that_goes_away_leaves_a_trace_without_an_answer(repository: Path, file: Path) -> None:
    with traced(repository, file) as live:
        with live.raw_grpc() as channel:
            call = channel.unary_unary(SERVICE + "ModelInfer").future(infer_message("busy", X))
            eventually(lambda: any(model.in_flight for model in live.server.plane.served()))
            call.cancel()
        eventually(lambda: not any(model.in_flight for model in live.server.plane.served()))
        leaves = live.begin("/v2/models/busy/infer", json_request())
        eventually(lambda: any(model.in_flight for model in live.server.plane.served()))
        reset(leaves)
    for trace, start in zip(read(file), (GRPC[:2], HTTP[:2]), strict=True):
        assert trace.names[:3] == [*start, "REQUEST_START"]
        assert trace.names[-2:] == ["REQUEST_END", "INFER_RESPONSE_COMPLETE"]


def test_each_request_of_a_stream_is_traced_by_itself(repository: Path, file: Path) -> None:
    with traced(repository, file) as live, stream(live) as calls:
        calls.send(request("repeat", repeat([1, 2, 3]), "one"), request("repeat", repeat([4]), "two"))
        calls.half_close()
        assert len(calls.rest()) == 4
    told = {trace.about["request_id"]: trace for trace in unordered(file)}
    assert set(told) == {"one", "two"}
    for trace in told.values():
        assert sorted(trace.names) == sorted(GRPC)
        at = dict(zip(trace.names, trace.times, strict=True))
        model = [at[name] for name in MODEL if name not in ("COMPUTE_OUTPUT_START",)]
        assert model == sorted(model)
        assert at["GRPC_WAITREAD_START"] <= at["GRPC_WAITREAD_END"] <= at["REQUEST_START"]
        assert at["INFER_RESPONSE_COMPLETE"] <= at["GRPC_SEND_START"] <= at["GRPC_SEND_END"]


def test_generation_is_traced_to_its_last_event(repository: Path, file: Path) -> None:
    with traced(repository, file) as live:
        path = "/v2/models/repeat/generate_stream"
        assert live.http("POST", path, repeat_body([1, 2], delay=20)).status == 200
        assert live.http("POST", "/v2/models/repeat/generate", repeat_body([1])).status == 200
    streamed, single = unordered(file)
    for trace in (streamed, single):
        assert sorted(trace.names) == sorted(HTTP)
        assert trace.names[-1] == "HTTP_SEND_END"
        assert trace.times[-1] == max(trace.times)
    at = dict(zip(streamed.names, streamed.times, strict=True))
    assert at["HTTP_SEND_END"] - at["HTTP_SEND_START"] > 10_000_000


def test_requests_that_are_refused_before_the_model_leave_no_trace(repository: Path, file: Path) -> None:
    with traced(repository, file) as live:
        assert live.infer("nope", json_request()).status == 404
        assert live.infer("net", {"inputs": []}).status == 400
        assert live.infer("net", json_request("good")).status == 200
    assert [trace.about["request_id"] for trace in read(file)] == ["good"]


def test_a_full_disk_is_told_once_and_the_server_serves_on(
    repository: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with traced(repository, Path("/dev/full")) as live:
        for _ in range(20):
            assert live.infer_binary("net", X).status == 200
    told = [record.getMessage() for record in caplog.records if "trace file" in record.getMessage()]
    assert len(told) == 1
    assert told[0].startswith("trace file '/dev/full' does not accept traces: No space left on device")


@in_one_process
def test_a_server_that_traces_nothing_asks_no_request_for_its_times(repository: Path) -> None:
    with serving(repository) as live:
        assert [listener.observer for listener, _ in live.server.endpoints.listeners] == [None] * 3
        assert live.infer_binary("net", X).status == 200


def test_an_answer_from_the_cache_was_not_computed(repository: Path, file: Path, tmp_path: Path) -> None:
    write_model(tmp_path / "models", "kept", config="max_batch_size: 4 response_cache { enable: true }")
    with traced(tmp_path / "models", file, response_cache_byte_size=1 << 20) as live:
        for _ in range(2):
            assert live.infer_binary("kept", X).status == 200
    computed, known = read(file)
    assert computed.names == HTTP
    assert known.names == [name for name in HTTP if not name.startswith("COMPUTE")]


ENSEMBLE = """
platform: "ensemble" max_batch_size: 4
input { name: "in" data_type: TYPE_FP32 dims: 2 } output { name: "out" data_type: TYPE_FP32 dims: 2 }
ensemble_scheduling {
  step {
    model_name: "net" model_version: -1
    input_map { key: "x" value: "in" } output_map { key: "y" value: "middle" }
  }
  step {
    model_name: "net" model_version: -1
    input_map { key: "x" value: "middle" } output_map { key: "y" value: "out" }
  }
}
"""


def test_the_steps_of_an_ensemble_name_their_parent(file: Path, tmp_path: Path) -> None:
    repository = tmp_path / "models"
    write_model(repository, "net", doubling())
    (repository / "chain" / "1").mkdir(parents=True)
    (repository / "chain" / "config.pbtxt").write_text(ENSEMBLE, encoding="utf-8")
    with traced(repository, file) as live:
        assert live.infer_binary("chain", {"in": floats([1, 2])}).status == 200
    whole, first, second = unordered(file)
    assert whole.names == [name for name in HTTP if not name.startswith("COMPUTE")]
    assert whole.about == {"id": 1, "model_name": "chain", "model_version": 1}
    for number, step in enumerate((first, second), 2):
        assert step.about == {"id": number, "model_name": "net", "model_version": 1, "parent_id": 1}
        assert step.names == MODEL
        assert step.times == sorted(step.times)
    assert whole.times[2] <= first.times[0] <= first.times[-1] <= second.times[0] <= second.times[-1]
