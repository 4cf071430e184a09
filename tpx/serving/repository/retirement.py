"""Retirement of versions that no longer serve: last responses, threads, memory."""

import asyncio
import gc
import logging
import sys
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor

from tpx.serving.heap import give_memory_back
from tpx.serving.instances.base import Instance
from tpx.serving.model import ServedModel
from tpx.serving.model_id import ModelId
from tpx.serving.repository.agents.ownership import Ownership
from tpx.serving.repository.loading import Regroup
from tpx.serving.repository.table import Loaded
from tpx.serving.served import Served

log = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.01
_CLOSED_AT_ONCE = 32
_A_BACKEND_OF_MODULES = 20
_RECLAIM_AFTER_S = 0.2
"""Delay before memory is reclaimed, so that one collection covers models unloaded together."""


class Tasks:
    """Owner of tasks on the running event loop. Tasks are never canceled: each runs to its end."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._running)

    def start(self, work: Coroutine[object, object, None]) -> "asyncio.Task[None]":
        """Start a task and return it, for callers that wait. Failures are logged for callers that do not."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._running.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a task failed", exc_info=task.exception())

    async def finish(self) -> None:
        """Wait until no task is left, including tasks started meanwhile."""
        while self._running:
            await asyncio.wait(self._running)


class Retirement:
    """Closes versions off the event loop, each once it has nothing in flight."""

    def __init__(self, tasks: Tasks, on_end: Callable[[Served], None]) -> None:
        self._tasks = tasks
        self._on_end = on_end
        self._draining: list[Served] = []
        self._owned: set[Ownership] = set()
        self._ending: dict[ModelId, set[asyncio.Task[None]]] = {}
        """Closing tasks of dismissed instances, by model, that no load has waited for yet."""
        # not the loop's default executor: requests need it, and Python models may take 30 s to end
        self._pool = ThreadPoolExecutor(_CLOSED_AT_ONCE, thread_name_prefix="retirement")
        self._reclaiming = False
        self._modules = len(sys.modules)
        self.last = False
        """True while the server shuts down: memory need not be reclaimed."""

    def shutdown(self) -> None:
        """Stop the threads. Nothing can be closed afterwards."""
        self._pool.shutdown(wait=False)

    @property
    def draining(self) -> list[Served]:
        """Versions that get no new requests but have some in flight."""
        return list(self._draining)

    def retire(self, ended: Iterable[Loaded]) -> None:
        """Close versions that get no new requests, each after its last response."""
        for loaded in ended:
            self._draining.append(loaded.served)
            self._tasks.start(self._drain(loaded))

    def discard(self, loaded: Iterable[Loaded], regroups: Iterable[Regroup] = ()) -> None:
        """Close versions and instances that never served."""
        for one in loaded:
            self._tasks.start(self._close(one))
        for regroup in regroups:
            self._tasks.start(self._in_thread(regroup.drop))

    def dismiss(self, model: ServedModel, instances: Iterable[Instance]) -> None:
        """Close instances of a model that keeps serving, each after its current work, sequences included."""
        for instance in instances:
            task = self._tasks.start(self._dismiss(model, instance))
            if not model.config.HasField("sequence_batching"):  # a sequence may never end
                ending = self._ending.setdefault(model.model_id, set())
                ending.add(task)
                task.add_done_callback(ending.discard)

    async def until_dismissed(self, model: ModelId) -> None:
        """Wait until the dismissed instances of a model are closed, except those of sequence models."""
        ending = self._ending.pop(model, None)
        if ending:
            await asyncio.wait(ending)

    async def _dismiss(self, model: ServedModel, instance: Instance) -> None:
        while not instance.left:
            if self.last and not model.in_flight:
                model.give_up_sequences()
            await asyncio.sleep(_LOOK_EVERY_S)
        await self._in_thread(instance.close)
        log.info("instance %s has ended", instance.name)
        self._reclaim_soon()

    def freeze_imports(self) -> None:
        """Exempt the modules of a newly imported backend from garbage collection. A collection pauses
        all requests while it visits these objects: a few tenths of a second with PyTorch.
        """
        if len(sys.modules) - self._modules > _A_BACKEND_OF_MODULES:
            self._modules = len(sys.modules)
            gc.freeze()

    def hold(self, ownership: Ownership) -> None:
        """Keep track of the files and agents of a load until `release` or `abandon`."""
        self._owned.add(ownership)

    def abandon(self) -> None:
        """Remove the files of all loads even if they are in use: the process is exiting."""
        for ownership in self._owned:
            ownership.abandon()

    async def release(self, ownership: Ownership | None) -> None:
        """Drop one share of the files and agents of a load. The last share ends them."""
        if ownership is not None and ownership.release():
            self._owned.discard(ownership)
            if not ownership.empty:
                await self._in_thread(ownership.end)

    async def _drain(self, loaded: Loaded) -> None:
        served, ownership = loaded.served, loaded.ownership
        if ownership is not None and ownership.agents:
            await self._in_thread(ownership.unload)
        # after one pass of the loop, requests bound before the swap have been submitted
        await asyncio.sleep(_LOOK_EVERY_S)
        while self._is_needed(served):  # noqa: ASYNC110 (an event would add a check to every request)
            await asyncio.sleep(_LOOK_EVERY_S)
        served.retired = True
        self._draining.remove(served)  # before closing it, so that steps of ensembles cannot resolve to it
        try:
            await self._close(loaded)
        finally:
            self._on_end(served)
        log.info("successfully unloaded '%s' version %d", served.model_id, served.version)

    def _is_needed(self, served: Served) -> bool:
        """Return True if a version has requests in flight, or may get some from an ensemble that drains."""
        return (served.in_flight > 0 and not served.abandoned) or any(
            one.in_flight and served.model_id in one.composed_of for one in self._draining
        )

    async def _close(self, loaded: Loaded) -> None:
        try:
            await self._in_thread(loaded.served.close)
        finally:
            await self.release(loaded.ownership)
            self._reclaim_soon()

    def _reclaim_soon(self) -> None:
        if not (self._reclaiming or self.last):
            self._reclaiming = True
            self._tasks.start(self._reclaim())

    async def _reclaim(self) -> None:
        await asyncio.sleep(_RECLAIM_AFTER_S)
        self._reclaiming = False
        await self._in_thread(give_memory_back)

    async def _in_thread(self, work: Callable[[], None]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._pool, work)
