"""A process that sends one share of a load, controlled over a pipe."""

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
from tpx.perf.levels import Share
from tpx.perf.loads.base import Load, Loadable, LoadRequest, open_load
from tpx.perf.loads.ring import RowFlusher, RowRing
from tpx.perf.loops import event_loop

FLUSH_S = 0.01
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
    """Reply: the load has ended and every row is in the ring."""

    failures: Mapping[int, Failure]
    unfinished: Set[int]
    """Sequences that were ended early."""


@dataclass(frozen=True, slots=True)
class Broken:
    """Reply: a command failed."""

    error: TpxError


class Worker:
    """Executes one command at a time and flushes rows to the ring a hundred times a second."""

    def __init__(self, target: Loadable, ring: RowRing, pipe: Connection) -> None:
        self._target = target
        self._ring = ring
        self._pipe = pipe
        self._load: Load | None = None
        self._flusher: RowFlusher | None = None
        self._tasks = asyncio.TaskGroup()
        self._flushing: asyncio.Task[None] | None = None
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
        streamed = self._target.client.streams
        self._flusher = RowFlusher(self._ring, self._load.records, streamed=streamed)
        # a collection in the middle of a level would show up as latency
        gc.collect()
        gc.freeze()
        gc.disable()
        self._pipe.send(Ready())

    async def _begin_load(self, command: Go) -> None:
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
        """Cancel the tasks and return the load, if any, for the caller to stop."""
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
        """Write new rows and report progress. Return True if all rows fitted."""
        # taken before writing: a row that ends meanwhile must not count as reported
        now_ns = perf_counter_ns()
        complete = self._flusher is None or self._flusher.tell()
        self._ring.report(
            complete_ns=now_ns if complete else self._ring.said("complete_ns"),
            processor_ns=load.processor_ns,
            skipped=load.skipped,
            connections=load.connections,
        )
        return complete


def main(pipe: Connection, open_target: OpenTarget, ring_name: str, place: Share) -> None:
    """Run the process as one of `place.of`; Ctrl-C is left to the controller."""

    async def run() -> None:
        ring = RowRing(ring_name)
        try:
            async with open_target() as target:
                if isinstance(target.requests.feed, SequenceFeed):
                    target.requests.feed.divide(place)
                pipe.send(Ready())
                await Worker(target, ring, pipe).serve()
        except TpxError as exc:
            pipe.send(Broken(exc))
        finally:
            ring.close()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    try:
        with asyncio.Runner(loop_factory=event_loop) as runner:
            runner.run(run())
    except* (BrokenPipeError, ConnectionResetError):
        pass  # the controller has gone
