"""The controller's side of worker processes: starts them, splits a load, and merges their rows in order."""

import asyncio
import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from time import perf_counter_ns
from typing import Protocol, TypeVar

import numpy as np

from tpx.errors import MeasurementError
from tpx.perf.clients.base import Failure
from tpx.perf.inputs.feed import Share
from tpx.perf.loads.base import LoadRequest
from tpx.perf.loads.worker import (
    NO_TIMES,
    Broken,
    Go,
    OpenTarget,
    Ready,
    Stop,
    Stopped,
    WorkerReport,
    main,
)
from tpx.perf.records import ROW, SUCCESS, Records, join_rows, select_rows

T = TypeVar("T")
GATHER_S = 0.01
STARTUP_S = 60.0
HEADSTART_NS = 5_000_000
"""Time from the start command until all workers begin."""
NOTHING = WorkerReport(rows=np.zeros(0, ROW), times_ns=NO_TIMES)
STAGES = 3
"""Phases of stopping a load: waiting for responses, for connections, and for sequences to end."""
GRACE_S = 10.0
"""Time without a report, or beyond its deadline to stop, after which a worker counts as dead."""


class RunningWorker(Protocol):
    """A worker process as its controller sees it."""

    headstart_ns: int
    """Minimum time from the start command until all workers begin."""

    def take(self) -> Sequence[WorkerReport]:
        """Return the reports since the last call. A load's last one is here before its Stopped is."""

    def check(self) -> None:
        """Raise MeasurementError if the worker is gone, or has a load and does not report."""

    def send(self, command: LoadRequest | Go | Stop) -> None:
        """Send a command; one to open a load drops older reports. Raises MeasurementError if it is gone."""

    async def answer(self, kind: type[T], patience_s: float) -> T:
        """Return the worker's next reply, which must be of type `kind`.

        Raises the worker's own error, or MeasurementError.
        """

    def take_notices(self) -> Sequence[str]:
        """Return the notices to show after a level, each once."""

    async def close(self) -> None:
        """End the worker."""


StartWorker = Callable[[Share, OpenTarget], RunningWorker]


class LocalWorker:
    """Implements RunningWorker for a process on this machine."""

    headstart_ns = HEADSTART_NS

    def __init__(self, place: Share, open_target: OpenTarget) -> None:
        # one process imports what workers need, and forks them all
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([main.__module__])
        self._name = f"worker {place.number + 1} of {place.of}"
        self._reports: list[WorkerReport] = []
        self._replies: deque[object] = deque()
        self._heard_ns = 0
        """Time of the last report; 0 if none is due."""
        pipe, worker_pipe = context.Pipe()
        self._pipe: Connection = pipe
        self._process: ForkServerProcess = context.Process(
            target=main, args=(worker_pipe, open_target, place), daemon=True
        )
        # a worker ignores Ctrl-C once it runs; before, it would end with a traceback
        resource_tracker.ensure_running()  # first: starting it unblocks the signals
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        worker_pipe.close()

    def take(self) -> Sequence[WorkerReport]:
        self._receive()
        reports, self._reports = self._reports, []
        return reports

    def check(self) -> None:
        self._receive()
        if not self._process.is_alive():
            raise MeasurementError(
                f"{self._name} of tpx perf ended unexpectedly (exit code {self._process.exitcode}); "
                "its measurements are lost"
            )
        silent_ns = perf_counter_ns() - self._heard_ns
        if self._heard_ns and silent_ns > GRACE_S * 1e9:
            self._process.kill()
            raise MeasurementError(
                f"{self._name} of tpx perf has not responded for {silent_ns / 1e9:.0f} s: it is stopped, or "
                "the machine is overloaded; its measurements are lost"
            )

    def send(self, command: LoadRequest | Go | Stop) -> None:
        if isinstance(command, LoadRequest):
            self._reports.clear()
        self._heard_ns = perf_counter_ns() if isinstance(command, Go) else 0
        self.check()
        try:
            self._pipe.send(command)
        except OSError:
            self._process.join(1)
            self.check()

    async def answer(self, kind: type[T], patience_s: float) -> T:
        deadline_ns = perf_counter_ns() + int(patience_s * 1e9)
        while not self._replies:
            self.check()
            if perf_counter_ns() > deadline_ns:
                raise MeasurementError(f"{self._name} of tpx perf did not answer within {patience_s:g} s")
            await asyncio.sleep(GATHER_S)
        answer = self._replies.popleft()
        if isinstance(answer, Broken):
            raise answer.error
        if not isinstance(answer, kind):
            raise MeasurementError(f"{self._name} of tpx perf said {answer} where {kind.__name__} was due")
        return answer

    def _receive(self) -> None:
        """Read what the process has sent, up to its end."""
        with suppress(EOFError, OSError):
            while self._pipe.poll():
                message = self._pipe.recv()
                if isinstance(message, WorkerReport):
                    self._reports.append(message)
                    self._heard_ns = self._heard_ns and perf_counter_ns()
                else:
                    self._replies.append(message)

    def take_notices(self) -> Sequence[str]:
        return ()

    async def close(self) -> None:
        self._pipe.close()
        try:
            for _ in range(int(GRACE_S / GATHER_S)):
                if not self._process.is_alive():
                    break
                await asyncio.sleep(GATHER_S)
        finally:  # cancelled by a second Ctrl-C, too
            self._process.kill()
            self._process.join(1)


