"""A process that sends one share of a load, as its controller tells it over a pipe."""

import asyncio
import gc
import signal
from collections.abc import Callable, Mapping, Set
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from time import perf_counter_ns

from tpx.errors import TpxError
from tpx.perf.clients.base import Failure
from tpx.perf.inputs.sequences import SequenceFeed
from tpx.perf.loads.base import Load, Loadable, LoadRequest, open_load
from tpx.perf.loads.ring import RowRing, Telling
from tpx.perf.loops import event_loop
from tpx.perf.plan import Share

FLUSH_S = 0.01
ABANDONED_DRAIN_S = 0.25
"""Patience for requests in flight when the controller has gone in the middle of a level."""

OpenTarget = Callable[[], AbstractAsyncContextManager[Loadable]]
"""Connects to what is measured; is pickled, so it is a function of a module with its arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Go:
    """Begin at a time of the clock that all processes have in common."""

    count: int | None
    origin_ns: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Send no more, wait for the answers that are due, and give up the rest."""

    patience_s: float


@dataclass(frozen=True, slots=True)
class Ready:
    """The connections are open."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """The load is over and every row is in the ring."""

    failures: Mapping[int, Failure]
    unfinished: Set[int]
    """Sequences that were ended before their time."""


@dataclass(frozen=True, slots=True)
class Broken:
    """The worker could not do what it was told."""

    error: TpxError


class Worker:
    """Carries out one command after the other; rows leave for the ring a hundred times a second."""

    def __init__(self, target: Loadable, ring: RowRing, pipe: Connection) -> None:
        self._target = target
        self._ring = ring
        self._pipe = pipe
        self._load: Load | None = None
        self._telling: Telling | None = None
        self._tasks = asyncio.TaskGroup()
        self._flushing: asyncio.Task[None] | None = None
        self._beginning: asyncio.Task[None] | None = None

    async def serve(self) -> None:
        """Until the controller closes its end of the pipe; a load that it left behind ends, too.

        What nobody expected, in a task as well, ends the process: its controller notices that.
        """
        async with self._tasks:
            load = await self._serve()
        if load is not None:
            await load.stop(ABANDONED_DRAIN_S)

    async def _serve(self) -> Load | None:
        """Returns the load that was not stopped."""
        commands: asyncio.Queue[object] = asyncio.Queue(16)
        loop = asyncio.get_running_loop()

        def readable() -> None:
            try:
                commands.put_nowait(self._pipe.recv())
            except (EOFError, OSError):
                loop.remove_reader(self._pipe.fileno())
                commands.put_nowait(None)

        loop.add_reader(self._pipe.fileno(), readable)
        while (command := await commands.get()) is not None:
            try:
                await self._obey(command)
            except TpxError as exc:
                self._pipe.send(Broken(exc))
        return self._end_tasks()

    async def _obey(self, command: object) -> None:
        match command:
            case LoadRequest():
                await self._prepare(command)
            case Go():
                self._beginning = self._tasks.create_task(self._begin(command))
            case Stop():
                await self._stop(command.patience_s)

    async def _prepare(self, asked: LoadRequest) -> None:
        self._load = await open_load(self._target, asked)
        streamed = self._target.client.streams
        self._telling = Telling(self._ring, self._load.records, streamed=streamed)
        gc.collect()
        gc.freeze()
        gc.disable()
        self._pipe.send(Ready())

    async def _begin(self, command: Go) -> None:
        load = self._load
        if load is None:
            return
        await asyncio.sleep(max(0, command.origin_ns - perf_counter_ns()) / 1e9)
        load.start(command.count, command.origin_ns)
        self._flushing = self._tasks.create_task(self._keep_flushing(load))
        await load.finished()
        self._flush(load)
        self._ring.finish()

    async def _stop(self, patience_s: float) -> None:
        load = self._end_tasks()
        if load is None:
            self._pipe.send(Stopped({}, frozenset()))
            return
        await load.stop(patience_s)
        complete = self._flush(load)
        while not complete:
            await asyncio.sleep(FLUSH_S)
            complete = self._flush(load)
        gc.enable()
        gc.unfreeze()
        self._pipe.send(Stopped(load.failures(), load.unfinished))

    def _end_tasks(self) -> Load | None:
        """Leave the load, if there is one, to whoever stops it."""
        load, self._load = self._load, None
        for task in (self._beginning, self._flushing):
            if task is not None:
                task.cancel()
        self._beginning = self._flushing = None
        return load

    async def _keep_flushing(self, load: Load) -> None:
        while True:
            await asyncio.sleep(FLUSH_S)
            self._flush(load)

    def _flush(self, load: Load) -> bool:
        """Write what is new; whether there was room for all of it."""
        now_ns = perf_counter_ns()
        complete = self._telling is None or self._telling.tell()
        self._ring.report(
            complete_ns=now_ns if complete else self._ring.said("complete_ns"),
            processor_ns=load.processor_ns,
            skipped=load.skipped,
            connections=load.connections,
        )
        return complete


async def _work(pipe: Connection, open_target: OpenTarget, ring_name: str, place: Share) -> None:
    ring = RowRing(ring_name)
    try:
        async with open_target() as target:
            if isinstance(target.feed, SequenceFeed):
                target.feed.divide(place)
            pipe.send(Ready())
            await Worker(target, ring, pipe).serve()
    except TpxError as exc:
        pipe.send(Broken(exc))
    finally:
        ring.close()


def main(pipe: Connection, open_target: OpenTarget, ring_name: str, place: Share) -> None:
    """Run the process as one of `place.of`; its controller handles Ctrl-C and says what becomes of it."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    with asyncio.Runner(loop_factory=event_loop) as runner:
        runner.run(_work(pipe, open_target, ring_name, place))
