"""Many looks at a page, as one level's figures."""

import math
from collections.abc import Callable, Sequence
from statistics import fmean

from tpx.perf.metrics.figures import GpuFigures, MetricsFigures, SeriesFigures
from tpx.perf.metrics.page import (
    CPU,
    EXECUTIONS,
    HOST_MEMORY,
    INFERENCES,
    PROCESS_MEMORY,
    Scrape,
)


def summarize(
    scrapes: Sequence[Scrape], span_ns: tuple[int, int], failed: int, counters: frozenset[str]
) -> MetricsFigures:
    """The figures of the time between two instants.

    Gauges are of the looks in between, counters grow from the last look before to the first one behind, so
    that their time is the one that the looks lie apart.
    """
    start, end = span_ns
    inside = [s for s in scrapes if start <= s.time_ns <= end] or list(scrapes[-1:])
    before = [s for s in scrapes if s.time_ns <= start][-1:]
    after = [s for s in scrapes if s.time_ns >= end][:1]
    around = [*before, *(s for s in inside if s not in before and s not in after), *after]
    return MetricsFigures(
        scrapes=len(inside),
        failed=failed,
        gpus=_gpus(inside),
        mean_batch=_ratio(around),
        cpu_utilization=_over(inside, CPU, fmean),
        memory_used_bytes=_over(inside, PROCESS_MEMORY, max) or _over(inside, HOST_MEMORY, max),
        series=tuple(_series(inside, around, counters)),
        scrape_ns=int(fmean(s.took_ns for s in inside)) if inside else 0,
        cost_ns=int(fmean(s.cost_ns for s in inside)) if inside else 0,
    )


def _over(scrapes: Sequence[Scrape], name: str, fold: Callable[[Sequence[float]], float]) -> float | None:
    values = [s.values[name] for s in scrapes if name in s.values]
    return fold(values) if values else None


def _ratio(scrapes: Sequence[Scrape]) -> float | None:
    known = [s for s in scrapes if INFERENCES in s.values and EXECUTIONS in s.values]
    if len(known) < 2:
        return None
    executions = known[-1].values[EXECUTIONS] - known[0].values[EXECUTIONS]
    inferences = known[-1].values[INFERENCES] - known[0].values[INFERENCES]
    return inferences / executions if executions > 0 else None


def _gpus(scrapes: Sequence[Scrape]) -> tuple[GpuFigures, ...]:
    """A GPU that some looks miss is averaged over those that have it, as perf_analyzer does."""

    def values(uuid: str, what: str) -> list[float]:
        return [s.gpus[uuid][what] for s in scrapes if what in s.gpus.get(uuid, {})]

    def folded(uuid: str, what: str, fold: Callable[[list[float]], float]) -> float | None:
        known = values(uuid, what)
        return fold(known) if known else None

    return tuple(
        GpuFigures(
            uuid=uuid,
            utilization=folded(uuid, "utilization", fmean),
            power_w=folded(uuid, "power_w", fmean),
            memory_used_bytes=folded(uuid, "memory_used_bytes", max),
            memory_total_bytes=folded(uuid, "memory_total_bytes", lambda known: known[0]),
        )
        for uuid in sorted({uuid for s in scrapes for uuid in s.gpus})
    )


def _series(
    inside: Sequence[Scrape], around: Sequence[Scrape], counters: frozenset[str]
) -> list[SeriesFigures]:
    """Without looks at which a series is no number, as a quantile of nothing is, and without what never is
    one."""
    out = []
    for name in dict.fromkeys(name for s in inside for name in s.series):
        values = [value for s in inside if math.isfinite(value := s.series.get(name, math.nan))]
        if not values:
            continue
        out.append(
            SeriesFigures(
                name=name,
                mean=fmean(values),
                low=min(values),
                high=max(values),
                last=values[-1],
                per_s=_growth(around, name) if name.partition("{")[0] in counters else None,
            )
        )
    return out


def _growth(scrapes: Sequence[Scrape], name: str) -> float | None:
    known = [(s.time_ns, value) for s in scrapes if math.isfinite(value := s.series.get(name, math.nan))]
    if len(known) < 2 or known[-1][0] <= known[0][0]:
        return None
    return (known[-1][1] - known[0][1]) * 1e9 / (known[-1][0] - known[0][0])
