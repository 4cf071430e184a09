"""The metrics page, as Prometheus' own parser reads it."""

import http.client
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.serving.live import Live, floats, serving
from tests.serving.onnx_files import doubling, write_model

EXPECTED = {
    "nv_inference_request_success": (
        "counter",
        "Number of successful inference requests, all batch sizes",
    ),
    "nv_inference_request_failure": ("counter", "Number of failed inference requests, all batch sizes"),
    "nv_inference_count": (
        "counter",
        "Number of inferences performed (does not include cached requests)",
    ),
    "nv_inference_exec_count": (
        "counter",
        "Number of model executions performed (does not include cached requests)",
    ),
    "nv_inference_request_duration_us": (
        "counter",
        "Cumulative inference request duration in microseconds (includes cached requests)",
    ),
    "nv_inference_queue_duration_us": (
        "counter",
        "Cumulative inference queuing duration in microseconds (includes cached requests)",
    ),
    "nv_inference_compute_input_duration_us": (
        "counter",
        "Cumulative compute input duration in microseconds (does not include cached requests)",
    ),
    "nv_inference_compute_infer_duration_us": (
        "counter",
        "Cumulative compute inference duration in microseconds (does not include cached requests)",
    ),
    "nv_inference_compute_output_duration_us": (
        "counter",
        "Cumulative inference compute output duration in microseconds (does not include cached requests)",
    ),
    "nv_inference_pending_request_count": (
        "gauge",
        "Instantaneous number of pending requests awaiting execution per-model.",
    ),
    "nv_model_load_duration_secs": ("gauge", "Model load time in seconds"),
}


def page(live: Live, path: str = "/metrics", method: str = "GET") -> tuple[int, str, str]:
    """Status, content type and text."""
    connection = http.client.HTTPConnection("127.0.0.1", live.ports["Metrics Service"], timeout=10)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.getheader("Content-Type") or "", response.read().decode()
    finally:
        connection.close()


def samples(live: Live, model: str) -> dict[Any, float]:
    """The values of a model by name, or by name and reason."""
    out: dict[Any, float] = {}
    for family in text_string_to_metric_families(page(live)[2]):
        for sample in family.samples:
            if sample.labels["model"] == model:
                reason = sample.labels.get("reason")
                # this parser calls counters as OpenMetrics does
                name = sample.name.removesuffix("_total")
                out[(name, reason) if reason else name] = sample.value
    return out


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Live]:
    """A server that nobody has asked anything."""
    write_model(tmp_path, "net", doubling())
    with serving(tmp_path) as running:
        yield running


def test_every_family_has_its_name_type_and_help(live: Live) -> None:
    status, content_type, text = page(live)
    assert (status, content_type) == (200, "text/plain; charset=utf-8")
    lines = text.splitlines()
    for name, (kind, words) in EXPECTED.items():
        at = lines.index(f"# HELP {name} {words}")
        assert lines[at + 1] == f"# TYPE {name} {kind}"
    assert sum(line.startswith("# HELP") for line in lines) == len(EXPECTED)
    assert text.endswith("\n")


def test_every_version_has_its_series(live: Live) -> None:
    series = {
        (sample.name.removesuffix("_total"), sample.labels["model"], sample.labels["version"])
        for family in text_string_to_metric_families(page(live)[2])
        for sample in family.samples
    }
    for version in ("1", "3"):
        assert ("nv_inference_count", "versions", version) in series


def test_a_server_that_was_asked_nothing_counts_from_zero(fresh: Live) -> None:
    values = samples(fresh, "net")
    assert values.pop("nv_model_load_duration_secs") > 0
    assert set(values.values()) == {0}
    reasons = {key[1] for key in values if isinstance(key, tuple)}
    assert reasons == {"REJECTED", "CANCELED", "BACKEND", "OTHER"}


def test_counters_count_requests_rows_and_executions(fresh: Live) -> None:
    for rows in (1, 2, 3):
        assert fresh.infer_binary("net", {"x": floats(*[[1, 2]] * rows)}).status == 200
    values = samples(fresh, "net")
    assert values["nv_inference_request_success"] == 3
    assert values["nv_inference_count"] == 6
    assert values["nv_inference_exec_count"] == 3
    assert values["nv_inference_pending_request_count"] == 0
    [stats] = fresh.get("/v2/models/net/stats").json["model_stats"]
    for name, phase in [
        ("request", "success"),
        ("queue", "queue"),
        ("compute_input", "compute_input"),
        ("compute_infer", "compute_infer"),
        ("compute_output", "compute_output"),
    ]:
        assert values[f"nv_inference_{name}_duration_us"] == stats["inference_stats"][phase]["ns"] // 1000


def test_tags_become_labels_with_their_values_escaped(live: Live) -> None:
    [family] = [f for f in text_string_to_metric_families(page(live)[2]) if f.name == "nv_inference_count"]
    [sample] = [s for s in family.samples if s.labels["model"] == "tagged"]
    assert sample.labels == {
        "model": "tagged",
        "version": "1",
        "_team": 'a "b" \\ c\nd',
        "_odd_key": "1",
    }


def test_names_of_models_are_escaped(tmp_path: Path) -> None:
    names = ["plain", 'qu"ote', "back\\slash", "new\nline", "ü b"]
    for name in names:
        write_model(tmp_path, name)
    with serving(tmp_path) as running:
        found = {
            sample.labels["model"]
            for family in text_string_to_metric_families(page(running)[2])
            for sample in family.samples
        }
    assert found == set(names)


def test_large_counters_lose_nothing(fresh: Live) -> None:
    [model] = fresh.server.plane.served()
    model.statistics.inference_count = 2**53 - 1
    model.statistics.execution_count = 123_456_789_012
    model.statistics.load_ns = 1_234_567_890
    lines = page(fresh)[2].splitlines()
    assert 'nv_inference_count{model="net",version="1"} 9007199254740991' in lines
    assert 'nv_inference_exec_count{model="net",version="1"} 123456789012' in lines
    assert 'nv_model_load_duration_secs{model="net",version="1"} 1.23456789' in lines


@pytest.mark.parametrize(
    ("method", "path", "status", "empty"),
    [
        ("GET", "/metrics?name=x", 200, False),
        ("HEAD", "/metrics", 200, True),
        ("GET", "/", 200, True),
        ("GET", "/other", 200, True),
        ("POST", "/metrics", 405, True),
        ("DELETE", "/metrics", 405, True),
    ],
)
def test_paths_and_methods(live: Live, method: str, path: str, status: int, empty: bool) -> None:
    got, _, text = page(live, path, method)
    assert (got, not text) == (status, empty)


def test_the_page_is_there_while_models_compute(live: Live) -> None:
    before = samples(live, "double")["nv_inference_count"]
    for n in range(10):
        live.infer_binary("double", {"x": floats([n, n])})
    assert samples(live, "double")["nv_inference_count"] == before + 10
