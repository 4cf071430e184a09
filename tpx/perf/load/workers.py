"""The controller's side of worker processes: starts them, deals out a load, gathers their rows in order."""

import asyncio
import math
import multiprocessing
import os
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from time import perf_counter_ns
from typing import Any

import numpy as np

from tpx.errors import MeasurementError
from tpx.perf.clients.base import Failure
from tpx.perf.load.ring import Ring
from tpx.perf.load.schedules import Share
from tpx.perf.load.worker import Broken, Go, OpenTarget, Prepare, Ready, Stop, Stopped, main
from tpx.perf.plan import LoadPlan
from tpx.perf.records import SUCCESS, Records, Rows
from tpx.perf.settings import Level, LevelRange, LevelSettings

RATE_PER_WORKER = 20_000
LANES_PER_WORKER = 128
GATHER_S = 0.01
STARTUP_S = 60.0
HEADSTART_NS = 5_000_000
"""From the word to go until the common beginning."""
GRACE_S = 10.0
"""A worker that has had its patience and as much more is dead."""


def workers_for(levels: LevelRange, plan: LoadPlan, processors: int | None = None) -> int:
    """How many processes a run gets: those that were asked for, or one for so many requests per second or in
    flight as a process does with ease, but no more than half of the processors."""
    if plan.workers:
        return plan.workers
    most = (processors or os.cpu_count() or 1) // 2
    if plan.most_workers:
        most = min(most, plan.most_workers)
    each = LANES_PER_WORKER if levels.mode == "concurrency" else RATE_PER_WORKER
    return max(1, min(most, math.ceil((levels.highest or levels.start) / each)))


class _Process:
    """One worker, its pipe and its ring."""

    def __init__(self, number: int, of: int, open_target: OpenTarget) -> None:
        context = multiprocessing.get_context("spawn")
        self._name = f"worker {number + 1} of {of}"
        self.ring = Ring()
        ours, theirs = context.Pipe()
        self._pipe: Connection = ours
        self._process: SpawnProcess = context.Process(
            target=main, args=(theirs, open_target, self.ring.name), daemon=True
        )
        self._process.start()
        theirs.close()

    def check(self) -> None:
        """Raise MeasurementError for a process that has gone."""
        if not self._process.is_alive():
            raise MeasurementError(
                f"{self._name} of tpx perf ended unexpectedly (exit code {self._process.exitcode}); "
                "what it measured is lost"
            )

    def say(self, command: Prepare | Go | Stop) -> None:
        self.check()
        try:
            self._pipe.send(command)
        except OSError:
            self._process.join(1)
            self.check()

    async def answer(self, kind: type[Any], patience_s: float) -> Any:
        """Its next answer, which has to be of that kind. Raises the worker's own error, MeasurementError."""
        deadline_ns = perf_counter_ns() + int(patience_s * 1e9)
        while not self._pipe.poll():
            self.check()
            if perf_counter_ns() > deadline_ns:
                raise MeasurementError(f"{self._name} of tpx perf did not answer within {patience_s:g} s")
            await asyncio.sleep(GATHER_S)
        try:
            answer = self._pipe.recv()
        except (EOFError, OSError):
            self._process.join(1)
            self.check()
            raise MeasurementError(f"{self._name} of tpx perf closed its pipe") from None
        if isinstance(answer, Broken):
            raise answer.error
        if not isinstance(answer, kind):
            raise MeasurementError(f"{self._name} of tpx perf said {answer} where {kind.__name__} was due")
        return answer

    async def close(self) -> None:
        self._pipe.close()
        for _ in range(int(GRACE_S / GATHER_S)):
            if not self._process.is_alive():
                break
            await asyncio.sleep(GATHER_S)
        else:
            self._process.kill()
        self._process.join(1)
        self.ring.close()


