"""A process that sends one share of a load; commands, replies and the rows of requests go over a pipe."""

import asyncio
import gc
import os
import select
import signal
from collections.abc import Callable, Mapping, Set
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from itertools import count
from multiprocessing.connection import Connection
from time import perf_counter_ns

import numpy as np

from tpx.errors import TpxError
from tpx.perf.clients.base import Failure
from tpx.perf.inputs.feed import Share
from tpx.perf.inputs.sequences import SequenceFeed
from tpx.perf.loads.base import Load, Loadable, LoadRequest, open_load
from tpx.perf.loops import event_loop
from tpx.perf.records import Rows, Times

REPORT_S = 0.01
MOST_ROWS, MOST_TIMES = 512, 2048
"""Rows and response times in a report: 56 KiB, which a pipe takes at once while it is writable."""
REPORTS_A_TURN = 4
"""Maximum reports per turn of the event loop, so that requests are sent in between."""
ABANDONED_DRAIN_S = 0.25
"""Time to wait for requests in flight if the controller is gone in the middle of a level."""

OpenTarget = Callable[[], AbstractAsyncContextManager[Loadable]]
"""Connects to the server under test. It is pickled, so it is a module's function with its arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Go:
    """Command: begin at `origin_ns` of the clock that all processes share."""

    count: int | None
    origin_ns: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Command: stop sending, wait for requests in flight, and abandon the rest after `patience_s`."""

    patience_s: float