class WorkerPool:
    """Processes that send together throughout a run."""

    def __init__(self, count: int, open_target: OpenTarget, start: StartWorker = LocalWorker) -> None:
        self.count = count
        self._start = start
        self._open_target = open_target
        self._processes: list[RunningWorker] = []
        self._load: PoolLoad | None = None

    async def __aenter__(self) -> "WorkerPool":
        try:
            self._processes = [
                self._start(Share(i, self.count), self._open_target) for i in range(self.count)
            ]
            await asyncio.gather(*(p.answer(Ready, STARTUP_S) for p in self._processes))
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._load is not None:
            self._load.forget()
        await asyncio.gather(*(p.close() for p in self._processes))
        self._processes = []

    def take_notices(self) -> list[str]:
        """Return the notices of all workers after a level."""
        return [notice for process in self._processes for notice in process.take_notices()]

    async def open_load(self, load_request: LoadRequest) -> "PoolLoad":
        """Open a level's load, with its connections, in every process that has a share of it."""
        open_loop = load_request.level.kind.open_loop
        units = load_request.settings.sequences if open_loop else int(load_request.level.value)
        active = self._processes[:units] if units else self._processes
        load = self._load = PoolLoad(active, units, open_loop=open_loop)
        for process, share in zip(active, load.shares, strict=True):
            process.send(replace(load_request, share=share))
        await asyncio.gather(*(p.answer(Ready, STARTUP_S) for p in active))
        return load


class PoolLoad:
    """Implements Load over the shares of several processes.

    Rows are in the order in which requests ended, up to the time that all processes have reported.
    """

    def __init__(self, processes: Sequence[RunningWorker], units: int, *, open_loop: bool) -> None:
        """`units` is the number of units to split: requests in flight, or sequences that a schedule
        goes through; 0 if the shares take turns request by request.
        """
        self.shares = tuple(Share(i, len(processes)) for i in range(len(processes)))
        self.records = Records()
        self.failed = 0
        self.unfinished: set[int] = set()
        self._units = units
        self._open_loop = open_loop
        self._processes = processes
        self._latest = [NOTHING for _ in processes]
        self._pending = NOTHING
        """Rows in order of their end that not all processes have reached, and their responses' times."""
        self._failures: dict[int, Failure] = {}
        self._gathering: asyncio.Task[None] | None = None

    @property
    def processor_ns(self) -> int:
        return sum(report.processor_ns for report in self._latest) // len(self._latest)

    @property
    def skipped(self) -> int:
        return sum(report.skipped for report in self._latest)

    @property
    def resent(self) -> int:
        return sum(report.resent for report in self._latest)

    @property
    def connections(self) -> int:
        return sum(report.connections for report in self._latest)

    @property
    def complete_ns(self) -> int:
        """Time up to which every ended request is in `records`."""
        return min(report.complete_ns for report in self._latest)

    def start(self, count: int | None = None, origin_ns: int = 0) -> None:
        # all workers begin at the same time, once the slowest has received the command
        headstart_ns = max(process.headstart_ns for process in self._processes)
        origin_ns = origin_ns or perf_counter_ns() + headstart_ns
        for process, share in zip(self._processes, self.shares, strict=True):
            part = count
            if count is not None:
                split = share.part_in_turn if self._open_loop else share.part_by
                part = split(count, self._units)
            process.send(Go(count=part, origin_ns=origin_ns))
        self._gathering = asyncio.ensure_future(self._keep_gathering())

    async def finished(self) -> None:
        while not self._has_finished():  # noqa: ASYNC110 (other processes report it)
            await asyncio.sleep(GATHER_S)
        self.gather(everything=True)

    async def settled(self, until_ns: int) -> None:
        while not self._has_finished() and self.complete_ns < until_ns:
            await asyncio.sleep(GATHER_S / 2)
            self.gather()

    async def stop(self, patience_s: float) -> None:
        self.forget()
        for process in self._processes:
            process.send(Stop(patience_s))
        due_s = patience_s * STAGES + GRACE_S
        for answer in await asyncio.gather(*(p.answer(Stopped, due_s) for p in self._processes)):
            self._failures |= {s: f for s, f in answer.failures.items() if s not in self._failures}
            self.unfinished |= answer.unfinished
        self.gather(everything=True)

    def forget(self) -> None:
        """Stop reading what the workers report."""
        if self._gathering is not None:
            self._gathering.cancel()

    def failures(self) -> Mapping[int, Failure]:
        return dict(self._failures)

    def gather(self, *, everything: bool = False) -> None:
        """Append what all workers have completed, in order; with `everything`, all that they have sent."""
        reports = [self._pending]
        for number, process in enumerate(self._processes):
            reports += (fresh := process.take())
            self._latest[number] = [self._latest[number], *fresh][-1]
        rows = join_rows([report.rows for report in reports])
        times_ns = np.concatenate([report.times_ns for report in reports])
        order = np.argsort(rows["end_ns"], kind="stable")
        counts = rows["responses"] if len(times_ns) else np.zeros(len(rows), np.int64)
        begins, theirs = np.cumsum(counts) - counts, counts[order]
        moved = np.repeat(begins[order] - (np.cumsum(theirs) - theirs), theirs)
        rows, times_ns = select_rows(rows, order), times_ns[moved + np.arange(len(moved))]
        cut = len(rows)
        if not everything:
            cut = int(np.searchsorted(rows["end_ns"], self.complete_ns, side="right"))
        border = int(theirs[:cut].sum())
        self.records.arrivals.frombytes(times_ns[:border].tobytes())
        self.records.extend(rows[:cut])
        self.failed += int(np.count_nonzero(rows["status"][:cut] != SUCCESS))
        self._pending = WorkerReport(rows=rows[cut:], times_ns=times_ns[border:])

    def _has_finished(self) -> bool:
        """Return True if all workers have finished. Raises MeasurementError if one is gone."""
        for process in self._processes:
            process.check()
        return all(report.finished for report in self._latest)

    async def _keep_gathering(self) -> None:
        while True:
            await asyncio.sleep(GATHER_S)
            self.gather()
