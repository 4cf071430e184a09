"""Repetitions of a measurement as one."""

from collections.abc import Sequence
from dataclasses import fields, replace
from statistics import fmean
from typing import TypeVar

from tpx.analyzer.results.measurement import Answers, EnergyUse, GpuUse, Measurement, MemoryUse, Spread

T = TypeVar("T")


def pooled(repetitions: Sequence[Measurement]) -> Measurement:
    """The repetitions as one measurement: the means of their figures, the most memory, of each of several
    models too."""
    last = repetitions[-1]
    return replace(
        last,
        throughput=fmean(m.throughput for m in repetitions),
        latency=_means([m.latency for m in repetitions]),
        breakdown=_means([m.breakdown for m in repetitions]),
        answers=_answers(_known([m.answers for m in repetitions])),
        stable=all(m.stable for m in repetitions),
        note=next((m.note for m in repetitions if m.note), ""),
        requests=sum(m.requests for m in repetitions),
        duration_ns=sum(m.duration_ns for m in repetitions),
        memory=_memory(_known([m.memory for m in repetitions])),
        gpus=_gpus(repetitions),
        cpu_percent=_mean([m.cpu_percent for m in repetitions]),
        energy=_energy(_known([m.energy for m in repetitions])),
        members=tuple(map(pooled, zip(*(m.members for m in repetitions), strict=True))),
        throughput_range=None,
        p99_range=None,
    )


def _answers(found: Sequence[Answers]) -> Answers | None:
    if not found:
        return None
    between: list[Spread] = _known([answers.between for answers in found])
    return Answers(
        first=_means([answers.first for answers in found]),
        between=_means(between) if between else None,
        throughput=fmean(answers.throughput for answers in found),
    )


def _memory(found: Sequence[MemoryUse]) -> MemoryUse | None:
    if not found:
        return None
    return MemoryUse(
        rss_bytes=max(m.rss_bytes for m in found),
        uss_bytes=max(_known([m.uss_bytes for m in found]), default=None),
        pss_bytes=max(_known([m.pss_bytes for m in found]), default=None),
        host_available_bytes=min(_known([m.host_available_bytes for m in found]), default=None),
    )


def _gpus(repetitions: Sequence[Measurement]) -> tuple[GpuUse, ...]:
    by_uuid: dict[str, list[GpuUse]] = {}
    for gpu in (gpu for m in repetitions for gpu in m.gpus):
        by_uuid.setdefault(gpu.uuid, []).append(gpu)
    return tuple(
        replace(
            found[-1],
            used_bytes=max(gpu.used_bytes for gpu in found),
            utilization_percent=_mean([gpu.utilization_percent for gpu in found]),
            power_w=_mean([gpu.power_w for gpu in found]),
            server_bytes=max(_known([gpu.server_bytes for gpu in found]), default=None),
        )
        for found in by_uuid.values()
    )


def _energy(found: Sequence[EnergyUse]) -> EnergyUse | None:
    """Added up, so that its power is the mean; what is not known of all is not known."""
    if not found:
        return None
    gpu, cpu = ([getattr(each, name) for each in found] for name in ("gpu_j", "cpu_j"))
    return EnergyUse(
        duration_ns=sum(each.duration_ns for each in found),
        gpu_j=None if None in gpu else sum(gpu),
        cpu_j=None if None in cpu else sum(cpu),
    )


def _means(found: Sequence[T]) -> T:
    """A record of durations, each the mean of those that are known."""
    values = {}
    for field in fields(found[0]):  # type: ignore[arg-type]
        mean = _mean([getattr(each, field.name) for each in found])
        values[field.name] = None if mean is None else round(mean)
    return type(found[0])(**values)


def _mean(values: Sequence[float | None]) -> float | None:
    known = _known(values)
    return fmean(known) if known else None


def _known(values: Sequence[T | None]) -> list[T]:
    return [value for value in values if value is not None]