@dataclass(frozen=True, slots=True)
class Ready:
    """Reply: the connections are open."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """Reply: the load has ended and every row was reported."""

    failures: Mapping[int, Failure]
    unfinished: Set[int]
    """Sequences that were ended early."""


@dataclass(frozen=True, slots=True)
class Broken:
    """Reply: a command failed."""

    error: TpxError


NO_TIMES: Times = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WorkerReport:
    """A worker's progress, and its rows since the last report.

    Every row of a request that ended by `complete_ns` has been reported.
    """

    rows: Rows
    times_ns: Times
    """Times of all responses to the requests of `rows`, if requests may have several."""
    complete_ns: int = 0
    processor_ns: int = 0
    """CPU time since the load began; starting a process takes longer than many a level."""
    skipped: int = 0
    resent: int = 0
    connections: int = 0
    finished: bool = False
    """True if every request was sent and has ended."""


class Reporter:
    """Reports the progress of one load and its rows, with the times of their responses."""

    def __init__(self, pipe: Connection, load: Load) -> None:
        self.finished = False
        self._pipe = pipe
        self._load = load
        self._begun_ns = load.processor_ns
        self._rows = self._times = self._complete_ns = 0
        self._writable = select.poll()
        self._writable.register(pipe, select.POLLOUT)

    def report(self, *, wait: bool = False) -> None:
        """Send what is new, as far as the pipe takes it without waiting, or all of it.

        The load must not wait while the controller is busy: unsent rows stay in the load's records.
        """
        load, complete = self._load, False
        for _ in count() if wait else range(REPORTS_A_TURN):
            if complete or not (wait or self._writable.poll(0)):
                return
            # taken before the rows: one that ends meanwhile must not count as reported
            now_ns = perf_counter_ns()
            rows = load.records.between(self._rows, self._rows + MOST_ROWS)
            times_ns = NO_TIMES
            if load.records.arrivals:
                ends = np.cumsum(rows["responses"])
                rows = rows[: max(1, int(np.searchsorted(ends, MOST_TIMES, side="right")))]
                end = self._times + (int(ends[len(rows) - 1]) if len(rows) else 0)
                times_ns = np.array(load.records.arrivals[self._times : end], np.int64)
                self._times = end
            self._rows += len(rows)
            complete = self._rows == len(load.records)
            if complete:
                self._complete_ns = now_ns
            elif len(rows):  # later rows ended no earlier than the last of these
                self._complete_ns = max(self._complete_ns, int(rows["end_ns"][-1]) - 1)
            self._pipe.send(
                WorkerReport(
                    rows=rows,
                    times_ns=times_ns,
                    complete_ns=self._complete_ns,
                    processor_ns=load.processor_ns - self._begun_ns,
                    skipped=load.skipped,
                    resent=load.resent,
                    connections=load.connections,
                    finished=self.finished and complete,
                )
            )


class Worker:
    """Executes one command at a time and reports rows a hundred times a second."""

    def __init__(self, target: Loadable, pipe: Connection) -> None:
        self._target = target
        self._pipe = pipe
        self._load: Load | None = None
        self._reporter: Reporter | None = None
        self._tasks = asyncio.TaskGroup()
        self._reporting: asyncio.Task[None] | None = None
        self._beginning: asyncio.Task[None] | None = None

    async def serve(self) -> None:
        """Serve until the controller closes its end of the pipe; then stop a load that is still
        running.

        An unexpected exception, in a task too, ends the process, which the controller detects.
        """
        commands: asyncio.Queue[object] = asyncio.Queue(16)
        loop = asyncio.get_running_loop()

        def readable() -> None:
            try:
                commands.put_nowait(self._pipe.recv())
            except (EOFError, OSError):
                loop.remove_reader(self._pipe.fileno())
                commands.put_nowait(None)

        loop.add_reader(self._pipe.fileno(), readable)
        # uvloop makes it non-blocking, which would cut off a report that finds no room
        os.set_blocking(self._pipe.fileno(), True)
        async with self._tasks:
            while (command := await commands.get()) is not None:
                try:
                    match command:
                        case LoadRequest():
                            await self._prepare_load(command)
                        case Go():
                            self._beginning = self._tasks.create_task(self._begin_load(command))
                        case Stop():
                            await self._stop(command.patience_s)
                except TpxError as exc:
                    self._pipe.send(Broken(exc))
            load = self._end_tasks()
        if load is not None:
            await load.stop(ABANDONED_DRAIN_S)

    async def _prepare_load(self, load_request: LoadRequest) -> None:
        self._load = await open_load(self._target, load_request)
        # a collection in the middle of a level would show up as latency
        gc.collect()
        gc.disable()
        self._pipe.send(Ready())

    async def _begin_load(self, command: Go) -> None:
        load = self._load
        if load is None:
            return
        await asyncio.sleep(max(0, command.origin_ns - perf_counter_ns()) / 1e9)
        reporter = self._reporter = Reporter(self._pipe, load)
        load.start(command.count, command.origin_ns)
        self._reporting = self._tasks.create_task(self._keep_reporting(reporter))
        await load.finished()
        reporter.finished = True

    async def _stop(self, patience_s: float) -> None:
        load = self._end_tasks()
        failures: Mapping[int, Failure] = {}
        unfinished: Set[int] = frozenset()
        if load is not None:
            await load.stop(patience_s)
            gc.enable()
            failures, unfinished = load.failures(), load.unfinished
        if self._reporter is not None:
            self._reporter.report(wait=True)
        self._reporter = None
        self._pipe.send(Stopped(failures, unfinished))

    def _end_tasks(self) -> Load | None:
        """Cancel the tasks and return the load, if any, for the caller to stop."""
        load, self._load = self._load, None
        for task in (self._beginning, self._reporting):
            if task is not None:
                task.cancel()
        self._beginning = self._reporting = None
        return load

    async def _keep_reporting(self, reporter: Reporter) -> None:
        with suppress(OSError):  # the controller has gone: `serve` stops the load
            while True:
                await asyncio.sleep(REPORT_S)
                reporter.report()


def main(pipe: Connection, open_target: OpenTarget, place: Share) -> None:
    """Run the process as one of `place.of`; Ctrl-C is left to the controller."""

    async def run() -> None:
        try:
            async with open_target() as target:
                if isinstance(target.requests.feed, SequenceFeed):
                    target.requests.feed.divide(place)
                pipe.send(Ready())
                await Worker(target, pipe).serve()
        except TpxError as exc:
            pipe.send(Broken(exc))

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    try:
        with asyncio.Runner(loop_factory=event_loop) as runner:
            runner.run(run())
    except* (BrokenPipeError, ConnectionResetError):
        pass  # the controller has gone
