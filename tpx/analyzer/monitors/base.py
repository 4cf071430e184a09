"""The seam of the probes, and the watch that reads them all through a measurement."""

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self

from tpx.analyzer.results.measurement import GpuUse, MemoryUse


class Probe(Protocol):
    """One thing that can be read again and again while the server works; `sample` may block for a moment."""

    def sample(self) -> None: ...

    def memory(self) -> MemoryUse | None:
        """The most seen since the probe was made, or None when this probe does not see memory."""

    def gpus(self) -> tuple[GpuUse, ...]: ...

    def close(self) -> None: ...


class Watch:
    """Reads its probes at the start, every `interval_s`, and at the end, beside the measurement."""

    def __init__(self, probes: Sequence[Probe], interval_s: float) -> None:
        self._probes = probes
        self._interval_s = interval_s
        self._task: asyncio.Task[None] | None = None

    @property
    def memory(self) -> MemoryUse | None:
        return next((m for m in (p.memory() for p in self._probes) if m is not None), None)

    @property
    def gpus(self) -> tuple[GpuUse, ...]:
        return tuple(gpu for probe in self._probes for gpu in probe.gpus())

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
            await asyncio.to_thread(probe.sample)
