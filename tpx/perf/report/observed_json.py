"""What was seen beside the figures, as JSON: streams, the server's metrics, the whole distribution, the
machine."""

import os
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from tpx.perf.latency import LatencySummary
from tpx.perf.metrics.figures import MetricsFigures
from tpx.perf.report.hdr import encode
from tpx.perf.results import Estimates, LevelResult, Streaming
from tpx.perf.statistics.batches import BINS_PER_OCTAVE


def observed(result: LevelResult) -> dict[str, Any]:
    """Members of a level beside its figures."""
    return {
        "streaming": None if result.streaming is None else _streaming(result.streaming),
        "sequences": result.sequences,
        "sessions": None if result.sessions is None else asdict(result.sessions),
        "metrics": None if result.metrics is None else _metrics(result.metrics),
        "hdr": None if result.estimates is None else _histogram(result.estimates),
    }


def host() -> dict[str, Any]:
    """The machine that the load came from."""
    return {
        "cpu": _processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "load": list(os.getloadavg()),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _histogram(estimates: Estimates) -> str:
    """The latencies of the kept windows as an HdrHistogram, version 2, in ns; each within 0.6 percent."""
    batches = estimates.batches
    counts = batches.histogram.sum(axis=0)
    middles = 2.0 ** ((batches.bins + 0.5) / BINS_PER_OCTAVE)
    return encode(np.repeat(middles.astype(np.int64), counts))


def _streaming(streaming: Streaming) -> dict[str, Any]:
    gap = streaming.inter_response
    return {
        "responses": streaming.responses,
        "responses_per_s": streaming.responses_per_s,
        "first_response_us": _latency(streaming.first_response),
        "inter_response_us": None if gap is None else _latency(gap),
        "units": streaming.units,
        "units_per_s": streaming.units_per_s,
    }


def _latency(latency: LatencySummary) -> dict[str, float]:
    named = {f"p{p:g}".replace(".", "_"): ns / 1000 for p, ns in latency.percentiles_ns.items()}
    ends = {"mean": latency.mean_ns / 1000, "min": latency.min_ns / 1000, "max": latency.max_ns / 1000}
    return ends | named


def _metrics(metrics: MetricsFigures) -> dict[str, Any]:
    return {
        "scrapes": metrics.scrapes,
        "failed_scrapes": metrics.failed,
        "scrape_us": metrics.scrape_ns / 1000,
        "scrape_cost_us": metrics.cost_ns / 1000,
        "mean_batch": metrics.mean_batch,
        "cpu_utilization": metrics.cpu_utilization,
        "memory_used_bytes": metrics.memory_used_bytes,
        "gpus": {
            gpu.uuid: {
                "utilization": gpu.utilization,
                "power_w": gpu.power_w,
                "memory_used_bytes": gpu.memory_used_bytes,
                "memory_total_bytes": gpu.memory_total_bytes,
            }
            for gpu in metrics.gpus
        },
        "series": {
            s.name: {"mean": s.mean, "min": s.low, "max": s.high, "last": s.last, "per_s": s.per_s}
            for s in metrics.series
        },
    }
