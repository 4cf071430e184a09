"""Pool measurements of one configuration under one load, with the confidence intervals of their means."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from statistics import fmean, geometric_mean, median
from typing import TypeGuard, TypeVar

from tpx.analyzer.results.measurement import EnergyUse, GpuUse, Measurement, MemoryUse
from tpx.perf.levels import Level
from tpx.perf.results import (
    ClientTimes,
    Estimates,
    Goodput,
    LatencyEstimate,
    LevelResult,
    OpenLoop,
    ServerBreakdown,
    StreamFigure,
    Streaming,
)
from tpx.perf.statistics.findings import ALPHA, mean_error
from tpx.perf.statistics.intervals import Interval
from tpx.perf.statistics.summaries import LatencySummary

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean(Measurement):
    """The mean of several measurements."""

    samples: tuple[Measurement, ...]

    @property
    def rounds(self) -> int:
        """Number of final rounds among the samples."""
        return sum(m.round > 0 for m in self.samples)

    @property
    def note(self) -> str:
        return next((m.note for m in self.samples if m.note), "")


def repeated(point: Measurement) -> TypeGuard[Mean]:
    """Return True if final rounds are among the samples of a point."""
    return isinstance(point, Mean) and point.rounds > 0


def point_of(searched: Sequence[Measurement], rounds: Sequence[Measurement]) -> Measurement:
    """Return the mean of a configuration's final rounds under one load, or else of the search's measurements.

    The search's do not count beside rounds: the best of many is a lucky one.
    """
    samples = rounds or searched
    return samples[0] if len(samples) == 1 else pooled(samples)


def interval_of(values: Sequence[float]) -> Interval | None:
    """Return the 95% confidence interval of the geometric mean of repeated figures; None for fewer than two,
    or if one is not above zero.
    """
    if len(values) < 2 or min(values) <= 0:
        return None
    logs = [math.log(value) for value in values]
    mean = fmean(logs)
    reach = max(error.reach(ALPHA / 2) for error in mean_error(logs))
    return Interval(value=math.exp(mean), low=math.exp(mean - reach), high=math.exp(mean + reach))


def typical_throughput(measurement: Measurement) -> float:
    """Return the throughput that conclusions rest on: the median of the windows, if they are known."""
    windows = measurement.windows
    return median(w.throughput_infer_per_s for w in windows) if windows else measurement.throughput


def pooled(samples: Sequence[Measurement]) -> Mean:
    """Return the means of all figures and the peak of the memory, for each model if there are several.

    The throughput is the geometric mean, so that the ratio of two is the gain that is concluded from them.
    """
    last, values = samples[-1], [typical_throughput(m) for m in samples]
    throughput, p99 = interval_of(values), interval_of([m.p99_ns for m in samples if m.p99_ns is not None])
    latency = () if p99 is None else (LatencyEstimate(percentile=99.0, interval=p99),)
    result = replace(
        _mean_result([m.result for m in samples]),
        throughput_infer_per_s=geometric_mean(values) if min(values) > 0 else fmean(values),
        estimates=None if throughput is None else Estimates(throughput=throughput, latency=latency),
    )
    return Mean(
        variant=last.variant,
        load=last.load,
        result=result,
        samples=tuple(samples),
        duration_ns=sum(m.duration_ns for m in samples),
        cost_ns=last.cost_ns,
        memory=_fold([m.memory for m in samples], _pool_memory),
        gpus=_pool_gpus(samples),
        cpu_percent=_fold([m.cpu_percent for m in samples], fmean),
        energy=_fold([m.energy for m in samples], _pool_energy),
        members=tuple(map(pooled, zip(*(m.members for m in samples), strict=True))),
        host=last.host,
    )


def side_by_side(results: Sequence[LevelResult], level: Level, batch_size: int) -> LevelResult:
    """Return the level of several models that were measured together: the sum of what they served."""
    mean = replace(_mean_result(results), level=level, batch_size=batch_size)
    return replace(mean, throughput_infer_per_s=sum(r.throughput_infer_per_s for r in results))


def _mean_result(results: Sequence[LevelResult]) -> LevelResult:
    """Return a level with the means of the latencies and times, and the sums of what was counted."""
    return LevelResult(
        level=results[-1].level,
        batch_size=results[-1].batch_size,
        throughput_infer_per_s=0.0,
        stable=all(r.stable for r in results),
        requests=sum(r.requests for r in results),
        latency=_fold([r.latency for r in results], _mean_latency),
        client=_fold([r.client for r in results], _mean_client),
        server=_fold([r.server for r in results], _sum_servers),
        open_loop=_fold([r.open_loop for r in results], _mean_open_loop),
        streaming=_fold([r.streaming for r in results], _mean_streaming),
        goodput=_fold([r.goodput for r in results], _mean_goodput),
    )


def _mean_latency(found: Sequence[LatencySummary]) -> LatencySummary:
    percentiles = dict.fromkeys(p for summary in found for p in summary.percentiles_ns)
    return LatencySummary(
        count=sum(summary.count for summary in found),
        mean_ns=round(fmean(summary.mean_ns for summary in found)),
        std_ns=fmean(summary.std_ns for summary in found),
        min_ns=round(fmean(summary.min_ns for summary in found)),
        max_ns=round(fmean(summary.max_ns for summary in found)),
        percentiles_ns={
            p: round(fmean(s.percentiles_ns[p] for s in found if p in s.percentiles_ns)) for p in percentiles
        },
    )


def _mean_client(found: Sequence[ClientTimes]) -> ClientTimes:
    names = ("send_ns", "wait_ns", "receive_ns")
    return ClientTimes(**{name: round(fmean(getattr(times, name) for times in found)) for name in names})


def _sum_servers(found: Sequence[ServerBreakdown]) -> ServerBreakdown:
    counters = [field.name for field in fields(ServerBreakdown) if field.type is int]
    return replace(
        found[-1], composing=(), **{name: sum(getattr(each, name) for each in found) for name in counters}
    )


def _mean_open_loop(found: Sequence[OpenLoop]) -> OpenLoop:
    return replace(
        found[-1],
        service_latency=_mean_latency([each.service_latency for each in found]),
        slip=_mean_latency([each.slip for each in found]),
    )


def _mean_streaming(found: Sequence[Streaming]) -> Streaming:
    counts = ("units", "prompt_units", "cached_units", "reasoning_units")
    return Streaming(
        responses=sum(each.responses for each in found),
        responses_per_s=fmean(each.responses_per_s for each in found),
        figures=tuple(
            StreamFigure(name=name, summary=_mean_latency(summaries))
            for name, summaries in _collect_summaries(found).items()
        ),
        units_per_s=fmean(each.units_per_s for each in found),
        **{name: sum(getattr(each, name) for each in found) for name in counts},
    )


def _mean_goodput(found: Sequence[Goodput]) -> Goodput:
    per_s = Interval(value=fmean(each.per_s.value for each in found), low=0.0, high=None)
    requests, share = sum(each.requests for each in found), fmean(each.share for each in found)
    return replace(found[-1], requests=requests, share=share, per_s=per_s)


def _collect_summaries(found: Sequence[Streaming]) -> dict[str, list[LatencySummary]]:
    """Return the summaries of each figure by its name."""
    by_name: dict[str, list[LatencySummary]] = {}
    for figure in (figure for each in found for figure in each.figures):
        by_name.setdefault(figure.name, []).append(figure.summary)
    return by_name


def _pool_memory(found: Sequence[MemoryUse]) -> MemoryUse:
    return MemoryUse(
        rss_bytes=max(m.rss_bytes for m in found),
        uss_bytes=_fold([m.uss_bytes for m in found], max),
        pss_bytes=_fold([m.pss_bytes for m in found], max),
        host_available_bytes=_fold([m.host_available_bytes for m in found], min),
    )


def _pool_gpus(repetitions: Sequence[Measurement]) -> tuple[GpuUse, ...]:
    by_uuid: dict[str, list[GpuUse]] = {}
    for gpu in (gpu for m in repetitions for gpu in m.gpus):
        by_uuid.setdefault(gpu.uuid, []).append(gpu)
    return tuple(
        replace(
            found[-1],
            used_bytes=max(gpu.used_bytes for gpu in found),
            utilization_percent=_fold([gpu.utilization_percent for gpu in found], fmean),
            power_w=_fold([gpu.power_w for gpu in found], fmean),
            server_bytes=_fold([gpu.server_bytes for gpu in found], max),
        )
        for found in by_uuid.values()
    )


def _pool_energy(found: Sequence[EnergyUse]) -> EnergyUse:
    """Add energies, so that power is a mean; a part that is unknown in any sample is unknown in the sum."""
    gpu, cpu = ([getattr(each, name) for each in found] for name in ("gpu_j", "cpu_j"))
    return EnergyUse(
        duration_ns=sum(each.duration_ns for each in found),
        gpu_j=None if None in gpu else sum(gpu),
        cpu_j=None if None in cpu else sum(cpu),
    )


def _fold(values: Sequence[T | None], fold: Callable[[Sequence[T]], R]) -> R | None:
    """Return the fold of the known values; None without any."""
    known = [value for value in values if value is not None]
    return fold(known) if known else None