class WorkerPool:
    """Processes that send together, for as long as a run lasts."""

    def __init__(self, count: int, open_target: OpenTarget) -> None:
        self._count = count
        self._open_target = open_target
        self._processes: list[_Process] = []

    async def __aenter__(self) -> "WorkerPool":
        try:
            self._processes = [_Process(i, self._count, self._open_target) for i in range(self._count)]
            await asyncio.gather(*(p.answer(Ready, STARTUP_S) for p in self._processes))
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(p.close() for p in self._processes))
        self._processes = []

    async def open_load(self, level: Level, settings: LevelSettings, *, warming: bool = False) -> "PoolLoad":
        """The load of a level, its connections open in every process that has a part in it."""
        active = self._processes
        if not level.open_loop:
            active = active[: int(level.value)]
        shares = [Share(i, len(active)) for i in range(len(active))]
        for process, share in zip(active, shares, strict=True):
            process.ring.clear()
            process.say(Prepare(level=level, settings=settings, share=share, warming=warming))
        await asyncio.gather(*(p.answer(Ready, STARTUP_S) for p in active))
        return PoolLoad(active, shares, None if level.open_loop else int(level.value))


class PoolLoad:
    """Implements Load over the shares of several processes. Rows come in the order in which requests ended,
    as far as all processes have told."""

    def __init__(
        self, processes: Sequence[_Process], shares: Sequence[Share], concurrency: int | None
    ) -> None:
        """`concurrency` is None for a schedule, which the shares have in turn."""
        self._concurrency = concurrency
        self.records = Records()
        self._processes = processes
        self._shares = shares
        self._pending: list[Rows] = []
        self._complete_ns = 0
        self._failed = 0
        self._failures: dict[int, Failure] = {}
        self._gathering: asyncio.Task[None] | None = None

    @property
    def failed(self) -> int:
        return self._failed

    @property
    def processor_ns(self) -> int:
        return sum(p.ring.processor_ns for p in self._processes) // len(self._processes)

    @property
    def skipped(self) -> int:
        return sum(p.ring.skipped for p in self._processes)

    @property
    def connections(self) -> int:
        return sum(p.ring.connections for p in self._processes)

    def start(self, count: int | None = None, origin_ns: int = 0) -> None:
        origin_ns = origin_ns or perf_counter_ns() + HEADSTART_NS
        for process, share in zip(self._processes, self._shares, strict=True):
            process.say(Go(count=self._count(count, share), origin_ns=origin_ns))
        self._gathering = asyncio.ensure_future(self._keep_gathering())

    def _count(self, count: int | None, share: Share) -> int | None:
        if count is None:
            return None
        return share.part_by(count, self._concurrency) if self._concurrency else share.part(count)

    async def finished(self) -> None:
        while not all(p.ring.finished for p in self._processes):
            self._check()
            await asyncio.sleep(GATHER_S)
        self._gather(everything=True)

    async def settled(self, until_ns: int) -> None:
        while self._complete_ns < until_ns and not all(p.ring.finished for p in self._processes):
            self._check()
            await asyncio.sleep(GATHER_S / 2)
            self._gather()

    async def stop(self, patience_s: float) -> None:
        if self._gathering is not None:
            self._gathering.cancel()
        for process in self._processes:
            process.say(Stop(patience_s))
        stopped = asyncio.gather(*(p.answer(Stopped, patience_s * 2 + GRACE_S) for p in self._processes))
        while not stopped.done():
            await asyncio.wait([stopped], timeout=GATHER_S)
            self._gather()
        for answer in stopped.result():
            self._failures |= {s: f for s, f in answer.failures.items() if s not in self._failures}
        self._gather(everything=True)

    def failures(self) -> Mapping[int, Failure]:
        return dict(self._failures)

    def _check(self) -> None:
        for process in self._processes:
            process.check()

    async def _keep_gathering(self) -> None:
        while True:
            await asyncio.sleep(GATHER_S)
            self._gather()

    def _gather(self, *, everything: bool = False) -> None:
        """Take what is new, and put into order what all processes have told of."""
        complete_ns = min(p.ring.complete_ns for p in self._processes)
        self._pending += [rows for p in self._processes if len(rows := p.ring.take())]
        if not self._pending:
            self._complete_ns = max(self._complete_ns, complete_ns)
            return
        rows = np.concatenate(self._pending)
        rows = rows[np.argsort(rows["end_ns"], kind="stable")]
        cut = len(rows) if everything else int(np.searchsorted(rows["end_ns"], complete_ns, side="right"))
        self.records.extend(rows[:cut])
        self._failed += int(np.count_nonzero(rows["status"][:cut] != SUCCESS))
        self._pending = [rows[cut:]] if cut < len(rows) else []
        self._complete_ns = max(self._complete_ns, complete_ns)
