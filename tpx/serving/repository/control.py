"""Which models are loaded and unloaded while the server serves: at startup, by polling, or as clients ask.

Loads of the same model follow each other, those of different ones run at the same time.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial

from tpx.errors import (
    InvalidRequest,
    NotFound,
    NotReady,
    Overloaded,
    TpxError,
    UsageError,
)
from tpx.options import nearest
from tpx.serving.model_id import ModelId
from tpx.serving.repository.decisions import plan_poll, plan_start
from tpx.serving.repository.demand import Demand
from tpx.serving.repository.dependencies import plan_cascade
from tpx.serving.repository.ensembles import Ensembles
from tpx.serving.repository.layout import ModelSource
from tpx.serving.repository.loading import Loader
from tpx.serving.repository.loads import Loads, absent
from tpx.serving.repository.names import Names
from tpx.serving.repository.overrides import Override
from tpx.serving.repository.repository import ModelRepository
from tpx.serving.repository.retirement import Retirement
from tpx.serving.repository.room import Room, Tenancy
from tpx.serving.repository.settings import ControlSettings
from tpx.serving.repository.sightings import Repositories, Sighting, check_name, fetched
from tpx.serving.repository.strays import stray_configs, strays
from tpx.serving.repository.tasks import Tasks
from tpx.serving.repository.turns import Round, Turns
from tpx.serving.repository.versions import Versions
from tpx.serving.repository.waits import Waits

log = logging.getLogger(__name__)

_SETTLE_S = 0.25
"""A model whose files have changed again after this time is being written: the next poll looks again."""
_CLIENTS_DECIDE = ("explicit", "lazy")


class ModelControl:
    """Changes what a ModelRepository holds. `tasks` owns the work of those who ask for it."""

    def __init__(self, repository: ModelRepository, loader: Loader, settings: ControlSettings) -> None:
        self._repository = repository
        self._settings = settings
        self._repositories = Repositories(
            paths=settings.paths, config_name=settings.config_name, namespaces=repository.namespaces
        )
        self._names = Names(repository, self._repositories)
        self.tasks = Tasks()
        self.retirement = Retirement(self.tasks, repository.ended)
        self._ensembles = Ensembles(repository, self.retirement, loader.settings)
        self._asked: set[ModelId] = set()
        """Models that were to be loaded by their own names, not only as parts of ensembles."""
        self._turns = Turns()
        self._stopping = asyncio.Event()
        self._poller: asyncio.Task[None] | None = None
        self.demand = Demand(self._load_for_request, self.tasks, settings.lazy_wait_s)
        tenancy = Tenancy(
            repository=repository, retirement=self.retirement, held=self._held, evict=self._unload
        )
        limit_bytes = settings.memory_limit_bytes
        self._room = Room(limit_bytes, tenancy, settings.resident) if limit_bytes else None
        self._versions = Versions(loader, settings, self._room, self._stopping)
        self._waits = Waits()
        self._loads = Loads(
            repository, loader, self._names, self.retirement, self._ensembles, self._versions, self._waits
        )

    # startup and shutdown

    async def start(self) -> None:
        """Load what the mode asks for; a failure is kept as the state of its model. Raises UsageError."""
        settings = self._settings
        found = await self._scan()
        if settings.mode not in _CLIENTS_DECIDE:
            for words in await asyncio.to_thread(strays, settings.paths):
                log.warning("%s", words)
        models = plan_start(settings.mode, settings.startup, found)
        self._names.notice(found)
        for model in models:
            if model not in found:
                meant = nearest(model.name, [each.name for each in found])
                fault = f"{absent(model)}: no repository has it{meant}"
                log.error("%s", fault)
                self._repository.fault(model, fault, passed_over=True)
        self._asked.update(models)
        here = [model for model in models if model in found]
        for words in await asyncio.to_thread(stray_configs, [found[model] for model in here]):
            log.warning("%s", words)
        await self._round(lambda model: fetched(found[model]) if model in found else None).load(here)
        if settings.mode == "poll" and settings.poll_s:
            self._poller = asyncio.get_running_loop().create_task(self._poll_until_stopped())

    async def _scan(self) -> Mapping[ModelId, ModelSource]:
        """Return what there is at startup. Raises UsageError unless repositories may be missing."""
        if self._settings.exit_on_error:
            return await asyncio.to_thread(self._repositories.scan)
        found, faults = await asyncio.to_thread(self._repositories.scan_readable)
        for fault in faults:
            log.error("failed to poll the model repositories: %s", fault)
        self._repository.unreadable = tuple(faults)
        return found

    def stop(self) -> None:
        """Begin no more loads."""
        self._stopping.set()

    @property
    def busy(self) -> int:
        """Models that are being loaded or unloaded."""
        return len(self._turns)

    def abandon(self) -> None:
        """The process ends without waiting for what is under way: leave no files behind."""
        self.retirement.abandon()

    async def close(self) -> None:
        """Unload everything, and wait until it is gone."""
        self.stop()
        if self._poller is not None:
            await self._poller
        self.retirement.last = True
        await self.tasks.finish()
        for model in {model for model, _ in self._repository.index()}:
            self._ensembles.forget(model)
            self.retirement.retire(self._repository.unload(model))
        await self.tasks.finish()
        self._versions.shutdown()
        self.retirement.shutdown()

    # verbs

    def asked_by_model(self) -> AbstractContextManager[None]:
        """Within this a model waits for a load or an unload, and keeps a thread that is there for loads if it
        is itself being loaded."""
        return self._versions.asked_by_model()

    def check_explicit(self) -> None:
        """Raises NotReady unless clients may load and unload."""
        if self._settings.mode not in _CLIENTS_DECIDE:
            raise NotReady("explicit model load / unload is not allowed if polling is enabled")
        self._check_running()

    async def load(
        self,
        name: str,
        override: Override | None,
        asker: ModelId | None = None,
        *,
        until_dismissed: bool = True,
    ) -> None:
        """Load a model, again if it would become another; it serves when this returns, and instances that it
        has no longer have ended if `until_dismissed`. `asker` is a model that is being loaded itself, and
        waits for it.

        Raises InvalidRequest that tells why it does not, and NotReady.
        """
        self.check_explicit()
        try:
            check_name(name)
            models = await self._names.to_load(name, override)
        except InvalidRequest as exc:
            log.error("failed to load '%s': %s", name, exc.message)
            raise
        parts, faults = self._round(self._repositories.sight), list[InvalidRequest]()
        for model in models:
            try:
                with self._waiting(asker, model):
                    await self._load(model, partial(self._repositories.sight, model, override), parts)
                self._asked.add(model)
                if until_dismissed:
                    await self.retirement.until_dismissed(model)
            except InvalidRequest as exc:
                faults.append(exc)
        if faults:
            raise (
                faults[0]
                if len(faults) == 1
                else InvalidRequest("\n".join(f.message.rstrip() for f in faults))
            )
        self.demand.forgive(name)

    async def unload(self, name: str, *, unload_dependents: bool, asker: ModelId | None = None) -> None:
        """Stop serving a model; what it has taken is answered afterwards. Raises NotReady, and InvalidRequest
        where `asker`, a model that is being loaded, would wait for itself.

        `unload_dependents`: also what an ensemble is made of, but for what others need or was asked for.
        """
        self.check_explicit()
        for model in await self._names.to_unload(name):
            gone = [model]
            if unload_dependents:
                gone = plan_cascade(model, self._ensembles.requires, self._asked)
            for each in gone:
                with self._waiting(asker, each):
                    async with self._turns.take(each):
                        self._unload(each)

    @contextmanager
    def _waiting(self, asker: ModelId | None, model: ModelId) -> Iterator[None]:
        """Within this `asker`, if there is one, waits for a model. Raises InvalidRequest."""
        if asker is None:
            yield
            return
        with self._waits.begin(asker, [model]) as circle:
            if circle:
                fault = (
                    f"'{asker}' waits for itself while it is being loaded: {circle}; "
                    "load or unload one of them elsewhere than in its initialize"
                )
                log.error("failed to load or unload '%s': %s", model, fault)
                raise InvalidRequest(fault)
            yield

    def _unload(self, model: ModelId) -> None:
        self._asked.discard(model)
        self._ensembles.forget(model)
        self.retirement.retire(self._repository.unload(model))
        self._ensembles.settle([model])

    async def names_on_disk(self) -> Mapping[ModelId, str]:
        """What the repositories hold, where not everything in them is loaded; each with a fault or ""."""
        if self._settings.mode not in _CLIENTS_DECIDE:
            return {}
        try:
            found = await asyncio.to_thread(self._repositories.names)
        except UsageError as exc:
            log.error("%s", exc)
            return {}
        self._repository.unreadable = ()
        self._repository.forget(found)
        self._names.notice(found)
        return found

    # on demand

    def ask_for(self, name: str) -> None:
        """A model that does not serve is asked for: where that loads it, raises NotLoaded, or why the last
        attempt failed."""
        if self._settings.mode != "lazy" or any(
            map(self._repository.recipes, self._repository.all_named(name))
        ):
            return
        if not self._stopping.is_set():
            self.demand.check(name)
        elif self.would_load(name):
            self._check_running()

    def would_load(self, name: str) -> bool:
        """Whether a request for a model that does not serve would load it, as far as is known."""
        return self._settings.mode == "lazy" and self._names.is_there(name) and not self.demand.failed(name)

    async def _load_for_request(self, name: str) -> None:
        model = await self._names.the_one_to_load(name)
        parts = self._round(self._repositories.sight)
        try:
            await self._load(model, partial(self._repositories.sight, model), parts)
        except InvalidRequest as exc:
            if not self._repository.entries(model):
                raise NotFound(f"Request for unknown model: '{name}' is not found") from exc
            if self._room is not None and model in self._room.refused:
                raise Overloaded(exc.message) from exc
            raise NotReady(exc.message) from exc
        self._asked.add(model)
        self._names.notice_one(model)

    def _held(self, model: ModelId) -> bool:
        """Whether a model must not go now."""
        return self._waits.are_for(model) or model in self._turns or self.demand.pinned(model.name)

    # loading

    def _round(self, look: Callable[[ModelId], Sighting | None]) -> Round:
        """Loads that nobody waits for: a failure is in the log, and the state of the model."""

        async def load(model: ModelId, parts: Round) -> None:
            with suppress(InvalidRequest, NotReady):
                await self._load(model, lambda: look(model), parts)

        return Round(load)

    async def _load(self, model: ModelId, look: Callable[[], Sighting | None], parts: Round) -> None:
        async with self._turns.take(model):
            self._check_running()
            await self._loads.load(model, look, parts)

    # polling

    async def _poll_until_stopped(self) -> None:
        while True:
            try:
                await asyncio.wait_for(self._stopping.wait(), self._settings.poll_s)
                return
            except TimeoutError:
                pass
            try:
                await self.poll()
            except TpxError as exc:
                log.error("failed to poll the model repositories: %s", exc)
            except Exception:  # one worker's loop: the next poll may succeed
                log.exception("failed to poll the model repositories")

    async def poll(self) -> None:
        """Look at the repositories, and load and unload what has changed there. Raises UsageError."""
        look = await asyncio.to_thread(self._repositories.look)
        self._repository.unreadable = ()
        found = look.stamps
        changes = plan_poll(found, self._repository.stamps())
        if changes.load:
            await asyncio.sleep(_SETTLE_S)
            again = await asyncio.to_thread(self._repositories.look)
            settled = [model for model in changes.load if again.stamps.get(model) == found[model]]
            sight = self._repositories.sight
            changed = self._round(lambda model: sight(model) if model in settled else None)
            await changed.load(settled)
        for model in changes.unload:
            async with self._turns.take(model):
                self._unload(model)
        for model, places in look.duplicates.items():
            async with self._turns.take(model):
                self._displace(model, places)
        self._repository.forget(found)

    def _displace(self, model: ModelId, reason: str) -> None:
        """Stop serving a model that a second repository has: nothing tells which one is meant."""
        self._ensembles.forget(model)
        self.retirement.retire(self._repository.displace(model, reason))
        self._ensembles.settle([model])

    def _check_running(self) -> None:
        if self._stopping.is_set():
            raise NotReady("Server exiting")
