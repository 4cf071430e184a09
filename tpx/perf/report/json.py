"""A run as JSON, for programs: every level, also those that perf_analyzer leaves out."""

import json
from collections.abc import Sequence
from typing import Any

from tpx import __version__
from tpx.perf.latency import LatencySummary
from tpx.perf.report.model import Report
from tpx.perf.report.observed_json import host, observed
from tpx.perf.report.statistics_json import answers, load, statistics
from tpx.perf.results import LevelResult, MemberFigures, OpenLoop, ServerBreakdown, Window

SCHEMA = 1


def json_text(report: Report, argv: Sequence[str]) -> str:
    """The report as a JSON document. Durations are microseconds; windows begin and end at nanoseconds since
    1970, by a clock that does not jump."""
    return json.dumps(_document(report, argv), indent=1, allow_nan=False) + "\n"


def _document(report: Report, argv: Sequence[str]) -> dict[str, Any]:
    best = report.best
    return {
        "schema": SCHEMA,
        "tool": {"name": "tpx perf", "version": __version__},
        "started": report.started,
        "finished": report.finished,
        "argv": list(argv),
        "seed": report.config.seed,
        "labels": {label.key: label.value for label in report.config.labels},
        "interrupted": report.interrupted,
        "error": report.error,
        "host": host(),
        "target": {
            "kind": report.config.service_kind,
            "protocol": report.config.protocol,
            "url": report.config.address,
            "model": report.model.name,
            "version": report.config.model_version,
            "platform": report.model.platform,
            "max_batch_size": report.model.max_batch_size,
            "scheduler": report.model.scheduler,
            "server": {"name": report.server.name, "version": report.server.version},
        },
        "levels": [_level(r, report.offset_ns) for r in report.levels],
        "best": None if best is None else load(best.level),
        "answer": None if report.answer is None else load(report.answer),
        **answers(report),
    }


def _open_loop(figures: OpenLoop | None) -> dict[str, Any] | None:
    if figures is None:
        return None
    return {
        "service_latency_us": _latency(figures.service_latency),
        "slip_us": _latency(figures.slip),
        "delayed": figures.delayed,
        "skipped": figures.skipped,
        "connections": figures.connections,
        "sent_per_s": figures.sent_per_s,
    }


def _member(member: MemberFigures) -> dict[str, Any]:
    return {
        "model": member.model,
        "weight": member.weight,
        "requests": member.requests,
        "failed": member.failed,
        "throughput": {"value": member.throughput_infer_per_s},
        "latency_us": _latency(member.latency),
        "server": _server(member.server),
    }


def _level(result: LevelResult, offset_ns: int) -> dict[str, Any]:
    return {
        "mode": result.level.mode,
        "value": result.level.value,
        "seed": result.seed,
        "batch_size": result.batch_size,
        "verdict": result.verdict.value,
        "stable": result.stable,
        "over_limit": result.verdict.value == "over_limit",
        "interrupted": result.interrupted,
        "reason": result.reason,
        "trials": len(result.windows),
        "windows": [_window(w, offset_ns) for w in result.windows],
        "requests": result.requests,
        "duration_s": result.duration_ns / 1e9,
        "latency_us": _latency(result.latency),
        "open_loop": _open_loop(result.open_loop),
        "models": [_member(m) for m in result.members],
        "client": _client(result),
        "wake_up_us": None if result.wake_ups is None else result.wake_ups.cost_ns / 1000,
        "server": _server(result.server),
        "network_us": None if result.server is None else result.network_ns / 1000,
        "failed": result.failed,
        "errors": {e.code: {"count": e.count, "message": e.message} for e in result.errors},
        **statistics(result),
        **observed(result),
    }


def _window(window: Window, offset_ns: int) -> dict[str, Any]:
    return {
        "start_ns": window.start_ns + offset_ns,
        "end_ns": window.end_ns + offset_ns,
        "requests": window.requests,
        "errors": window.failed,
        "ips": window.throughput_infer_per_s,
        "latency_us": _latency(window.latency),
    }


def _latency(latency: LatencySummary | None) -> dict[str, float] | None:
    if latency is None:
        return None
    named = {f"p{p:g}".replace(".", "_"): ns / 1000 for p, ns in latency.percentiles_ns.items()}
    return {
        "mean": latency.mean_ns / 1000,
        "std": latency.std_ns / 1000,
        "min": latency.min_ns / 1000,
        **named,
        "max": latency.max_ns / 1000,
    }


def _client(result: LevelResult) -> dict[str, float] | None:
    times = result.client
    if times is None:
        return None
    return {
        "send_us": times.send_ns / 1000,
        "wait_us": times.wait_ns / 1000,
        "recv_us": times.receive_ns / 1000,
        "cpu_pct": result.client_busy * 100,
    }


def _server(server: ServerBreakdown | None) -> dict[str, Any] | None:
    if server is None:
        return None

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
        "queue_us": each(server.queue_ns, server.queue_count),
        "compute_input_us": each(server.compute_input_ns, server.compute_count),
        "compute_infer_us": each(server.compute_infer_ns, server.compute_count),
        "compute_output_us": each(server.compute_output_ns, server.compute_count),
        "cache_hit_us": each(server.cache_hit_ns, server.cache_hit_count),
        "cache_miss_us": each(server.cache_miss_ns, server.cache_miss_count),
        "composing": [_server(part) for part in server.composing],
    }
