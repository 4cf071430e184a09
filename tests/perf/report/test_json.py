"""The JSON document: every level, with its verdict."""

import json
from typing import Any

from tests.perf.conftest import make_level
from tpx.options import build
from tpx.perf.clients.model import ModelDescription, ServerDescription
from tpx.perf.options import SessionSpec
from tpx.perf.report.json import json_text
from tpx.perf.report.model import Report
from tpx.perf.results import ErrorCount, LevelResult, Verdict


def document(*levels: LevelResult, interrupted: bool = False) -> dict[str, Any]:
    report = Report(
        config=build(SessionSpec, {"model": "net", "seed": 7}),
        server=ServerDescription(name="triton", version="2.51.0", extensions=frozenset()),
        model=ModelDescription(name="net", inputs=(), max_batch_size=8, platform="onnxruntime_onnx"),
        levels=levels,
        started="2026-01-01T00:00:00.000+00:00",
        finished="2026-01-01T00:00:09.000+00:00",
        interrupted=interrupted,
    )
    out: dict[str, Any] = json.loads(json_text(report, ["-m", "net"]))
    return out


def test_the_document_names_its_schema_tool_target_and_seed() -> None:
    out = document(make_level())
    assert (out["schema"], out["tool"]["name"], out["seed"], out["argv"]) == (1, "tpx perf", 7, ["-m", "net"])
    assert out["target"] == {
        "kind": "triton",
        "protocol": "http",
        "client": "tpx",
        "proxy": None,
        "url": "localhost:8000",
        "model": "net",
        "version": "",
        "platform": "onnxruntime_onnx",
        "max_batch_size": 8,
        "scheduler": "none",
        "server": {"name": "triton", "version": "2.51.0"},
    }


def test_a_level_carries_its_figures_in_microseconds() -> None:
    (level,) = document(make_level())["levels"]
    assert level["seed"] == 0
    assert (level["mode"], level["value"], level["verdict"], level["stable"]) == (
        "concurrency",
        1,
        "ok",
        True,
    )
    assert level["throughput"] == {"value": 4478.72}
    assert level["latency_us"]["p99"] == 340.0
    assert level["latency_us"]["p99_9"] == 900.0
    assert level["client"]["send_us"] == 26.4
    assert level["server"]["queue_us"] == 25.0
    assert level["server"]["mean_batch"] == 1.0
    assert level["trials"] == len(level["windows"]) == 3


def test_flagged_levels_are_there_with_their_reason() -> None:
    errors = (ErrorCount(code="HTTP 500", count=2, message="no"),)
    out = document(
        make_level(1),
        make_level(2, 9000.0, verdict=Verdict.OVER_LIMIT, reason="too slow"),
        make_level(
            3,
            0.0,
            verdict=Verdict.ERRORS,
            latency=None,
            client=None,
            server=None,
            failed=2,
            errors=errors,
            interrupted=True,
        ),
        interrupted=True,
    )
    ok, over, empty = out["levels"]
    assert (over["over_limit"], over["reason"], ok["over_limit"]) == (True, "too slow", False)
    assert (empty["latency_us"], empty["client"], empty["server"]) == (None, None, None)
    assert empty["errors"] == {"HTTP 500": {"count": 2, "message": "no"}}
    assert (empty["interrupted"], out["interrupted"]) == (True, True)
    assert out["best"] == {"mode": "concurrency", "value": 1}


def test_without_a_good_level_there_is_no_best() -> None:
    assert document(make_level(verdict=Verdict.UNSTABLE))["best"] is None
