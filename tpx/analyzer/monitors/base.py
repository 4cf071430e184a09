"""The interface of the probes, and the watch that samples them during a measurement."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from tpx.analyzer.results.measurement import EnergyUse, GpuUse, MemoryUse


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Resources used during a measurement; figures that a probe cannot see are None or empty."""

    memory: MemoryUse | None = None
    gpus: tuple[GpuUse, ...] = ()
    cpu_percent: float | None = None
    energy: EnergyUse | None = None


class ResourceProbe(Protocol):
    """A resource that is sampled repeatedly while the server works; `sample` may block briefly."""

    def sample(self) -> None: ...

    def usage(self) -> Usage:
        """Return the usage since the first sample."""
        ...

    def close(self) -> None: ...


class Watch:
    """Samples its probes at the start, every `interval_s`, and at the end of a measurement."""

    def __init__(self, probes: Sequence[ResourceProbe], interval_s: float) -> None:
        self._probes = probes
        self._interval_s = interval_s
        self._task: asyncio.Task[None] | None = None

    @property
    def usage(self) -> Usage:
        """Combined usage: the first probe that has a figure supplies it; energy is combined by part."""
        seen = [probe.usage() for probe in self._probes]
        return Usage(
            memory=next((u.memory for u in seen if u.memory is not None), None),
            gpus=next((u.gpus for u in seen if u.gpus), ()),
            cpu_percent=next((u.cpu_percent for u in seen if u.cpu_percent is not None), None),
            energy=_together([u.energy for u in seen if u.energy is not None]),
        )

    async def __aenter__(self) -> Self:
        await self._sample()
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        # a last sample, so that counters cover the whole measurement
        if error is None:
            await self._sample()
        for probe in self._probes:
            probe.close()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            await self._sample()

    async def _sample(self) -> None:
        for probe in self._probes:
            # off the event loop: psutil, NVML and HTTP calls block
            await asyncio.to_thread(probe.sample)


def _together(parts: Sequence[EnergyUse]) -> EnergyUse | None:
    if not parts:
        return None
    return EnergyUse(
        duration_ns=max(part.duration_ns for part in parts),
        gpu_j=next((part.gpu_j for part in parts if part.gpu_j is not None), None),
        cpu_j=next((part.cpu_j for part in parts if part.cpu_j is not None), None),
    )
