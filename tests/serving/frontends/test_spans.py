"""Traces as spans of OpenTelemetry: real requests by both protocols, and a real collector."""

import json
import queue
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from tests.serving.backends.llamacpp.models import TINY
from tests.serving.backends.python.conftest import SAY
from tests.serving.backends.python.zoo import SAME, add
from tests.serving.frontends.streams import repeat_body
from tests.serving.live import Live, floats, serving
from tests.serving.onnx_files import doubling, write_model
from tests.serving.repository.composed import house
from tests.serving.tracing.collector import Collector, Span, collecting
from tests.waiting import eventually
from tpx.serving.tracing.flags import trace_flag

MODEL = ("REQUEST_START", "QUEUE_START", "REQUEST_END")
COMPUTE = ("COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END")
HTTP = ("HTTP_RECV_START", "HTTP_RECV_END", "INFER_RESPONSE_COMPLETE", "HTTP_SEND_START", "HTTP_SEND_END")
GRPC = (
    *("GRPC_WAITREAD_START", "GRPC_WAITREAD_END"),
    *("INFER_RESPONSE_COMPLETE", "GRPC_SEND_START", "GRPC_SEND_END"),
)
TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c12666c", "b7ad6b7169242424"
CALLER = {"traceparent": f"00-{TRACE_ID}-{SPAN_ID}-01", "tracestate": "congo=t61,rojo=1"}
UNSAMPLED = {"traceparent": f"00-{TRACE_ID}-{SPAN_ID}-00"}
X = {"x": floats([1, 2])}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models")
    house(path)
    write_model(path, "net", doubling())
    (path / "repeat" / "1").mkdir(parents=True)
    (path / "repeat" / "config.pbtxt").write_text("backend: 'repeat'")
    return path


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python models."""
    path = tmp_path_factory.mktemp("scripts")
    add(path, "bls", config=SAME + "instance_group { count: 1 }")
    add(path, "double", config=SAME + "instance_group { count: 1 }")
    add(path, "say", config=SAY)
    return path


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as made:
        yield made


@contextmanager
def traced(repository: Path, collector: Collector, *words: str, **options: Any) -> Iterator[Live]:
    """A server that traces every request, unless told otherwise, and does not wait long with spans."""
    usual = ("mode=opentelemetry", "level=TIMESTAMPS", "rate=1", f"opentelemetry,url={collector.url}")
    delay = "opentelemetry,bsp_schedule_delay=20"
    with serving(repository, trace_config=tuple(map(trace_flag, (*usual, delay, *words))), **options) as live:
        yield live


def http_infer(live: Live, model: str = "net", headers: Mapping[str, str] | None = None) -> None:
    with tritonclient.http.InferenceServerClient(f"127.0.0.1:{live.http_port}") as client:
        given = tritonclient.http.InferInput("x", [1, 2], "FP32")
        given.set_data_from_numpy(X["x"])
        client.infer(model, [given], request_id="mine", headers=dict(headers) if headers else None)


def grpc_input() -> Any:
    given = tritonclient.grpc.InferInput("x", [1, 2], "FP32")
    given.set_data_from_numpy(X["x"])
    return given


@contextmanager
def grpc_client(live: Live) -> Iterator[Any]:
    with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{live.ports['GRPCInferenceService']}") as client:
        yield client


def check_nesting(spans: Mapping[str, Span], parents: Mapping[str, str]) -> None:
    """Every span but the first lies below the one that `parents` names, within its time."""
    [trace_id] = {span.trace_id for span in spans.values()}
    assert int(trace_id, 16)
    for name, above in parents.items():
        assert spans[name].parent_id == spans[above].span_id, name
        assert spans[name].started_ns >= spans[above].started_ns
        assert spans[name].ended_ns <= spans[above].ended_ns


def test_a_request_over_http_has_tritons_three_spans(repository: Path, collector: Collector) -> None:
    began_ns = time.time_ns()
    with traced(repository, collector) as live:
        http_infer(live)
        spans = collector.named(3)
    root, net, compute = spans["InferRequest"], spans["net"], spans["compute"]
    assert (root.events, net.events, compute.events) == (HTTP, MODEL, COMPUTE)
    assert root.parent_id == ""
    check_nesting(spans, {"net": "InferRequest", "compute": "net"})
    assert net.attributes == {
        "triton.model_name": "net",
        "triton.model_version": 1,
        "triton.trace_id": 1,
        "triton.trace_parent_id": 0,
        "triton.request_id": "mine",
    }
    assert root.attributes == compute.attributes == {}
    assert {span.kind for span in spans.values()} == {2}  # a server's
    for span in spans.values():
        assert span.times == tuple(sorted(span.times))
        assert (span.started_ns, span.ended_ns) == (span.times[0], span.times[-1])
        assert began_ns <= span.started_ns <= span.ended_ns <= time.time_ns()
    assert collector.resources[0]["service.name"] == "triton-inference-server"


@pytest.mark.parametrize("over", ["http", "grpc", "a stream"])
def test_a_caller_has_the_spans_below_its_own(repository: Path, collector: Collector, over: str) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    with traced(repository, collector, "rate=0") as live, grpc_client(live) as client:
        http_infer(live)  # not traced: it has no caller
        if over == "http":
            http_infer(live, headers=CALLER)
        elif over == "grpc":
            client.infer("net", [grpc_input()], headers=CALLER)
        else:
            client.start_stream(lambda result, error: answers.put(error or result), headers=CALLER)
            client.async_stream_infer("net", [grpc_input()])
            assert answers.get(timeout=20).as_numpy("y").tolist() == [[2, 4]]
            client.stop_stream()
        spans = collector.named(3)
    root = spans["InferRequest"]
    assert (root.trace_id, root.parent_id) == (TRACE_ID, SPAN_ID)
    assert root.events == (HTTP if over == "http" else GRPC)
    assert spans["net"].events == MODEL
    assert ("triton.request_id" in spans["net"].attributes) is (over == "http")
    assert {span.state for span in spans.values()} == {CALLER["tracestate"]}
    check_nesting(spans, {"net": "InferRequest", "compute": "net"})


def test_what_a_caller_does_not_record_is_counted_like_any_other(
    repository: Path, collector: Collector
) -> None:
    with traced(repository, collector, "rate=3") as live:
        for headers in (UNSAMPLED, CALLER, UNSAMPLED, UNSAMPLED):
            http_infer(live, headers=headers)
        assert len(collector.spans(6)) == 6
    ids = [span.attributes["triton.trace_id"] for span in collector.spans(6) if span.name == "net"]
    assert ids == [1, 2]  # the caller's, and the third
    assert {span.trace_id for span in collector.spans(6)} == {TRACE_ID}


def test_a_count_that_is_used_up_leaves_what_callers_record(repository: Path, collector: Collector) -> None:
    with traced(repository, collector, "count=1") as live:
        for headers in ({}, {}, CALLER):
            http_infer(live, headers=headers)
        spans = [span for span in collector.spans(6) if span.name == "InferRequest"]
        told = live.get("/v2/trace/setting").json
    assert [span.trace_id == TRACE_ID for span in spans] == [False, True]
    assert told["trace_count"] == "0"


@pytest.mark.parametrize("header", ["nonsense", f"00-{'0' * 32}-{SPAN_ID}-01", ""])
def test_a_header_that_says_nothing_is_passed_over(
    repository: Path, collector: Collector, header: str
) -> None:
    with traced(repository, collector) as live:
        http_infer(live, headers={"traceparent": header})
        assert collector.named(3)["InferRequest"].parent_id == ""


def test_the_steps_of_an_ensemble_lie_below_it(repository: Path, collector: Collector) -> None:
    with traced(repository, collector) as live:
        http_infer(live, "top")
        spans = collector.spans(9)
    assert sorted(span.name for span in spans) == sorted(
        ["InferRequest", "top", "two", "inner", "three", "five", *["compute"] * 3]
    )
    models = {span.name: span for span in spans if span.name != "compute"}
    above = {"top": "InferRequest", "two": "top", "inner": "top", "three": "inner", "five": "inner"}
    check_nesting(models, above)
    assert {span.parent_id for span in spans if span.name == "compute"} == {
        models[name].span_id for name in ("two", "three", "five")
    }
    ids = {name: span.attributes["triton.trace_id"] for name, span in models.items() if span.attributes}
    parents = {n: span.attributes["triton.trace_parent_id"] for n, span in models.items() if span.attributes}
    assert parents == {name: ids.get(above[name], 0) for name in above}


def test_what_a_python_model_calls_lies_below_it(scripts: Path, collector: Collector) -> None:
    with traced(scripts, collector) as live:
        answer = live.infer_binary("bls", {"x": np.ones(2, np.float32)}, parameters={"model": "double"})
        assert answer.status == 200
        refused = live.infer_binary("bls", {"x": np.ones(2, np.float32)}, parameters={"model": "nothing"})
        assert refused.status != 200
        spans = collector.spans(8)
    first, second = spans[:5], spans[5:]
    models = {span.name: span for span in first if span.name != "compute"}
    check_nesting(models, {"bls": "InferRequest", "double": "bls"})
    assert sorted(span.parent_id for span in first if span.name == "compute") == sorted(
        [models["bls"].span_id, models["double"].span_id]
    )
    assert sorted(span.name for span in second) == ["InferRequest", "bls", "compute"]
    assert {span.name for span in second if "nothing" in span.error} == {"InferRequest", "bls"}


def test_a_python_model_can_put_spans_of_its_own_below_its_span(scripts: Path, collector: Collector) -> None:
    body = {"inputs": [{"name": "say", "datatype": "BYTES", "shape": [1], "data": ["trace"]}]}
    with traced(scripts, collector) as live:
        answer = live.http("POST", "/v2/models/say/infer", json.dumps(body).encode(), CALLER).json
        span = collector.named(3)["say"]
    context = json.loads(answer["outputs"][0]["data"][0].partition("'")[2].partition("'")[0])
    assert context == {
        "traceparent": f"00-{TRACE_ID}-{span.span_id}-01",
        "tracestate": CALLER["tracestate"],
    }


def test_many_responses_are_one_trace(repository: Path, collector: Collector) -> None:
    with traced(repository, collector) as live:
        answer = live.http("POST", "/v2/models/repeat/generate_stream", repeat_body([1, 2, 3]))
        assert answer.body.count(b"data:") == 3
        spans = collector.named(3)
    assert spans["InferRequest"].events == HTTP
    assert spans["repeat"].events == MODEL


def test_the_span_of_a_language_model_has_its_tokens(collector: Collector) -> None:
    with traced(TINY, collector) as live:
        asked = {"model": "tiny", "prompt": [5, 6, 7], "max_tokens": 4, "ignore_eos": True, "stream": True}
        live.http("POST", "/v1/completions", json.dumps(asked).encode())
        spans = collector.named(3)
    tokens = {key: value for key, value in spans["tiny"].attributes.items() if key.startswith("gen_ai.")}
    assert tokens == {"gen_ai.usage.input_tokens": 3, "gen_ai.usage.output_tokens": 4}


def test_resources_and_names_are_what_the_flags_say(
    repository: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=environment,deployment=here")
    words = ("opentelemetry,resource=test.key=a=b", "opentelemetry,resource=service.version=3")
    with traced(repository, collector, *words) as live:
        http_infer(live)
        collector.spans(3)
        told = live.get("/v2/trace/setting").json
    said = collector.resources[0]
    assert {key: said[key] for key in ("service.name", "deployment", "test.key", "service.version")} == {
        "service.name": "environment",
        "deployment": "here",
        "test.key": "a=b",
        "service.version": "3",
    }
    assert told["resource"] == "test.key=a=b,service.version=3"


def test_the_protocol_tells_tritons_settings_and_changes_those_that_are_not_fixed(
    repository: Path, collector: Collector
) -> None:
    fixed = {
        "trace_mode": "opentelemetry",
        "url": collector.url,
        "bsp_schedule_delay": "20",
        "bsp_max_export_batch_size": "512",
        "bsp_max_queue_size": "2048",
    }
    with traced(repository, collector) as live:
        told = live.get("/v2/trace/setting").json
        assert told == {"trace_level": ["TIMESTAMPS"], "trace_rate": "1", "trace_count": "-1", **fixed}
        same = live.http("POST", "/v2/trace/setting", json.dumps({**told, "trace_rate": "2"}).encode())
        assert same.json == {**told, "trace_rate": "2"}
        for name, value in {**fixed, "trace_file": "", "resource": "a=b"}.items():
            refused = live.http("POST", "/v2/trace/setting", json.dumps({name: value + "x"}).encode())
            assert refused.status in (400, 501), name
        tensors = live.http("POST", "/v2/trace/setting", b'{"trace_level": ["TENSORS"]}')
        assert (tensors.status, tensors.error) == (
            400,
            "Attempting to set invalid trace setting :mode opentelemetry has no level TENSORS",
        )
        with grpc_client(live) as client:
            changed = client.update_trace_settings("net", {"trace_level": ["OFF"]}, as_json=True)["settings"]
            assert changed["trace_level"]["value"] == ["OFF"]
            assert changed["url"]["value"] == [collector.url]
            assert "trace_file" not in changed
        http_infer(live, "net", CALLER)
        http_infer(live, "two", CALLER)
        assert "two" in collector.named(3)


def test_a_refused_request_says_why(scripts: Path, collector: Collector) -> None:
    with traced(scripts, collector) as live:
        body = {
            "inputs": [{"name": "say", "datatype": "BYTES", "shape": [1], "data": ["refuse INTERNAL no"]}]
        }
        assert live.infer("say", body).status == 500
        spans = collector.named(3)
    assert {name: span.error for name, span in spans.items()} == {
        "InferRequest": "no",
        "say": "no",
        "compute": "",
    }


def test_what_waits_at_the_end_is_sent(repository: Path, collector: Collector) -> None:
    with traced(repository, collector, "opentelemetry,bsp_schedule_delay=3600000") as live:
        http_infer(live)
    assert len(collector.spans(3)) == 3


def test_batches_have_their_size_and_leave_when_they_are_full(repository: Path, collector: Collector) -> None:
    words = ("opentelemetry,bsp_schedule_delay=3600000", "opentelemetry,bsp_max_export_batch_size=6")
    with traced(repository, collector, *words) as live:
        for _ in range(5):
            http_infer(live)
        collector.spans(12)
    assert len(collector.spans(15)) == 15
    assert collector.batches == [6, 6, 3]


def test_a_collector_that_hangs_holds_nobody_up(
    repository: Path, collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    collector.open.clear()
    words = ("opentelemetry,bsp_max_queue_size=30", "opentelemetry,bsp_max_export_batch_size=6")
    with traced(repository, collector, *words) as live:
        threads = [threading.Thread(target=partial(many, live, 25)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()
        collector.open.set()
        taken = len(collector.spans(30))
    assert 30 <= taken <= 36 + 6  # what waited, and a batch that was on its way
    [warning] = [record for record in caplog.records if "dropped a trace" in record.message]
    assert warning.message == f"dropped a trace: the queue of '{collector.url}' is full (0 before)"


def many(live: Live, count: int) -> None:
    for _ in range(count):
        assert live.infer_binary("net", X).status == 200


def test_a_collector_that_refuses_is_told_once_and_once_that_it_is_over(
    repository: Path, collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "tpx.serving.tracing")
    collector.status = 400
    with traced(repository, collector) as live:
        for refused in range(1, 4):
            http_infer(live)
            eventually(lambda: collector.asked >= refused)  # noqa: B023
        collector.status = 200
        http_infer(live)
        collector.spans(3)
    told = [record.message for record in caplog.records if record.name.endswith("tracing.queue")]
    assert len(told) == 2, told
    assert told[0].startswith(f"'{collector.url}' does not accept traces: Failed to export")
    assert "400" in told[0]
    assert told[1] == f"'{collector.url}' accepts traces again"
