"""Latencies as summaries and histograms, and requests that wait."""

import queue
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc

from tests.serving.frontends import streams
from tests.serving.frontends.metrics.pages import PHASES, page_until, scrape
from tests.serving.live import Live, floats, serving
from tests.serving.onnx_files import write_model
from tests.waiting import eventually

SUMMARIES = {
    "nv_inference_request_summary_us": "Summary of inference request duration in microseconds "
    "(not of models with a response cache)",
    "nv_inference_queue_summary_us": "Summary of inference queuing duration in microseconds "
    "(does not include cached requests)",
    "nv_inference_compute_input_summary_us": "Cumulative compute input duration in microseconds "
    "(does not include cached requests)",
    "nv_inference_compute_infer_summary_us": "Cumulative compute inference duration in microseconds "
    "(does not include cached requests)",
    "nv_inference_compute_output_summary_us": "Cumulative inference compute output duration in microseconds "
    "(does not include cached requests)",
}


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server that keeps every distribution there is, and has answered twenty requests and one stream."""
    repository = tmp_path_factory.mktemp("measured")
    write_model(repository, "net")
    write_model(repository, "own", None, _OWN_BUCKETS)
    (repository / "stream" / "1").mkdir(parents=True)
    (repository / "stream" / "config.pbtxt").write_text('backend: "repeat"', encoding="utf-8")
    settings = ("histogram_latencies=true", "summary_latencies=true", "summary_quantiles=0.5:0.01,0.9:0.01")
    with serving(repository, metrics_config=settings) as running:
        for n in range(20):
            assert running.infer_binary("net", {"x": floats([n, n])}).status == 200
        assert running.infer_binary("own", {"x": floats([1, 1])}).status == 200
        assert stream(running, delays_ms=[150, 1, 1]) == [0, 1, 2]
        yield running


_OWN_BUCKETS = """
model_metrics { metric_control {
  metric_identifier { family: "nv_inference_request_duration_histogram_us" }
  histogram_options { buckets: [ -1, 0.0, 2.5, 1e9 ] }
} }
"""


def stream(live: Live, delays_ms: list[int], wait_ms: int = 0) -> list[int]:
    """The indices that the repeating model answers with, one a delay."""
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{live.ports['GRPCInferenceService']}") as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        inputs = []
        for name, array in {
            "IN": np.arange(len(delays_ms), dtype=np.int32),
            "DELAY": np.array(delays_ms, np.uint32),
            "WAIT": np.array([wait_ms], np.uint32),
        }.items():
            datatype = "INT32" if name == "IN" else "UINT32"
            tensor = tritonclient.grpc.InferInput(name, list(array.shape), datatype)
            tensor.set_data_from_numpy(array)
            inputs.append(tensor)
        client.async_stream_infer("stream", inputs)
        got = [answers.get(timeout=10) for _ in delays_ms]
        client.stop_stream()
    assert [error for _, error in got if error is not None] == []
    return [int(result.as_numpy("IDX")[0]) for result, _ in got]


def test_summaries_have_their_names_types_and_helps(measured: Live) -> None:
    page = scrape(measured)
    for name, words in SUMMARIES.items():
        assert (page.kinds[name], page.helps[name]) == ("summary", words)


def test_a_summary_agrees_with_the_counters(measured: Live) -> None:
    page, labels = scrape(measured), {"model": "net", "version": "1"}
    for phase in PHASES:
        name = f"nv_inference_{phase}_summary_us"
        whole = page.value(f"nv_inference_{phase}_duration_us", **labels)
        assert page.value(f"{name}_count", **labels) == 20
        assert page.value(f"{name}_sum", **labels) == whole
        quantiles = page.of(name, **labels)
        assert {dict(rest)["quantile"] for rest in quantiles} == {"0.5", "0.9"}
        middle, high = (page.value(name, quantile=q, **labels) for q in ("0.5", "0.9"))
        assert 0 <= middle <= high <= whole


def test_a_summary_of_a_model_that_was_not_asked_lately_has_no_quantiles(tmp_path: Path) -> None:
    write_model(tmp_path, "net")
    with serving(tmp_path, metrics_config=("summary_latencies=true",)) as running:
        page = scrape(running)
    found = page.of("nv_inference_request_summary_us", model="net", version="1")
    assert len(found) == 5
    assert all(np.isnan(value) for value in found.values())
    assert page.value("nv_inference_request_summary_us_count", model="net", version="1") == 0


def test_a_histogram_agrees_with_the_counters(measured: Live) -> None:
    page, labels = scrape(measured), {"model": "net", "version": "1"}
    for phase in PHASES:
        name = f"nv_inference_{phase}_duration_histogram_us"
        assert page.kinds[name] == "histogram"
        assert page.value(f"{name}_count", **labels) == 20
        assert page.value(f"{name}_sum", **labels) == page.value(
            f"nv_inference_{phase}_duration_us", **labels
        )
        buckets = {dict(rest)["le"]: count for rest, count in page.of(f"{name}_bucket", **labels).items()}
        rising = [buckets[le] for le in sorted(buckets, key=float)]
        assert rising == sorted(rising)
        assert buckets["+Inf"] == 20


def test_a_model_chooses_the_buckets_of_its_histograms(measured: Live) -> None:
    name = "nv_inference_request_duration_histogram_us_bucket"
    found = scrape(measured).of(name, model="own", version="1")
    assert {dict(rest)["le"]: count for rest, count in found.items()} == {
        "-1": 0,
        "0": 0,
        "2.5": 0,
        "1000000000": 1,
        "+Inf": 1,
    }


def test_the_first_response_is_measured_of_all_models(measured: Live) -> None:
    page, labels = scrape(measured), {"model": "stream", "version": "1"}
    name = "nv_inference_first_response_histogram_ms"
    assert page.helps[name] == "Duration from request to first response in milliseconds"
    counts = {dict(rest)["model"]: count for rest, count in page.of(f"{name}_count", version="1").items()}
    assert counts == {"net": 20, "own": 1, "stream": 1}
    assert 150 <= page.value(f"{name}_sum", **labels) < 500
    buckets = {dict(rest)["le"]: count for rest, count in page.of(f"{name}_bucket", **labels).items()}
    assert buckets == {"100": 0, "500": 1, "2000": 1, "5000": 1, "+Inf": 1}


def test_requests_are_pending_until_an_instance_begins(measured: Live) -> None:
    name, labels = "nv_inference_pending_request_count", {"model": "stream", "version": "1"}
    assert scrape(measured).value(name, **labels) == 0
    with ExitStack() as stack:
        calls = [stack.enter_context(streams.stream(measured)) for _ in range(3)]
        for asked, call in enumerate(calls, 1):
            call.send(streams.request("stream", streams.repeat([1], delay=50_000)))
            eventually(lambda: streams.counters(measured, "stream")["in_flight"] == asked)  # noqa: B023
        # one is computed, one is in the instance's hand, one is in the queue
        page_until(measured, name, 2, **labels)
        for call, waiting in zip(calls, (1, 0), strict=False):
            call.call.cancel()
            page_until(measured, name, waiting, **labels)
