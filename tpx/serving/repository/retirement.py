"""The end of versions that do not serve any more: their last answers, their threads, their memory."""

import asyncio
import gc
import logging
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from tpx.serving.heap import give_memory_back
from tpx.serving.instances.base import Instance
from tpx.serving.model import ServedModel
from tpx.serving.model_id import ModelId
from tpx.serving.repository.agents.custody import Custody
from tpx.serving.repository.loading import Regroup
from tpx.serving.repository.records import Loaded
from tpx.serving.repository.tasks import Tasks
from tpx.serving.served import Served

log = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.01
_CLOSED_AT_ONCE = 32
_A_BACKEND_OF_MODULES = 20
_RECLAIM_AFTER_S = 0.2
"""Many that are unloaded at once are swept up together."""


class Retirement:
    """Closes versions off the event loop, each once nothing is in flight in it."""

    def __init__(self, tasks: Tasks, on_end: Callable[[Served], None]) -> None:
        self._tasks = tasks
        self._on_end = on_end
        self._draining: list[Served] = []
        self._held: set[Custody] = set()
        self._ending: dict[ModelId, set[asyncio.Task[None]]] = {}
        """Of instances that were dismissed since a load of their model last waited for them."""
        self._pool = ThreadPoolExecutor(_CLOSED_AT_ONCE, thread_name_prefix="retirement")
        """Its own: Python models may take half a minute to end, and requests need the threads of the loop."""
        self._reclaiming = False
        self._modules = len(sys.modules)
        self.last = False
        """The server ends: its memory need not be swept."""

    def shutdown(self) -> None:
        """Nothing more will be closed."""
        self._pool.shutdown(wait=False)

    @property
    def draining(self) -> list[Served]:
        """Versions that still answer what they took before."""
        return list(self._draining)

    def retire(self, ended: Iterable[Loaded]) -> None:
        """Nothing new will be sent to these."""
        for loaded in ended:
            self._draining.append(loaded.served)
            self._tasks.start(self._drain(loaded))

    def discard(self, loaded: Iterable[Loaded]) -> None:
        """Close versions that never served."""
        for one in loaded:
            self._tasks.start(self._close(one))

    def drop(self, regroups: Iterable[Regroup]) -> None:
        """End instances that never computed."""
        for regroup in regroups:
            self._tasks.start(self._in_thread(regroup.drop))

    def dismiss(self, model: ServedModel, instances: Iterable[Instance]) -> None:
        """End instances that compute no longer than what they have begun, sequences included."""
        for instance in instances:
            task = self._tasks.start(self._dismiss(model, instance))
            if not model.config.HasField("sequence_batching"):  # a sequence may go on for ever
                ending = self._ending.setdefault(model.model_id, set())
                ending.add(task)
                task.add_done_callback(ending.discard)

    async def until_dismissed(self, model: ModelId) -> None:
        """Wait until the instances that were dismissed have ended, those of sequences apart."""
        ending = self._ending.pop(model, None)
        if ending:
            await asyncio.wait(ending)

    async def _dismiss(self, model: ServedModel, instance: Instance) -> None:
        while not (instance.leaving and instance.drained):
            if self.last and not model.in_flight:
                model.give_up_sequences()
            await asyncio.sleep(_LOOK_EVERY_S)
        await self._in_thread(instance.close)
        log.info("instance %s has ended", instance.name)
        self._reclaim_soon()

    def leave_imports_alone(self) -> None:
        """Loading may have imported a backend, whose objects stay: a collector that looks at all of them
        holds up every request, with PyTorch for some tenths of a second."""
        if len(sys.modules) - self._modules > _A_BACKEND_OF_MODULES:
            self._modules = len(sys.modules)
            gc.freeze()

    def hold(self, custody: Custody) -> None:
        """Remember what has to come to its end, by `release` or by `abandon`."""
        self._held.add(custody)

    def abandon(self) -> None:
        """Remove all files, whoever needs them: the process ends."""
        for custody in self._held:
            custody.abandon()

    async def release(self, custody: Custody | None) -> None:
        """One less needs it: the last one ends it."""
        if custody is not None and custody.release():
            self._held.discard(custody)
            if not custody.empty:
                await self._in_thread(custody.end)

    async def _drain(self, loaded: Loaded) -> None:
        served, custody = loaded.served, loaded.custody
        if custody is not None and custody.agents:
            await self._in_thread(custody.unload)
        # what was bound to it before the swap is submitted by the time the loop comes back here
        await asyncio.sleep(_LOOK_EVERY_S)
        while self._is_needed(served):  # noqa: ASYNC110 (an event would cost every request a test)
            await asyncio.sleep(_LOOK_EVERY_S)
        served.retired = True
        self._draining.remove(served)
        try:
            await self._close(loaded)
        finally:
            self._on_end(served)
        log.info("successfully unloaded '%s' version %d", served.model_id, served.version)

    def _is_needed(self, served: Served) -> bool:
        """Whether it computes, or will for what an ensemble has taken that does not serve any more either."""
        return (served.in_flight > 0 and not served.deserted) or any(
            one.in_flight and served.model_id in one.composed_of for one in self._draining
        )

    async def _close(self, loaded: Loaded) -> None:
        try:
            await self._in_thread(loaded.served.close)
        finally:
            await self.release(loaded.custody)
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
