"""Probes and the watch that samples them during a measurement; GPUs by NVML (package nvidia-ml-py,
imported as pynvml) if package and driver are present, or by the server's metrics page.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from types import TracebackType
from typing import Any, Protocol, Self

from tpx.analyzer.results.measurement import EnergyUse, GpuUse, MemoryUse
from tpx.perf.clients.proxies import open_page
from tpx.perf.measure.scraper import PageReader, Scrape, summarize


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Resources used during a measurement; figures that a probe cannot see are None or empty."""

    memory: MemoryUse | None = None
    gpus: tuple[GpuUse, ...] = ()
    cpu_percent: float | None = None
    energy: EnergyUse | None = None


class ResourceProbe(Protocol):
    """A resource that is sampled repeatedly while the server works; `sample` may block briefly."""

    def sample(self, *, under_load: bool = False) -> None:
        """Read the figures; `under_load` is True while the server is measured and must not be disturbed."""
        ...

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
        parts = [usage.energy for usage in seen if usage.energy is not None]
        return Usage(
            memory=next((u.memory for u in seen if u.memory is not None), None),
            gpus=next((u.gpus for u in seen if u.gpus), ()),
            cpu_percent=next((u.cpu_percent for u in seen if u.cpu_percent is not None), None),
            energy=EnergyUse(
                duration_ns=max(part.duration_ns for part in parts),
                gpu_j=next((part.gpu_j for part in parts if part.gpu_j is not None), None),
                cpu_j=next((part.cpu_j for part in parts if part.cpu_j is not None), None),
            )
            if parts
            else None,
        )

    async def __aenter__(self) -> Self:
        await self._sample()
        self._task = asyncio.create_task(self._sample_periodically())
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

    async def _sample_periodically(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            await self._sample(under_load=True)

    async def _sample(self, *, under_load: bool = False) -> None:
        for probe in self._probes:
            # off the event loop: psutil, NVML and HTTP calls block
            await asyncio.to_thread(probe.sample, under_load=under_load)


ANSWER_S = 2.0

Pids = Callable[[], frozenset[int]]
Nvml = Any
"""The module pynvml, which is untyped."""


@dataclass(slots=True)
class _Seen:
    handle: object
    uuid: str
    used_bytes: int = 0
    total_bytes: int = 0
    server_bytes: int | None = None
    utilizations: list[float] = field(default_factory=list)
    powers_w: list[tuple[int, float]] = field(default_factory=list)
    """Power readings, each with its time in ns."""
    energies_mj: list[int] = field(default_factory=list)
    """First and last value of the energy counter."""

    @property
    def energy_j(self) -> float | None:
        """Energy from the counter, or integrated from the power readings; None if there is neither."""
        if len(self.energies_mj) == 2:
            return (self.energies_mj[1] - self.energies_mj[0]) / 1000
        if len(self.powers_w) < 2:
            return None
        pairs = zip(self.powers_w, self.powers_w[1:], strict=False)
        return sum((b[0] - a[0]) / 1e9 * (a[1] + b[1]) / 2 for a, b in pairs)


class GpuProbe:
    """GPUs of this machine: peak memory, mean utilization and power of each, and total energy."""

    def __init__(self, nvml: Nvml, chosen: Sequence[str] | None = None, pids: Pids = frozenset) -> None:
        """`chosen` are UUIDs or numbers, None for all; `pids` returns the server's processes."""
        self._nvml = nvml
        self._pids = pids
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        found = [_Seen(handle=handle, uuid=str(nvml.nvmlDeviceGetUUID(handle))) for handle in handles]
        self._seen = [
            gpu
            for index, gpu in enumerate(found)
            if chosen is None or str(index) in chosen or any(gpu.uuid.startswith(c) for c in chosen)
        ]
        self._began_ns = self._looked_ns = 0

    def names(self) -> list[str]:
        """Return the names of all GPUs; empty if the driver does not tell them."""
        with suppress(self._nvml.NVMLError):
            return [str(self._nvml.nvmlDeviceGetName(gpu.handle)) for gpu in self._seen]
        return []

    def sample(self, *, under_load: bool = False) -> None:  # noqa: ARG002
        """Read every GPU; what a card does not report (partitioned ones: utilization) is absent, not 0."""
        self._looked_ns = time.perf_counter_ns()
        self._began_ns = self._began_ns or self._looked_ns
        pids = self._pids()
        for gpu in self._seen:
            with suppress(self._nvml.NVMLError):
                memory = self._nvml.nvmlDeviceGetMemoryInfo(gpu.handle)
                gpu.used_bytes = max(gpu.used_bytes, int(memory.used))
                gpu.total_bytes = int(memory.total)
            with suppress(self._nvml.NVMLError):
                gpu.utilizations.append(float(self._nvml.nvmlDeviceGetUtilizationRates(gpu.handle).gpu))
            with suppress(self._nvml.NVMLError):
                power_w = self._nvml.nvmlDeviceGetPowerUsage(gpu.handle) / 1000
                gpu.powers_w.append((self._looked_ns, power_w))
            with suppress(self._nvml.NVMLError):
                energy_mj = int(self._nvml.nvmlDeviceGetTotalEnergyConsumption(gpu.handle))
                gpu.energies_mj[1:] = [energy_mj]  # keep the first and the latest reading
            with suppress(self._nvml.NVMLError):
                # drivers may omit the memory of a process, or list containers under other ids
                listed = self._nvml.nvmlDeviceGetComputeRunningProcesses(gpu.handle)
                own = [p.usedGpuMemory for p in listed if p.pid in pids and p.usedGpuMemory is not None]
                if own:
                    gpu.server_bytes = max(gpu.server_bytes or 0, sum(own))

    def usage(self) -> Usage:
        gpus = tuple(
            GpuUse(
                uuid=gpu.uuid,
                used_bytes=gpu.used_bytes,
                total_bytes=gpu.total_bytes,
                utilization_percent=_mean(gpu.utilizations),
                power_w=_mean([power_w for _, power_w in gpu.powers_w]),
                server_bytes=gpu.server_bytes,
            )
            for gpu in self._seen
        )
        energies = [gpu.energy_j for gpu in self._seen]
        known = [joules for joules in energies if joules is not None]
        took_ns = self._looked_ns - self._began_ns
        # a sum over only some of the GPUs would be too low
        if not took_ns or not known or len(known) < len(energies):
            return Usage(gpus=gpus)
        return Usage(gpus=gpus, energy=EnergyUse(duration_ns=took_ns, gpu_j=sum(known)))

    def close(self) -> None:
        self._nvml.nvmlShutdown()


class PageProbe:
    """GPUs on the server's metrics page: peak memory, mean utilization and power; none without an answer."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._reader = PageReader()
        self._scrapes: list[Scrape] = []

    def sample(self, *, under_load: bool = False) -> None:  # noqa: ARG002
        began_ns = time.perf_counter_ns()
        try:
            with open_page(self._url, ANSWER_S) as answer:
                page = answer.read()
        except (OSError, ValueError, HTTPException):
            return
        self._scrapes.append(self._reader.read(page, began_ns, time.perf_counter_ns() - began_ns))

    def usage(self) -> Usage:
        if not self._scrapes:
            return Usage()
        begin_ns, end_ns = self._scrapes[0].time_ns, self._scrapes[-1].time_ns
        gpus = tuple(
            GpuUse(
                uuid=gpu.uuid,
                used_bytes=int(gpu.memory_used_bytes or 0),
                total_bytes=int(gpu.memory_total_bytes or 0),
                utilization_percent=None if gpu.utilization is None else gpu.utilization * 100,
                power_w=gpu.power_w,
                source="metrics",
            )
            for gpu in summarize(self._scrapes, (begin_ns, end_ns), 0, frozenset()).gpus
        )
        powers = [gpu.power_w for gpu in gpus if gpu.power_w is not None]
        took_ns = end_ns - begin_ns
        if not took_ns or len(powers) < len(gpus) or not gpus:
            return Usage(gpus=gpus)
        return Usage(gpus=gpus, energy=EnergyUse(duration_ns=took_ns, gpu_j=sum(powers) * took_ns / 1e9))

    def close(self) -> None:
        return


def open_gpu_probe(chosen: Sequence[str] | None = None, pids: Pids = frozenset) -> GpuProbe | None:
    """Return a probe of this machine's GPUs; None without a GPU, a driver or the package `nvidia-ml-py`."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        return GpuProbe(pynvml, chosen, pids) if pynvml.nvmlDeviceGetCount() else None
    except pynvml.NVMLError:
        return None


def gpu_names() -> list[str]:
    """Return the names of this machine's GPUs, for the provenance of a report; empty without any."""
    probe = open_gpu_probe()
    if probe is None:
        return []
    names = probe.names()
    probe.close()
    return names


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
