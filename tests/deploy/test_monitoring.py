"""Alert rules and dashboard: by promtool, and by a real Prometheus that scrapes a loaded server."""

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.http

from tests.deploy.files import DEPLOY, ROOT
from tests.e2e.child import Child, serve
from tests.e2e.scraping import Prometheus, prometheus
from tests.serving.onnx_files import write_model

BOARD: Any = json.loads((DEPLOY / "grafana" / "tpx.json").read_text("utf-8"))
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
QUERIES = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]
NAME = re.compile(r"\b(?:nv|process|tpx)_[a-z_]+")
RULES = DEPLOY / "prometheus"


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool (Debian: prometheus)")
@pytest.mark.parametrize(
    "words", [("check", "config", "prometheus.yml"), ("test", "rules", "alerts_test.yml")], ids=" ".join
)
def test_promtool_finds_no_fault(words: tuple[str, ...]) -> None:
    done = subprocess.run(["promtool", *words], cwd=RULES, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_tested() -> None:
    alerts = re.findall(r"- alert: (\w+)", (RULES / "alerts.yml").read_text("utf-8"))
    tests = (RULES / "alerts_test.yml").read_text("utf-8")
    assert [alert for alert in alerts if f"alertname: {alert}\n" not in tests] == []


def test_panels_do_not_overlap() -> None:
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in BOARD["panels"])
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) == 23


NEEDS = {
    "nv_inference_request_duration_histogram_us_bucket": "--metrics-config=histogram_latencies=true",
    "nv_cache": "--cache-config",
    "tpx_frontend": "--frontends",
    "nv_gpu": "GPU",
}
"""Metrics that a server has only with an option, by the start of their name."""


@pytest.mark.parametrize("panel", PANELS, ids=[panel["title"] for panel in PANELS])
def test_a_panel_that_needs_an_option_says_so_where_its_curves_would_be(panel: dict[str, Any]) -> None:
    asked = NAME.findall(" ".join(target["expr"] for target in panel["targets"]))
    needed = {need for start, need in NEEDS.items() if any(name.startswith(start) for name in asked)}
    told = panel["fieldConfig"]["defaults"].get("noValue", "")
    assert bool(told) == bool(needed)
    for need in needed:
        assert need in told
        assert told in panel["description"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    """A server with all that the dashboard shows but GPUs."""
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "net", None, "max_batch_size: 8 dynamic_batching {}")
    write_model(repository, "cached", None, "max_batch_size: 8 response_cache { enable: true }")
    words = (
        "--metrics-config=histogram_latencies=true",
        "--cache-config=local,size=1000000",
        "--frontends=1",
    )
    with serve("--model-repository", repository, "--metrics-interval-ms=200", *words) as child:
        yield child.ready()


@pytest.fixture(scope="module")
def scraped(server: Child, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that has seen the server's counters grow."""
    if shutil.which("prometheus") is None:
        pytest.skip("no prometheus here (Debian: apt-get install prometheus)")
    target = f"127.0.0.1:{server.port('Metrics Service')}"
    with prometheus(tmp_path_factory.mktemp("prometheus"), target) as running:
        running.wait_for('up{job="tpx"}', 1)
        with tritonclient.http.InferenceServerClient(f"127.0.0.1:{server.port('HTTPService')}") as client:
            ends = time.perf_counter() + 30
            grows = "min(rate(nv_inference_count[10s])) > bool 0"
            while running.value(grows) != 1 and time.perf_counter() < ends:
                for number in (0, time.monotonic_ns() % 10_000):  # one that is cached, one that is not
                    tensor = tritonclient.http.InferInput("x", [1, 2], "FP32")
                    tensor.set_data_from_numpy(np.full((1, 2), number, np.float32))
                    client.infer("net", [tensor])
                    client.infer("cached", [tensor])
                time.sleep(0.05)
        assert running.value(grows) == 1
        yield running


def test_every_metric_that_is_asked_for_is_served(server: Child, scraped: Prometheus) -> None:
    served = set(scraped.get("label/__name__/values"))
    documented = set(NAME.findall((ROOT / "docs" / "serve" / "metrics.md").read_text("utf-8")))
    asked = NAME.findall(" ".join(query for _, query in QUERIES) + (RULES / "alerts.yml").read_text("utf-8"))
    assert {name for name in asked if name not in served and not name.startswith("nv_gpu")} == set()
    assert {name for name in asked if name.startswith("nv_gpu")} <= documented


@pytest.mark.parametrize(("title", "query"), QUERIES)
def test_a_panel_has_something_to_show(title: str, query: str, scraped: Prometheus) -> None:
    for variable in ("job", "instance", "model"):
        query = query.replace(f"${variable}", ".+")
    found = scraped.get("query", query=query.replace("$__rate_interval", "10s"))["result"]
    if not title.startswith("GPU"):
        assert found
        assert not all(np.isnan(float(series["value"][1])) for series in found)


def test_variables_find_servers_and_models(scraped: Prometheus) -> None:
    wanted = {"job": ["tpx"], "model": ["cached", "net"]}
    for variable in BOARD["templating"]["list"]:
        if variable["name"] in wanted:
            asked = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"])
            assert asked is not None
            selector = re.sub(r"\$\w+", ".+", asked[1])
            found = scraped.get(f"label/{asked[2]}/values", **{"match[]": selector})
            assert found == wanted[variable["name"]]


def test_provisioning_points_at_the_dashboard() -> None:
    compose = (DEPLOY / "compose.yaml").read_text("utf-8")
    provider = (DEPLOY / "grafana/provisioning/dashboards/tpx.yaml").read_text("utf-8")
    folder = re.search(r"path: (\S+?)}", provider)
    assert folder is not None
    assert f"./grafana/tpx.json:{folder[1]}/tpx.json" in compose
