"""Repetitions of a measurement as one."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from tpx.analyzer.results.measurement import Measurement


def pooled(repetitions: Sequence[Measurement]) -> Measurement:
    """The repetitions as one measurement: the means of their figures, of each of several models too."""
    last = repetitions[-1]
    latency = {
        name: _mean([getattr(m.latency, name) for m in repetitions])
        for name in ("avg_ns", "p50_ns", "p90_ns", "p95_ns", "p99_ns")
    }
    return replace(
        last,
        throughput=fmean(m.throughput for m in repetitions),
        latency=replace(last.latency, **latency),
        stable=all(m.stable for m in repetitions),
        note=next((m.note for m in repetitions if m.note), ""),
        requests=sum(m.requests for m in repetitions),
        duration_ns=sum(m.duration_ns for m in repetitions),
        members=tuple(map(pooled, zip(*(m.members for m in repetitions), strict=True))),
    )


def _mean(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return round(fmean(known)) if known else None
