"""How sure figures are, and the answers made of them, as JSON; with the batches that another run is compared
with."""

from typing import Any

import numpy as np

from tpx.perf.answers.knee import Knee, find_knee
from tpx.perf.levels import Level
from tpx.perf.objectives import Assessment
from tpx.perf.report.model import Report
from tpx.perf.results import Estimates, LatencyEstimate, LevelResult, Validity
from tpx.perf.statistics.batches import Batches, Integers


def statistics(result: LevelResult) -> dict[str, Any]:
    """Members of a level beside its figures."""
    estimates, check = result.estimates, result.client_check
    return {
        "throughput": _throughput(result),
        "latency_ci_us": None if estimates is None else _latencies(estimates),
        "kept_windows": result.kept_windows,
        "warmup_windows": result.warmup_windows,
        "in_flight": result.in_flight,
        "client_check": None
        if check is None
        else {
            "cpu_pct": check.cpu_share * 100,
            "loop_lag_p99_us": check.loop_lag_p99_ns / 1000,
            "slip_p99_us": check.slip_p99_ns / 1000,
        },
        "warnings": list(result.warnings),
        "validity": None if result.validity is None else _validity(result.validity),
        "slo": [_assessment(a) for a in result.slo],
        "batches": None if estimates is None else _batches(estimates.batches),
    }


def _validity(validity: Validity) -> dict[str, Any]:
    estimate = validity.estimate_ns
    return {
        "valid": validity.valid,
        "estimate_us": None if estimate is None else estimate / 1000,
        "conditions": [
            {"name": c.name, "kept": c.kept, **({"advice": c.advice} if c.advice else {})}
            for c in validity.conditions
        ],
    }


def _throughput(result: LevelResult) -> dict[str, float | None]:
    figures: dict[str, float | None] = {"value": result.throughput_infer_per_s}
    if result.estimates is not None:
        interval = result.estimates.throughput
        figures |= {"ci_low": interval.low, "ci_high": interval.high, "confidence": interval.confidence}
    return figures


def _latencies(estimates: Estimates) -> dict[str, Any]:
    return {_name(e): _interval(e) for e in estimates.latency}


def _name(estimate: LatencyEstimate) -> str:
    return "mean" if estimate.percentile is None else f"p{estimate.percentile:g}".replace(".", "_")


def _interval(estimate: LatencyEstimate) -> dict[str, Any]:
    interval = estimate.interval
    high = None if interval.high is None else interval.high / 1000
    return {"low": interval.low / 1000, "high": high, "note": estimate.note}


def _assessment(assessment: Assessment) -> dict[str, Any]:
    return {
        "expr": assessment.objective.text,
        "value": assessment.objective.show(assessment.value),
        "ok": assessment.met,
        "outcome": assessment.outcome.value,
        "reason": assessment.reason,
        "more_requests": assessment.more_requests,
    }


def _batches(batches: Batches) -> dict[str, Any]:
    """Equal stretches of the kept windows; `histogram` has a row a batch and a column for each of `bins`.

    Rows are texts, so that a number does not take a line.
    """
    return {
        "start_ns": batches.start_ns,
        "end_ns": batches.end_ns,
        "requests": _row(batches.requests),
        "failed": _row(batches.failed),
        "latency_sum_ns": _row(batches.latency_sum_ns.astype(np.int64)),
        "bins": _row(batches.bins),
        "histogram": [_row(row) for row in batches.histogram],
    }


def _row(values: Integers) -> str:
    return " ".join(map(str, values.tolist()))


def answers(report: Report) -> dict[str, Any]:
    """Members of the document beside its levels."""
    return {
        "slo": {
            "objectives": [o.text for o in report.config.slo],
            "confidence": report.config.slo_confidence,
            "ok": not report.breaks_slo,
        }
        if report.config.slo
        else None,
        "knee": _knee(find_knee(report.levels)),
    }


def _knee(knee: Knee) -> dict[str, Any]:
    model = knee.model
    return {
        "bend": _load(knee.bend),
        "power": _load(knee.power),
        "worthwhile": _load(knee.worthwhile),
        "usl": None
        if model is None
        else {
            "rate": model.rate,
            "contention": model.contention,
            "coherency": model.coherency,
            "fit_error": model.fit_error,
            "peak_load": model.peak_load,
            "peak_throughput": None if model.peak_throughput == float("inf") else model.peak_throughput,
        },
    }


def _load(result: LevelResult | None) -> dict[str, Any] | None:
    return None if result is None else load(result.level)


def load(level: Level) -> dict[str, Any]:
    """A load as JSON."""
    return {"mode": level.mode, "value": level.value}
