"""A run as JSON for programs: every level, including those that perf_analyzer leaves out."""

import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from typing import Any, TypeVar, cast

from tpx import __version__
from tpx.perf.compare import batches_json
from tpx.perf.metrics_page import MetricsFigures
from tpx.perf.objectives import Assessment
from tpx.perf.report.model import Report
from tpx.perf.results import (
    Goodput,
    LatencyEstimate,
    LevelResult,
    MemberFigures,
    ServerBreakdown,
    StreamFigure,
    Streaming,
    Window,
)
from tpx.perf.statistics.summaries import LatencySummary
from tpx.processors import processor_name
from tpx.report import files
from tpx.report.digits import MICROSECONDS

SCHEMA = 1
T = TypeVar("T")

Json = dict[str, object]


def json_text(report: Report, argv: Sequence[str]) -> str:
    """Return the report as a JSON document.

    Durations are in microseconds; windows begin and end at ns since 1970, by a clock that does not
    jump.
    """
    config = report.config
    objectives = {
        "objectives": [o.text for o in config.answers.slo],
        "confidence": config.answers.slo_confidence,
        "ok": not report.breaks_slo,
    }
    document = {
        "schema": SCHEMA,
        "tool": {"name": "tpx perf", "version": __version__},
        "started": report.started,
        "finished": report.finished,
        "argv": list(argv),
        "seed": config.inputs.seed,
        "interrupted": report.interrupted,
        "error": report.error,
        # the machine that sent the load
        "host": {
            "cpu": processor_name(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "kernel": platform.release(),
            "load": list(os.getloadavg()),
        },
        "target": {
            "kind": config.service.service_kind,
            "protocol": config.target.protocol,
            "client": config.client,
            "proxy": _encode_optional(str, config.route.proxy),
            "url": config.address,
            "model": report.model.name,
            "version": config.target.model_version,
            "platform": report.model.platform,
            "max_batch_size": report.model.max_batch_size,
            "scheduler": report.model.scheduler,
            "server": {"name": report.server.name, "version": report.server.version},
        },
        "levels": [_encode_level(r, report.offset_ns) for r in report.levels],
        "best": None if report.best is None else asdict(report.best.level),
        "answer": _encode_optional(asdict, report.answer),
        "slo": objectives if config.answers.slo else None,
    }
    return files.json_text(document)


def _encode_optional(encode: Callable[[T], object], value: T | None) -> object:
    return None if value is None else encode(value)


def _encode_fields(record: object, *left_out: str) -> Json:
    """Return the fields of a result: durations in us, and with that unit in the name, as for summaries."""
    out: Json = {}
    for name in (field.name for field in fields(cast("Any", record)) if field.name not in left_out):
        value = getattr(record, name)
        if name.endswith("_ns"):
            out[name.removesuffix("ns") + "us"] = None if value is None else value / 1000
        elif isinstance(value, LatencySummary):
            out[f"{name}_us"] = _encode_latency(value)
        else:
            out[name] = value
    return out


_AS_THEY_ARE = (
    *("seed", "batch_size", "stable", "interrupted", "reason", "requests", "failed", "resent"),
    *("kept_windows", "warmup_windows", "in_flight", "sequences"),
)
"""Fields of a level that are the same in JSON."""


def _encode_level(result: LevelResult, offset_ns: int) -> Json:
    estimates, times, check = result.estimates, result.client, result.client_check
    client = None
    if times is not None:
        client = {
            "send_us": times.send_ns / 1000,
            "wait_us": times.wait_ns / 1000,
            "recv_us": times.receive_ns / 1000,
            "cpu_pct": result.client_busy * 100,
        }
    throughput: Json = {"value": result.throughput_infer_per_s}
    if estimates is not None:
        interval = estimates.throughput
        throughput |= {"ci_low": interval.low, "ci_high": interval.high, "confidence": interval.confidence}
    return {
        **asdict(result.level),
        **{name: getattr(result, name) for name in _AS_THEY_ARE},
        "verdict": result.verdict.value,
        "over_limit": result.verdict.value == "over_limit",
        "trials": len(result.windows),
        "windows": [_encode_window(w, offset_ns) for w in result.windows],
        "duration_s": result.duration_ns / 1e9,
        "latency_us": _encode_optional(_encode_latency, result.latency),
        "open_loop": _encode_optional(_encode_fields, result.open_loop),
        "models": [_encode_member(m) for m in result.members],
        "client": client,
        "wake_up_us": None if result.wake_ups is None else result.wake_ups.cost_ns / 1000,
        "server": _encode_optional(_encode_server, result.server),
        "network_us": None if result.server is None else result.network_ns / 1000,
        "errors": {e.code: {"count": e.count, "message": e.message} for e in result.errors},
        "throughput": throughput,
        "latency_ci_us": None if estimates is None else dict(map(_encode_interval, estimates.latency)),
        "client_check": {"cpu_pct": check.cpu_share * 100, **_encode_fields(check, "cpu_share")}
        if check
        else None,
        "warnings": list(result.warnings),
        "slo": [_encode_assessment(a) for a in result.slo],
        "batches": None
        if estimates is None or estimates.batches is None
        else batches_json(estimates.batches),
        "streaming": _encode_optional(_encode_streaming, result.streaming),
        "goodput": _encode_optional(_encode_goodput, result.goodput),
        "sessions": _encode_optional(asdict, result.sessions),
        "metrics": _encode_optional(_encode_metrics, result.metrics),
    }


def _encode_window(window: Window, offset_ns: int) -> Json:
    return {
        "start_ns": window.start_ns + offset_ns,
        "end_ns": window.end_ns + offset_ns,
        "requests": window.requests,
        "errors": window.failed,
        "ips": window.throughput_infer_per_s,
        "latency_us": _encode_optional(_encode_latency, window.latency),
    }


def _encode_latency(latency: LatencySummary, per: int = 1000) -> Json:
    named = {f"p{p:g}".replace(".", "_"): ns / per for p, ns in latency.percentiles_ns.items()}
    return {
        "mean": latency.mean_ns / per,
        "std": latency.std_ns / per,
        "min": latency.min_ns / per,
        **named,
        "max": latency.max_ns / per,
    }


def _encode_member(member: MemberFigures) -> Json:
    return _encode_fields(member, "throughput_infer_per_s", "latency", "server") | {
        "throughput": {"value": member.throughput_infer_per_s},
        "latency_us": _encode_optional(_encode_latency, member.latency),
        "server": _encode_optional(_encode_server, member.server),
    }


def _encode_server(server: ServerBreakdown) -> Json:
    def each(total_ns: int, count: int) -> float:
        return total_ns / count / 1000 if count else 0.0

    return {
        "model": server.model,
        "version": server.version,
        "inference_count": server.inference_count,
        "execution_count": server.execution_count,
        "mean_batch": server.mean_batch,
        "success": server.success_count,
        "fail": server.fail_count,
        "request_us": each(server.success_ns, server.success_count),
        **{f"{name}_us": each(*stage) for name, stage in server.stages.items()},
        "composing": [_encode_server(part) for part in server.composing],
    }


def _encode_assessment(assessment: Assessment) -> Json:
    return {
        "expr": assessment.objective.text,
        "value": assessment.objective.show(assessment.value).replace(MICROSECONDS, "us"),
        "measured": assessment.value,
        "ok": assessment.met,
        "outcome": assessment.outcome.value,
        "reason": assessment.reason,
        "more_requests": assessment.more_requests,
    }


def _encode_interval(estimate: LatencyEstimate, per: int = 1000) -> tuple[str, Json]:
    interval, p = estimate.interval, estimate.percentile
    name = "mean" if p is None else f"p{p:g}".replace(".", "_")
    high = None if interval.high is None else interval.high / per
    return name, {"low": interval.low / per, "high": high, "note": estimate.note}


def _encode_streaming(streaming: Streaming) -> Json:
    """Return all figures; `first_response_us` and `inter_response_us` are what tpx 1.0 calls two of them."""
    return _encode_fields(streaming, "figures", "spans") | {
        "first_response_us": _encode_optional(_encode_latency, streaming.times("ttft")),
        "inter_response_us": _encode_optional(_encode_latency, streaming.times("icl")),
        "figures": {figure.name: _encode_figure(figure) for figure in streaming.figures},
    }


def _encode_figure(figure: StreamFigure) -> Json:
    """Return a distribution with its intervals, in us or in tokens."""
    unit, per = ("tokens", 1) if figure.counts_tokens else ("us", 1000)
    intervals = dict(_encode_interval(estimate, per) for estimate in figure.estimates)
    return {"unit": unit, **_encode_latency(figure.summary, per), "mean": figure.mean / per, "ci": intervals}


def _encode_goodput(found: Goodput) -> Json:
    interval = found.per_s
    ends = {"per_s": interval.value, "low": interval.low, "high": interval.high}
    return _encode_fields(found, "per_s") | ends


def _encode_metrics(metrics: MetricsFigures) -> Json:
    return _encode_fields(metrics, "failed", "cost_ns", "gpus", "series") | {
        "failed_scrapes": metrics.failed,
        "scrape_cost_us": metrics.cost_ns / 1000,
        "gpus": {gpu.uuid: _encode_fields(gpu, "uuid") for gpu in metrics.gpus},
        "series": {
            s.name: _encode_fields(s, "name", "low", "high") | {"min": s.low, "max": s.high}
            for s in metrics.series
        },
    }
