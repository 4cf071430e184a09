"""The controller's side of worker processes: starts them, splits a load, and merges their rows in order."""

import asyncio
import multiprocessing
import signal
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from time import perf_counter_ns
from typing import Protocol, TypeVar

from tpx.errors import MeasurementError
from tpx.perf.clients.base import Failure
from tpx.perf.levels import Share
from tpx.perf.loads.base import LoadRequest
from tpx.perf.loads.ring import RowMerger, RowRing
from tpx.perf.loads.worker import Broken, Go, OpenTarget, Ready, Stop, Stopped, main

T = TypeVar("T")
GATHER_S = 0.01
STARTUP_S = 60.0
HEADSTART_NS = 5_000_000
"""Time from the start command until all workers begin."""
STAGES = 3
"""Phases of stopping a load: waiting for responses, for connections, and for sequences to end."""
GRACE_S = 10.0
"""Time without a report, or beyond its deadline to stop, after which a worker counts as dead."""


class RunningWorker(Protocol):
    """A worker process as its controller sees it."""

    headstart_ns: int
    """Minimum time from the start command until all workers begin."""

    @property
    def ring(self) -> RowRing:
        """The rows that it has reported."""

    def listen(self) -> None:
        """Raise MeasurementError if the worker is gone, or has a load and does not report."""

    def say(self, command: LoadRequest | Go | Stop) -> None:
        """Send a command. Raises MeasurementError if the worker is gone."""

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
    """Implements RunningWorker for a process on this machine, with its pipe and its ring."""

    headstart_ns = HEADSTART_NS

    def __init__(self, place: Share, open_target: OpenTarget) -> None:
        context = multiprocessing.get_context("spawn")
        self._name = f"worker {place.number + 1} of {place.of}"
        self.ring = RowRing()
        pipe, worker_pipe = context.Pipe()
        self._pipe: Connection = pipe
        self._process: SpawnProcess = context.Process(
            target=main, args=(worker_pipe, open_target, self.ring.name, place), daemon=True
        )
        # a worker ignores Ctrl-C once it runs; before, it would end with a traceback
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        worker_pipe.close()

    def check(self) -> None:
        """Raise MeasurementError if the process is gone."""
        if not self._process.is_alive():
            raise MeasurementError(
                f"{self._name} of tpx perf ended unexpectedly (exit code {self._process.exitcode}); "
                "its measurements are lost"
            )

    def listen(self) -> None:
        self.check()
        silent_ns = perf_counter_ns() - self.ring.said("heard_ns")
        if silent_ns > GRACE_S * 1e9 and not self.ring.said("finished"):
            self._process.kill()
            raise MeasurementError(
                f"{self._name} of tpx perf has not responded for {silent_ns / 1e9:.0f} s: it is stopped, or "
                "the machine is overloaded; its measurements are lost"
            )

    def say(self, command: LoadRequest | Go | Stop) -> None:
        self.check()
        try:
            self._pipe.send(command)
        except OSError:
            self._process.join(1)
            self.check()

    async def answer(self, kind: type[T], patience_s: float) -> T:
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
            self.ring.close()


class WorkerPool:
    """Processes that send together throughout a run."""

    def __init__(
        self, count: int, open_target: OpenTarget, start: StartWorker = LocalWorker, *, streamed: bool
    ) -> None:
        """`streamed` is True if a request may have several responses."""
        self.count = count
        self._start = start
        self._open_target = open_target
        self._streamed = streamed
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
        load = self._load = PoolLoad(active, units, open_loop=open_loop, streamed=self._streamed)
        for process, share in zip(active, load.shares, strict=True):
            process.ring.clear()
            process.say(replace(load_request, share=share))
        await asyncio.gather(*(p.answer(Ready, STARTUP_S) for p in active))
        return load


class PoolLoad:
    """Implements Load over the shares of several processes.

    Rows are in the order in which requests ended, up to the time that all processes have reported.
    """

    def __init__(
        self, processes: Sequence[RunningWorker], units: int, *, open_loop: bool, streamed: bool
    ) -> None:
        """`units` is the number of units to split: requests in flight, or sequences that a schedule
        goes through; 0 if the shares take turns request by request.
        """
        self.shares = tuple(Share(i, len(processes)) for i in range(len(processes)))
        self._things = units
        self._open_loop = open_loop
        self._processes = processes
        self._gathered = RowMerger([p.ring for p in processes], streamed=streamed)
        self.records = self._gathered.records
        self._failures: dict[int, Failure] = {}
        self._unfinished: set[int] = set()
        self._merger: asyncio.Task[None] | None = None

    @property
    def failed(self) -> int:
        return self._gathered.failed

    @property
    def unfinished(self) -> Set[int]:
        return self._unfinished

    @property
    def processor_ns(self) -> int:
        return self._sum_figure("processor_ns") // len(self._processes)

    @property
    def skipped(self) -> int:
        return self._sum_figure("skipped")

    @property
    def connections(self) -> int:
        return self._sum_figure("connections")

    def start(self, count: int | None = None, origin_ns: int = 0) -> None:
        # all workers begin at the same time, once the slowest has received the command
        headstart_ns = max(process.headstart_ns for process in self._processes)
        origin_ns = origin_ns or perf_counter_ns() + headstart_ns
        for process, share in zip(self._processes, self.shares, strict=True):
            process.ring.expect()
            part = count
            if count is not None:
                split = share.part_in_turn if self._open_loop else share.part_by
                part = split(count, self._things)
            process.say(Go(count=part, origin_ns=origin_ns))
        self._merger = asyncio.ensure_future(self._keep_gathering())

    async def finished(self) -> None:
        while not self._has_finished():  # noqa: ASYNC110 (other processes set it, in their rings)
            await asyncio.sleep(GATHER_S)
        self._gathered.gather(everything=True)

    async def settled(self, until_ns: int) -> None:
        while not self._has_finished() and self._gathered.complete_ns < until_ns:
            await asyncio.sleep(GATHER_S / 2)
            self._gathered.gather()

    async def stop(self, patience_s: float) -> None:
        self.forget()
        for process in self._processes:
            process.say(Stop(patience_s))
        due_s = patience_s * STAGES + GRACE_S
        stopped = asyncio.gather(*(p.answer(Stopped, due_s) for p in self._processes))
        while not stopped.done():
            # keep reading: a worker whose ring is full cannot finish
            await asyncio.wait([stopped], timeout=GATHER_S)
            self._gathered.gather()
        for answer in stopped.result():
            self._failures |= {s: f for s, f in answer.failures.items() if s not in self._failures}
            self._unfinished |= answer.unfinished
        self._gathered.gather(everything=True)

    def forget(self) -> None:
        """Stop reading what the workers report."""
        if self._merger is not None:
            self._merger.cancel()

    def failures(self) -> Mapping[int, Failure]:
        return dict(self._failures)

    def _sum_figure(self, figure: str) -> int:
        return sum(process.ring.said(figure) for process in self._processes)

    def _has_finished(self) -> bool:
        """Return True if all workers have finished. Raises MeasurementError if one is gone."""
        for process in self._processes:
            process.listen()
        return self._sum_figure("finished") == len(self._processes)

    async def _keep_gathering(self) -> None:
        while True:
            await asyncio.sleep(GATHER_S)
            self._gathered.gather()
