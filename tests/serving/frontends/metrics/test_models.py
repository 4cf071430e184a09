"""The models' series: what they are called, and that they change as requests do."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper

from tests.e2e.child import FRONTENDS
from tests.serving.frontends.metrics.pages import PHASES, ask, page_until, scrape
from tests.serving.live import Live, binary_request, floats, infer_message, serving
from tests.serving.onnx_files import doubling, graph, identity, node, value, write_model
from tests.waiting import eventually

FAMILIES = {
    "nv_inference_request_success": "Number of successful inference requests, all batch sizes",
    "nv_inference_request_failure": "Number of failed inference requests, all batch sizes",
    "nv_inference_count": "Number of inferences performed (does not include cached requests)",
    "nv_inference_exec_count": "Number of model executions performed (does not include cached requests)",
    "nv_inference_request_duration_us": "Cumulative inference request duration in microseconds "
    "(includes cached requests)",
    "nv_inference_queue_duration_us": "Cumulative inference queuing duration in microseconds "
    "(includes cached requests)",
    "nv_inference_compute_input_duration_us": "Cumulative compute input duration in microseconds "
    "(does not include cached requests)",
    "nv_inference_compute_infer_duration_us": "Cumulative compute inference duration in microseconds "
    "(does not include cached requests)",
    "nv_inference_compute_output_duration_us": "Cumulative inference compute output duration in microseconds "
    "(does not include cached requests)",
    "nv_inference_pending_request_count": "Instantaneous number of pending requests awaiting execution "
    "per-model.",
    "nv_model_load_duration_secs": "Model load time in seconds",
    "tpx_requests_in_flight": "Number of inference requests that are not yet answered",
}
GAUGES = ("nv_inference_pending_request_count", "nv_model_load_duration_secs", "tpx_requests_in_flight")
OF_FRONTENDS = {"tpx_frontend_connections"} if FRONTENDS else set()


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Live]:
    """A server that nobody has asked anything."""
    write_model(tmp_path, "net")
    with serving(tmp_path) as running:
        yield running


# names


def test_every_family_has_its_name_type_and_help(live: Live) -> None:
    page = scrape(live)
    for name, words in FAMILIES.items():
        kind = "gauge" if name in GAUGES else "counter"
        assert (page.kinds[name], page.helps[name]) == (kind, words)


def test_families_without_a_series_are_there_only_if_every_model_has_them(tmp_path: Path) -> None:
    settings = ("histogram_latencies=true", "summary_latencies=true")
    with serving(tmp_path, metrics_config=settings, allow_cpu_metrics=False) as running:
        page = scrape(running)
    assert set(page.kinds) - OF_FRONTENDS == set(FAMILIES)
    assert {series.name for series in page.values} == OF_FRONTENDS


def test_every_version_has_its_series(live: Live) -> None:
    page = scrape(live)
    assert {dict(rest)["version"] for rest in page.of("nv_inference_count", model="versions")} == {"1", "3"}


def test_a_model_of_the_name_of_another_version_has_the_same_families(live: Live) -> None:
    page = scrape(live)
    for name in FAMILIES:
        assert len(page.of(name, model="versions")) == (8 if name.endswith("failure") else 2)


def test_tags_become_labels_with_their_values_escaped(live: Live) -> None:
    found = scrape(live).of("nv_inference_count", model="tagged", version="1")
    assert list(found) == [frozenset({("_team", 'a "b" \\ c\nd'), ("_odd_key", "1")})]


def test_labels_are_in_tritons_order(live: Live) -> None:
    lines = [line.rpartition(" ")[0] for line in ask(live.ports["Metrics Service"]).text.splitlines()]
    team = r'_odd_key="1",_team="a \"b\" \\ c\nd",model="tagged"'
    assert f'nv_inference_count{{{team},version="1"}}' in lines
    assert f'nv_inference_request_failure{{{team},reason="OTHER",version="1"}}' in lines


def test_names_of_models_are_escaped(tmp_path: Path) -> None:
    names = ["plain", 'qu"ote', "back\\slash", "new\nline", "ü b"]
    for name in names:
        write_model(tmp_path, name)
    with serving(tmp_path) as running:
        found = scrape(running).of("nv_inference_count", version="1")
    assert {dict(rest)["model"] for rest in found} == set(names)


# counts


def test_a_server_that_was_asked_nothing_counts_from_zero(fresh: Live) -> None:
    page = scrape(fresh)
    labels = {"model": "net", "version": "1"}
    assert page.value("nv_model_load_duration_secs", **labels) > 0
    assert {page.value(name, **labels) for name in set(FAMILIES) - set(GAUGES) if "failure" not in name} == {
        0
    }
    failures = page.of("nv_inference_request_failure", **labels)
    assert {dict(rest)["reason"]: count for rest, count in failures.items()} == {
        "REJECTED": 0,
        "CANCELED": 0,
        "BACKEND": 0,
        "OTHER": 0,
    }


def test_counters_count_requests_rows_and_executions(fresh: Live) -> None:
    for rows in (1, 2, 3):
        assert fresh.infer_binary("net", {"x": floats(*[[1, 2]] * rows)}).status == 200
    page, labels = scrape(fresh), {"model": "net", "version": "1"}
    assert page.value("nv_inference_request_success", **labels) == 3
    assert page.value("nv_inference_count", **labels) == 6
    assert page.value("nv_inference_exec_count", **labels) == 3
    assert page.value("nv_inference_pending_request_count", **labels) == 0
    assert page.failures("net") == {}
    [stats] = fresh.get("/v2/models/net/stats").json["model_stats"]
    for name in PHASES:
        shown = page.value(f"nv_inference_{name}_duration_us", **labels)
        phase = "success" if name == "request" else name
        assert shown == stats["inference_stats"][phase]["ns"] // 1000


def test_requests_that_are_computed_together_are_one_execution(tmp_path: Path) -> None:
    patient = "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 5000000 }"
    write_model(tmp_path, "net", doubling(), patient + " ")
    with serving(tmp_path) as running:
        senders = [
            threading.Thread(target=running.infer_binary, args=("net", {"x": floats(*[[n, n]] * 2)}))
            for n in range(4)
        ]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join(20)
        page, labels = scrape(running), {"model": "net", "version": "1"}
    assert page.value("nv_inference_request_success", **labels) == 4
    assert page.value("nv_inference_count", **labels) == 8
    assert page.value("nv_inference_exec_count", **labels) == 1


def test_large_counters_lose_nothing(fresh: Live) -> None:
    [model] = fresh.server.plane.served()
    model.statistics.inference_count = 2**53 - 1
    model.statistics.execution_count = 123_456_789_012
    model.statistics.load_ns = 1_234_567_890
    lines = ask(fresh.ports["Metrics Service"]).text.splitlines()
    assert 'nv_inference_count{model="net",version="1"} 9007199254740991' in lines
    assert 'nv_inference_exec_count{model="net",version="1"} 123456789012' in lines
    assert 'nv_model_load_duration_secs{model="net",version="1"} 1.23456789' in lines


# failures


def _cannot_be_computed() -> Any:
    """Loads, and fails on every input: two values do not fill three rows."""
    shape = numpy_helper.from_array(np.array([3, 1], dtype=np.int64), "shape")
    nodes = [node("Reshape", ["x", "shape"], ["y"])]
    return graph(nodes, [value("x", "FP32", "batch", 2)], [value("y", "FP32", "batch", 1)], [shape])


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """Models that fail each in another way."""
    repository = tmp_path_factory.mktemp("failing")
    write_model(repository, "broken", _cannot_be_computed())
    write_model(repository, "words", identity("BYTES", "batch", "n"), "max_batch_size: 8")
    delay = "dynamic_batching { max_queue_delay_microseconds: 1500000 }"
    write_model(repository, "patient", doubling(), f"max_batch_size: 8 {delay}")
    with serving(repository) as running:
        yield running


def test_what_the_backend_cannot_compute_is_a_failure_of_the_backend(failing: Live) -> None:
    before = scrape(failing).failures("broken").get("BACKEND", 0)
    assert failing.infer_binary("broken", {"x": floats([1, 2])}).status == 500
    page, labels = scrape(failing), {"model": "broken", "version": "1"}
    assert page.failures("broken") == {"BACKEND": before + 1}
    assert page.value("nv_inference_request_success", **labels) == 0
    assert page.value("nv_inference_exec_count", **labels) == 0


def test_a_request_that_turns_out_to_be_wrong_when_it_is_computed_fails_for_another_reason(
    failing: Live,
) -> None:
    before = scrape(failing).failures("words").get("OTHER", 0)
    assert failing.infer_binary("words", {"x": np.array([[b"\xff"]], dtype=np.object_)}).status == 400
    assert scrape(failing).failures("words") == {"OTHER": before + 1}


def test_a_request_whose_client_has_gone_while_it_waited_is_canceled(failing: Live) -> None:
    with failing.raw_http() as client:
        client.sendall(binary_request("patient", {"x": floats([1, 2])}))
        pending = page_until(failing, "nv_inference_pending_request_count", 1, model="patient", version="1")
        assert pending.failures("patient") == {}
    page = page_until(failing, "nv_inference_pending_request_count", 0, model="patient", version="1")
    assert page.failures("patient") == {"CANCELED": 1}
    assert page.value("nv_inference_count", model="patient", version="1") == 0


def test_requests_that_reach_no_model_count_nowhere(failing: Live) -> None:
    before = scrape(failing)
    assert failing.infer_binary("patient", {"y": floats([1, 2])}).status == 400
    assert failing.infer_binary("patient", {"x": floats([1, 2, 3])}).status == 400
    assert failing.infer("patient", b"{").status == 400
    after = scrape(failing)
    names = [name for name in FAMILIES if name not in GAUGES]
    assert {n: after.of(n, model="patient") for n in names} == {
        n: before.of(n, model="patient") for n in names
    }


def test_the_page_is_there_while_models_compute(live: Live) -> None:
    labels = {"model": "double", "version": "1"}
    before = scrape(live).value("nv_inference_count", **labels)
    for n in range(10):
        live.infer_binary("double", {"x": floats([n, n])})
    assert scrape(live).value("nv_inference_count", **labels) == before + 10


def test_grpc_requests_count_as_http_requests_do(fresh: Live) -> None:
    with fresh.channel() as channel:
        channel.send("ModelInfer", infer_message("net", {"x": floats([1, 2], [3, 4])}))
    page, labels = scrape(fresh), {"model": "net", "version": "1"}
    assert page.value("nv_inference_request_success", **labels) == 1
    assert page.value("nv_inference_count", **labels) == 2


def test_counters_of_latencies_can_be_left_out(tmp_path: Path) -> None:
    write_model(tmp_path, "net")
    with serving(tmp_path, metrics_config=("counter_latencies=false",), allow_cpu_metrics=False) as running:
        running.infer_binary("net", {"x": floats([1, 2])})
        page = scrape(running)
    assert set(page.kinds) - OF_FRONTENDS == {name for name in FAMILIES if "duration_us" not in name}
    assert page.value("nv_inference_request_success", model="net", version="1") == 1


def test_series_come_with_a_model_and_go_with_it(tmp_path: Path) -> None:
    for name in ("stays", "goes"):
        write_model(tmp_path, name)
    with serving(tmp_path, model_control_mode="explicit", load_model=("*",)) as running:
        for name in ("stays", "goes"):
            assert running.infer_binary(name, {"x": floats([1, 2])}).status == 200
        assert len(scrape(running).of("nv_inference_count", version="1")) == 2
        assert running.http("POST", "/v2/repository/models/goes/unload").status == 200
        stays = [frozenset({("model", "stays")})]
        eventually(lambda: list(scrape(running).of("nv_inference_count", version="1")) == stays)
        assert not [series for series in scrape(running).values if ("model", "goes") in series.labels]
        assert running.http("POST", "/v2/repository/models/goes/load").status == 200
        page = scrape(running)
    assert page.value("nv_inference_count", model="goes", version="1") == 0
    assert page.value("nv_inference_count", model="stays", version="1") == 1
