"""Ensembles behind a real server: control, statistics, traces, and clients that go away."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serving.gated import GATE, installed
from tests.serving.live import Live, floats, serving
from tests.serving.repository.composed import ensemble, gated, house
from tests.waiting import eventually
from tpx.serving.tracing.flags import trace_flag


@pytest.fixture(scope="module")
def trace_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("traces") / "trace.json"


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory, trace_file: Path) -> Iterator[Live]:
    repository = tmp_path_factory.mktemp("models")
    house(repository)
    gated(repository, "slow")
    ensemble(repository, "late", "slow", "two")
    with (
        installed(tmp_path_factory.mktemp("site")),
        serving(
            repository,
            model_control_mode="explicit",
            load_model=("top", "late"),
            metrics_config=("histogram_latencies=true",),
            trace_config=(trace_flag(f"triton,file={trace_file}"),),
        ) as running,
    ):
        yield running


def control(live: Live, name: str, verb: str, **parameters: Any) -> int:
    body = json.dumps({"parameters": parameters}).encode() if parameters else b""
    return live.http("POST", f"/v2/repository/models/{name}/{verb}", body).status


def index(live: Live) -> dict[str, tuple[str, str]]:
    """State and reason by name."""
    entries = live.http("POST", "/v2/repository/index").json
    return {entry["name"]: (entry.get("state", ""), entry.get("reason", "")) for entry in entries}


def statistics(live: Live, name: str) -> Any:
    [found] = live.get(f"/v2/models/{name}/stats").json["model_stats"]
    return found


def test_an_ensemble_goes_and_returns_with_its_models(live: Live) -> None:
    assert live.infer_binary("top", {"x": floats([1, 2])}).status == 200
    assert control(live, "five", "unload") == 200
    eventually(lambda: index(live)["top"][0] == "UNAVAILABLE")
    assert index(live)["inner"] == (
        "UNAVAILABLE",
        "unloaded: Invalid argument: ensemble 'inner' depends on 'five' which has no loaded version.",
    )
    assert live.get("/v2/models/top/ready").status == 400
    assert live.get("/v2/health/ready").status == 200
    answer = live.infer_binary("top", {"x": floats([1, 2])})
    assert (answer.status, answer.error) == (
        404,
        "Request for unknown model: 'top' has no available versions",
    )
    assert control(live, "five", "load") == 200
    assert index(live)["top"] == ("READY", "")
    assert live.infer_binary("top", {"x": floats([1, 2])}).tail == floats([30, 60]).tobytes()


def test_a_request_counts_once_with_the_phases_of_its_steps(live: Live) -> None:
    before, parts = statistics(live, "top"), [statistics(live, name) for name in ("two", "three", "five")]
    for _ in range(3):
        live.infer_binary("top", {"x": floats([1, 2], [3, 4])})
    after = statistics(live, "top")
    assert after["execution_count"] - before["execution_count"] == 3
    assert after["inference_count"] - before["inference_count"] == 6
    assert {batch["batch_size"] for batch in after["batch_stats"]} - {1} == {2}
    for phase in ("queue", "compute_input", "compute_infer", "compute_output"):
        grown = after["inference_stats"][phase]["ns"] - before["inference_stats"][phase]["ns"]
        sums = sum(
            statistics(live, part["name"])["inference_stats"][phase]["ns"]
            - part["inference_stats"][phase]["ns"]
            for part in parts
        )
        assert grown == sums
    phases = after["inference_stats"]
    assert phases["success"]["ns"] >= sum(
        phases[phase]["ns"] for phase in ("queue", "compute_input", "compute_infer", "compute_output")
    )


def test_steps_are_traced_under_their_ensemble(live: Live, trace_file: Path) -> None:
    wanted = {
        "trace_level": ["TIMESTAMPS"],
        "trace_rate": "1",
        "trace_count": "1",
    }
    assert live.http("POST", "/v2/trace/setting", json.dumps(wanted).encode()).status == 200
    live.infer_binary("top", {"x": floats([1, 2])})
    live.http("POST", "/v2/trace/setting", json.dumps({"trace_level": ["OFF"]}).encode())
    complete = trace_file.with_name(f"{trace_file.name}.0")
    eventually(complete.exists)
    records = json.loads(complete.read_text())
    about = {record["id"]: record for record in records if "model_name" in record}
    parents = {
        record["model_name"]: about[record["parent_id"]]["model_name"] if "parent_id" in record else None
        for record in about.values()
    }
    assert parents == {"top": None, "two": "top", "inner": "top", "three": "inner", "five": "inner"}


def test_a_client_that_goes_away_ends_its_steps(live: Live) -> None:
    before, behind = statistics(live, "late"), statistics(live, "two")["execution_count"]
    request = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}
    GATE.close()
    with live.begin("/v2/models/late/infer", request):
        eventually(
            lambda: [each.in_flight for each in live.server.plane.served() if each.name == "slow"] == [1]
        )
    for _ in range(2):  # by then the server has seen that the other connection is closed
        assert live.get("/v2/health/live").status == 200
    GATE.open()
    eventually(lambda: statistics(live, "late")["inference_stats"]["fail"]["count"] == 1)
    assert statistics(live, "late")["inference_count"] == before["inference_count"]
    assert statistics(live, "two")["execution_count"] == behind
