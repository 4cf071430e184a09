"""Journals of tpx 0.2, as it wrote them, say the same today."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.analyzer.results.test_journal import MEASURED, STARTED
from tpx.analyzer.metrics import METRICS
from tpx.analyzer.results.journal import Journal, Measured, RunStarted, read_last_run
from tpx.analyzer.results.measurement import Measurement
from tpx.analyzer.results.run import Run
from tpx.analyzer.verdict import judge

ALONE, GROUP = (Path(__file__).parent / name for name in ("schema_1.jsonl", "schema_1_group.jsonl"))
STAGES = ("queue", "compute_input", "compute_infer", "compute_output")


def figures(measurement: Measurement) -> list[object]:
    """All figures that schema 1 held of a measurement."""
    tags = (
        *("perf_throughput", "perf_latency_avg", "perf_latency_p50", "perf_latency_p90", "perf_latency_p99"),
        *(f"perf_server_{stage}" for stage in STAGES),
        *("perf_client_send_recv", "perf_client_response_wait", "cpu_used_ram", "cpu_utilization"),
    )
    ranges = (METRICS[tag].interval(measurement) for tag in ("perf_throughput", "perf_latency_p99"))
    return [
        *(METRICS[tag].value(measurement) for tag in tags),
        *((found.low, found.high) if found else None for found in ranges),
        *(measurement.stable, measurement.note, measurement.result.requests, measurement.round),
        [(w.throughput_infer_per_s, w.latency and w.latency.at(99.0)) for w in measurement.windows],
        [figures(member) for member in measurement.members],
    ]


def written(old: dict[str, Any]) -> list[object]:
    """The same figures as they stand in the file."""
    latency, parts, throughput, p99 = (
        old[name] for name in ("latency", "breakdown", "throughput_range", "p99_range")
    )
    memory = old["memory"] and old["memory"]["uss_bytes"]

    def ms(value: float | None) -> float | None:
        return None if value is None else value / 1e6

    return [
        *(old["throughput"], *(ms(latency[f"{p}_ns"]) for p in ("avg", "p50", "p90", "p99"))),
        *(ms(parts[f"{stage}_ns"]) for stage in (*STAGES, "client_send_recv", "client_response_wait")),
        *(ms(memory), old["cpu_percent"]),
        throughput and (throughput["low"], throughput["high"]),
        p99 and (ms(p99["low"]), ms(p99["high"])),
        *(old["stable"], old["note"], old["requests"], old["round"]),
        [(w["throughput"], w["latency"]["p99_ns"]) for w in old["windows"]],
        [written(member) for member in old["members"]],
    ]


@pytest.mark.parametrize("path", [ALONE, GROUP])
def test_every_figure_of_an_old_journal_is_read(path: Path) -> None:
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    old = [line["measurement"] for line in lines if line["record"] == "measurement"]
    new = [record.measurement for record in read_last_run(path) if isinstance(record, Measured)]
    # the stages of a group were the mean of its models, and are now weighted by their requests
    assert [written(each)[:1] for each in old if each["members"]] == [
        figures(each)[:1] for each in new if each.members
    ]
    singles = [(m, o) for n, w in zip(new, old, strict=True) for m, o in _singles(n, w)]
    assert len(singles) >= 4
    for measurement, record in singles:
        assert figures(measurement) == written(record)


def _singles(new: Measurement, old: dict[str, Any]) -> list[tuple[Measurement, dict[str, Any]]]:
    return list(zip(new.members, old["members"], strict=True)) if new.members else [(new, old)]


def test_an_old_journal_has_its_models_configurations_and_rounds() -> None:
    started = read_last_run(GROUP)[0]
    assert isinstance(started, RunStarted)
    assert started.models == (("mnist", "identity"),)
    (together,) = Run.from_records(read_last_run(GROUP)).models
    assert [v.variant.models for v in together.variants] == [("mnist", "identity")] * 2
    assert together.variants[0].variant.is_group
    assert [m.models for m in together.variants[0].variant.members] == [("mnist",), ("identity",)]

    run = Run.from_records(read_last_run(ALONE))
    (model,) = run.models
    assert sum(len(v.repetitions) for v in model.variants) >= 4
    assert "nothing was shown to beat the default" in judge(model, run.started.goals).sentence


def test_a_run_of_an_old_tpx_goes_on_in_todays_form(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(ALONE.read_bytes())
    with Journal(path) as journal:
        journal.append(MEASURED)
    assert read_last_run(path)[-1] == MEASURED
    with Journal(path) as journal:
        journal.append(STARTED)
    assert read_last_run(path) == [STARTED]
