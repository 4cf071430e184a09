"""Pool measurements of one configuration under one load, with the confidence intervals of their means."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from statistics import fmean, geometric_mean, median
from typing import TypeGuard, TypeVar

from tpx.analyzer.results.measurement import (
    EnergyUse,
    GpuUse,
    Measurement,
    MemoryUse,
    Range,
    ResponseFigures,
)
from tpx.perf.statistics.findings import ALPHA, mean_error

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


def repeated(point: Measurement) -> TypeGuard[Mean]:
    """Return True if final rounds are among the samples of a point."""
    return isinstance(point, Mean) and point.rounds > 0


def point_of(searched: Sequence[Measurement], rounds: Sequence[Measurement]) -> Measurement:
    """Return the mean of a configuration's final rounds under one load, or else of the search's measurements.

    The search's do not count beside rounds: the best of many is a lucky one.
    """
    samples = rounds or searched
    return samples[0] if len(samples) == 1 else pooled(samples)


def interval_of(values: Sequence[float]) -> Range | None:
    """Return the 95% confidence interval of the geometric mean of repeated figures; None for fewer than two,
    or if one is not above zero.
    """
    if len(values) < 2 or min(values) <= 0:
        return None
    logs = [math.log(value) for value in values]
    mean = fmean(logs)
    reach = max(error.reach(ALPHA / 2) for error in mean_error(logs))
    return Range(low=math.exp(mean - reach), high=math.exp(mean + reach))


def typical_throughput(measurement: Measurement) -> float:
    """Return the throughput that conclusions rest on: the median of the windows, if they are known."""
    windows = measurement.windows
    return median(w.throughput for w in windows) if windows else measurement.throughput


def pooled(samples: Sequence[Measurement]) -> Mean:
    """Return the means of all figures and the peak of the memory, for each model if there are several.

    The throughput is the geometric mean, so that the ratio of two is the gain that is concluded from them.
    """
    last, p99s = samples[-1], [m.latency.p99_ns for m in samples if m.latency.p99_ns is not None]
    mean = {field.name: getattr(last, field.name) for field in fields(last) if field.name != "samples"}
    mean |= {
        "samples": tuple(samples),
        "throughput": _mean_throughput(samples),
        "latency": means([m.latency for m in samples]),
        "breakdown": means([m.breakdown for m in samples]),
        "answers": _fold([m.answers for m in samples], _pool_answers),
        "stable": all(m.stable for m in samples),
        "note": next((m.note for m in samples if m.note), ""),
        "requests": sum(m.requests for m in samples),
        "duration_ns": sum(m.duration_ns for m in samples),
        "memory": _fold([m.memory for m in samples], _pool_memory),
        "gpus": _pool_gpus(samples),
        "cpu_percent": _fold([m.cpu_percent for m in samples], fmean),
        "energy": _fold([m.energy for m in samples], _pool_energy),
        "members": tuple(map(pooled, zip(*(m.members for m in samples), strict=True))),
        "throughput_range": interval_of([typical_throughput(m) for m in samples]),
        "p99_range": interval_of(p99s),
        "windows": (),
        "round": 0,
    }
    return Mean(**mean)


def _mean_throughput(samples: Sequence[Measurement]) -> float:
    values = [typical_throughput(m) for m in samples]
    return geometric_mean(values) if min(values) > 0 else fmean(values)


def _pool_answers(found: Sequence[ResponseFigures]) -> ResponseFigures:
    return ResponseFigures(
        first=means([answers.first for answers in found]),
        between=_fold([answers.between for answers in found], means),
        throughput=fmean(answers.throughput for answers in found),
    )


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


def means(found: Sequence[T]) -> T:
    """Return a record of durations, each the mean of its known values."""
    values = {}
    for field in fields(found[0]):  # type: ignore[arg-type]
        mean: float | None = _fold([getattr(each, field.name) for each in found], fmean)
        values[field.name] = None if mean is None else round(mean)
    return type(found[0])(**values)


def _fold(values: Sequence[T | None], fold: Callable[[Sequence[T]], R]) -> R | None:
    """Return the fold of the known values; None without any."""
    known = [value for value in values if value is not None]
    return fold(known) if known else None
