"""Measurements of given figures, as the analyzer gets them from the load generator."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tpx.analyzer.results.measurement import LoadPoint, Measurement
from tpx.perf.levels import Level
from tpx.perf.results import (
    ClientTimes,
    Estimates,
    LatencyEstimate,
    LevelResult,
    ServerBreakdown,
    StreamFigure,
    Streaming,
    Window,
)
from tpx.perf.statistics.intervals import Interval
from tpx.perf.statistics.summaries import LatencySummary

STAGES = ("queue_ns", "compute_input_ns", "compute_infer_ns", "compute_output_ns")


def make_latency(
    *, avg_ns: int | None = None, min_ns: int = 0, max_ns: int = 0, **percentiles_ns: int | None
) -> LatencySummary:
    """A latency whose percentiles are named as `p99_ns`; the mean is the first of them unless given."""
    known = {float(name[1:-3]): ns for name, ns in percentiles_ns.items() if ns is not None}
    mean = next(iter(known.values()), 0) if avg_ns is None else avg_ns
    return LatencySummary(
        count=0, mean_ns=mean, std_ns=0.0, min_ns=min_ns, max_ns=max_ns, percentiles_ns=known
    )


def make_window(throughput: float, latency: LatencySummary) -> Window:
    return Window(
        start_ns=0,
        end_ns=1,
        requests=1,
        failed=0,
        throughput_infer_per_s=throughput,
        latency=latency,
        client_busy=0.0,
        stabilizing_percentile=None,
    )


def make_streaming(first: LatencySummary, between: LatencySummary | None, *, per_s: float = 0.0) -> Streaming:
    figures = [StreamFigure(name="ttft", summary=first)]
    figures += [] if between is None else [StreamFigure(name="icl", summary=between)]
    return Streaming(responses=2, responses_per_s=per_s, figures=tuple(figures))


def make_measurement(
    *,
    variant: str = "m",
    load: LoadPoint | None = None,
    throughput: float = 1.0,
    latency: LatencySummary | None = None,
    breakdown: Mapping[str, int] | None = None,
    stable: bool = True,
    note: str = "",
    requests: int = 0,
    answers: Streaming | None = None,
    throughput_range: Interval | None = None,
    p99_range: Interval | None = None,
    windows: Sequence[Window] = (),
    **machine: Any,
) -> Measurement:
    """A measurement whose server took so long on average for each stage; the rest is of `Measurement`."""
    load = load or LoadPoint(value=1)
    parts = breakdown or {}
    server = ServerBreakdown(
        model="m",
        version="1",
        success_count=1,
        queue_count=1,
        compute_count=1,
        queue_ns=parts.get("queue_ns", 0),
        compute_input_ns=parts.get("compute_input_ns", 0),
        compute_infer_ns=parts.get("compute_infer_ns", 0),
        compute_output_ns=parts.get("compute_output_ns", 0),
    )
    percentiles = (LatencyEstimate(percentile=99.0, interval=p99_range),) if p99_range else ()
    return Measurement(
        variant=variant,
        load=load,
        result=LevelResult(
            level=Level(load.kind, load.value),
            batch_size=load.batch_size,
            throughput_infer_per_s=throughput,
            latency=latency,
            stable=stable,
            guesses=(note,) if note else (),
            requests=requests,
            server=server if any(name in parts for name in STAGES) else None,
            client=ClientTimes(
                send_ns=parts.get("client_send_recv_ns", 0),
                wait_ns=parts.get("client_response_wait_ns", 0),
                receive_ns=0,
            )
            if parts
            else None,
            streaming=answers,
            estimates=Estimates(throughput=throughput_range, latency=percentiles)
            if throughput_range
            else None,
            windows=tuple(windows),
            kept_windows=len(windows),
        ),
        **machine,
    )


def changed(measurement: Measurement, **figures: Any) -> Measurement:
    """Return a measurement with other fields of its level."""
    return replace(measurement, result=replace(measurement.result, **figures))
