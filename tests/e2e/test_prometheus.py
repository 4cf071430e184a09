"""A real Prometheus scrapes a real server: the target is up, and queries give what the server has done."""

import shutil
from collections.abc import Iterator

import numpy as np
import pytest
import tritonclient.http

from tests.e2e.child import Child, serve
from tests.e2e.scraping import Prometheus, prometheus
from tests.serving.onnx_files import write_model

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("prometheus") is None, reason="no prometheus here (Debian: apt-get install prometheus)"
    ),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    """A server that keeps every distribution, with a model whose labels are hard to write."""
    repository = tmp_path_factory.mktemp("models")
    tag = r'metric_tags { key: "odd-key" value: "a \"b\" \\ c" }'
    write_model(repository, "net", None, f"max_batch_size: 8 {tag}")
    settings = ("--metrics-config=histogram_latencies=true", "--metrics-config=summary_latencies=true")
    with serve("--model-repository", repository, "--metrics-interval-ms=200", *settings) as child:
        yield child.ready()


@pytest.fixture(scope="module")
def scraped(server: Child, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that has scraped the server at least once."""
    target = f"127.0.0.1:{server.port('Metrics Service')}"
    with prometheus(tmp_path_factory.mktemp("prometheus"), target) as running:
        running.wait_for('up{job="tpx"}', 1)
        yield running


def ask(server: Child, count: int) -> None:
    """Requests of two rows each."""
    tensor = tritonclient.http.InferInput("x", [2, 2], "FP32")
    tensor.set_data_from_numpy(np.ones((2, 2), np.float32))
    address = f"127.0.0.1:{server.port('HTTPService')}"
    with tritonclient.http.InferenceServerClient(address) as client:
        for _ in range(count):
            client.infer("net", [tensor])


def test_prometheus_counts_what_the_server_has_done(server: Child, scraped: Prometheus) -> None:
    before = scraped.value('nv_inference_count{model="net"}') or 0
    ask(server, 7)
    scraped.wait_for('nv_inference_count{model="net",version="1"}', before + 14)
    scraped.wait_for('nv_inference_request_success{_odd_key="a \\"b\\" \\\\ c"}', before / 2 + 7)
    scraped.wait_for('sum(nv_inference_request_failure{model="net"})', 0)


def test_prometheus_computes_quantiles_of_the_histograms(server: Child, scraped: Prometheus) -> None:
    ask(server, 5)
    name = "nv_inference_request_duration_histogram_us"
    scraped.wait_for(f"{name}_count > bool 4", 1)
    median = scraped.value(f"histogram_quantile(0.5, {name}_bucket)")
    assert median is not None
    assert 0 < median <= 100_000
    assert scraped.value('nv_inference_request_summary_us{quantile="0.99"} > bool 0') == 1


def test_prometheus_takes_every_family_with_its_type_and_help(scraped: Prometheus) -> None:
    [target] = scraped.get("targets")["activeTargets"]
    assert (target["health"], target["lastError"]) == ("up", "")
    known = scraped.get("metadata")
    kinds = {name: entries[0]["type"] for name, entries in known.items()}
    assert kinds["nv_inference_count"] == "counter"
    assert kinds["nv_inference_pending_request_count"] == "gauge"
    assert kinds["nv_inference_queue_summary_us"] == "summary"
    assert kinds["nv_inference_queue_duration_histogram_us"] == "histogram"
    assert kinds["process_cpu_seconds_total"] == "counter"
    assert known["nv_cpu_memory_used_bytes"][0]["help"] == "CPU used memory (RAM), in bytes"


def test_the_machine_is_measured(scraped: Prometheus) -> None:
    scraped.wait_for("nv_cpu_utilization >= bool 0", 1)
    scraped.wait_for("nv_cpu_memory_used_bytes < bool nv_cpu_memory_total_bytes", 1)
    scraped.wait_for("process_resident_memory_bytes > bool 1e7", 1)
