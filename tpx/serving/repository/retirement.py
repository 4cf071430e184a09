"""Versions and instances that no longer serve: they are closed off the event loop once they are idle."""

import asyncio
import gc
import logging
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from tpx.serving.deferred import Tasks
from tpx.serving.heap import give_memory_back
from tpx.serving.instance import Instance
from tpx.serving.model import ServedModel
from tpx.serving.model_id import ModelId
from tpx.serving.repository.agents.ownership import Ownership
from tpx.serving.repository.loading import Regroup
from tpx.serving.repository.records import Loaded
from tpx.serving.served import Served

log = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.01
_CLOSED_AT_ONCE = 32
_A_BACKEND_OF_MODULES = 20
_RECLAIM_AFTER_S = 0.2
"""Delay before memory is reclaimed, so that one collection covers models unloaded together."""


class Retirement:
    """Closes versions off the event loop, each once it has nothing in flight."""

    def __init__(self, tasks: Tasks, on_end: Callable[[Served], None]) -> None:
        self._tasks = tasks
        self._on_end = on_end
        self.draining: list[Served] = []
        """Versions that get no new requests but have some in flight."""
        self._owned: set[Ownership] = set()
        self._ending: dict[ModelId, set[asyncio.Task[None]]] = {}
        """Closing tasks of removed instances, by model, that no load has waited for yet."""
        # not the loop's default executor: requests need it, and Python models may take 30 s to end
        self._pool = ThreadPoolExecutor(_CLOSED_AT_ONCE, thread_name_prefix="retirement")
        self._reclaiming = False
        self._modules = len(sys.modules)
        self.last = False
        """True while the server shuts down: memory need not be reclaimed."""

    def shutdown(self) -> None:
        """Stop the threads. Nothing can be closed afterwards."""
        self._pool.shutdown(wait=False)

    def drain(self, ended: Iterable[Loaded]) -> None:
        """Close versions that get no new requests, each after its last response."""
        for loaded in ended:
            self.draining.append(loaded.served)
            self._tasks.start(self._drain_version(loaded))

    def close_unused(self, loaded: Iterable[Loaded], regroups: Iterable[Regroup] = ()) -> None:
        """Close versions and instances that never served."""
        for one in loaded:
            self._tasks.start(self._close(one))
        for regroup in regroups:
            self._tasks.start(self._run_in_thread(regroup.drop))

    def close_removed(self, model: ServedModel, instances: Iterable[Instance]) -> None:
        """Close instances of a model that keeps serving, each after its current work, sequences included."""
        for instance in instances:
            task = self._tasks.start(self._close_removed(model, instance))
            if not model.config.HasField("sequence_batching"):  # a sequence may never end
                ending = self._ending.setdefault(model.model_id, set())
                ending.add(task)
                task.add_done_callback(ending.discard)

    async def until_removed(self, model: ModelId) -> None:
        """Wait until the removed instances of a model are closed, except those of sequence models."""
        ending = self._ending.pop(model, None)
        if ending:
            await asyncio.wait(ending)

    async def _close_removed(self, model: ServedModel, instance: Instance) -> None:
        while not instance.left:
            if self.last and not model.in_flight:
                model.give_up_sequences()
            await asyncio.sleep(_LOOK_EVERY_S)
        await self._run_in_thread(instance.close)
        log.info("instance %s has ended", instance.name)
        self._schedule_reclaim()

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
                await self._run_in_thread(ownership.end)

    async def _drain_version(self, loaded: Loaded) -> None:
        served, ownership = loaded.served, loaded.ownership
        if ownership is not None and ownership.agents:
            await self._run_in_thread(ownership.unload)
        # after one pass of the loop, requests bound before the swap have been submitted
        await asyncio.sleep(_LOOK_EVERY_S)
        # while it has requests in flight, or may get some from an ensemble that drains
        while (served.in_flight > 0 and not served.abandoned) or any(  # noqa: ASYNC110 (an event would add a check to every request)
            one.in_flight and served.model_id in one.composed_of for one in self.draining
        ):
            await asyncio.sleep(_LOOK_EVERY_S)
        served.retired = True
        self.draining.remove(served)  # before closing it, so that steps of ensembles cannot resolve to it
        try:
            await self._close(loaded)
        finally:
            self._on_end(served)
        log.info("successfully unloaded '%s' version %d", served.model_id, served.version)

    async def _close(self, loaded: Loaded) -> None:
        try:
            await self._run_in_thread(loaded.served.close)
        finally:
            await self.release(loaded.ownership)
            self._schedule_reclaim()

    def _schedule_reclaim(self) -> None:
        if not (self._reclaiming or self.last):
            self._reclaiming = True
            self._tasks.start(self._reclaim_memory())

    async def _reclaim_memory(self) -> None:
        await asyncio.sleep(_RECLAIM_AFTER_S)
        self._reclaiming = False
        await self._run_in_thread(give_memory_back)

    async def _run_in_thread(self, work: Callable[[], None]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._pool, work)
