"""Loading and unloading while the server serves: at startup, by polling, or as clients ask.

A load is done in threads while the old versions go on serving; the swap is one step on the event loop. Loads
of the same model follow each other, those of different ones run at the same time.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TypeVar

from tpx.errors import (
    ConfigError,
    InvalidRequest,
    LoadError,
    NotFound,
    NotReady,
    Overloaded,
    TpxError,
    UsageError,
)
from tpx.serving.repository import layout
from tpx.serving.repository.agents.custody import Custody
from tpx.serving.repository.decisions import Plan, plan_load, plan_poll, plan_start
from tpx.serving.repository.demand import Demand
from tpx.serving.repository.dependencies import plan_cascade, plan_order
from tpx.serving.repository.ensembles import Ensembles
from tpx.serving.repository.layout import ModelSource, NoVersion
from tpx.serving.repository.loading import Loader, Regroup, Wanted, reason_of
from tpx.serving.repository.overrides import Override
from tpx.serving.repository.repository import Loaded, ModelRepository
from tpx.serving.repository.retirement import Retirement
from tpx.serving.repository.room import Room, Tenancy
from tpx.serving.repository.settings import ControlSettings
from tpx.serving.repository.sightings import Sighting, check_name, fetched, sight
from tpx.serving.repository.stamps import Stamps, stamps_of
from tpx.serving.repository.tasks import Tasks
from tpx.serving.repository.turns import Round, Turns
from tpx.serving.repository.versions import Versions
from tpx.serving.served import Served

log = logging.getLogger(__name__)

T = TypeVar("T")

_SETTLE_S = 0.25
"""A model whose files have changed again after this time is being written: the next poll looks again."""
_CLIENTS_DECIDE = ("explicit", "lazy")
_ABSENT = "failed to load '{}', failed to poll from model repository"


class ModelControl:
    """Changes what a ModelRepository holds. `tasks` owns the work of those who ask for it."""

    def __init__(self, repository: ModelRepository, loader: Loader, settings: ControlSettings) -> None:
        self._repository = repository
        self._loader = loader
        self._settings = settings
        self.tasks = Tasks()
        self.retirement = Retirement(self.tasks, repository.ended)
        self._ensembles = Ensembles(repository, self.retirement, loader.settings)
        self._composing: dict[str, frozenset[str]] = {}
        """Ensembles that are being loaded, and the models that they wait for."""
        self._asked: set[str] = set()
        """Models that were to be loaded by their own names, not only as parts of ensembles."""
        self._turns = Turns()
        self._stopping = asyncio.Event()
        self._poller: asyncio.Task[None] | None = None
        self._there: set[str] = set()
        """Names of models that were in the repositories when somebody looked."""
        self.demand = Demand(self._load_for_request, self.tasks, settings.lazy_wait_s)
        tenancy = Tenancy(
            repository=repository, retirement=self.retirement, held=self._held, evict=self._unload
        )
        limit_bytes = settings.memory_limit_bytes
        self._room = Room(limit_bytes, tenancy, settings.resident) if limit_bytes else None
        self._versions = Versions(loader, settings, self._room, self._stopping)

    # startup and shutdown

    async def start(self) -> None:
        """Load what the mode asks for; a failure is kept as the state of its model. Raises UsageError."""
        settings = self._settings
        found = {source.name: source for source in await _in_thread(self._scan)}
        names = plan_start(settings.mode, settings.startup, found)
        self._there = set(found)
        for name in names:
            if name not in found:
                self._repository.fault(name, _ABSENT.format(name))
        self._asked.update(names)
        here = [name for name in names if name in found]
        await self._round(lambda name: fetched(found[name]) if name in found else None).load(here)
        if settings.mode == "poll":
            self._poller = asyncio.get_running_loop().create_task(self._poll_until_stopped())

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
        for name in {name for name, _ in self._repository.index()}:
            self._ensembles.forget(name)
            self.retirement.retire(self._repository.unload(name))
        await self.tasks.finish()
        self._versions.shutdown()

    # verbs

    def check_explicit(self) -> None:
        """Raises NotReady unless clients may load and unload."""
        if self._settings.mode not in _CLIENTS_DECIDE:
            raise NotReady("explicit model load / unload is not allowed if polling is enabled")
        self._check_running()

    async def load(self, name: str, override: Override | None) -> None:
        """Load a model, again if it would become another; it serves when this returns.

        Raises InvalidRequest that tells why it does not, and NotReady.
        """
        self.check_explicit()
        check_name(name)
        parts = self._round(lambda part: self._sight(part, None))
        await self._load(name, lambda: self._sight(name, override), parts)
        self._asked.add(name)
        self.demand.forgive(name)

    async def unload(self, name: str, *, unload_dependents: bool) -> None:
        """Stop serving a model; what it has taken is answered afterwards. Raises NotReady.

        `unload_dependents`: also what an ensemble is made of, but for what others need or was asked for.
        """
        self.check_explicit()
        gone = plan_cascade(name, self._ensembles.requires, self._asked) if unload_dependents else [name]
        for each in gone:
            async with self._turns.take(each):
                self._unload(each)

    def _unload(self, name: str) -> None:
        self._asked.discard(name)
        self._ensembles.forget(name)
        self.retirement.retire(self._repository.unload(name))
        self._ensembles.settle([name])

    async def names_on_disk(self) -> Mapping[str, str]:
        """What the repositories hold, where not everything in them is loaded; each with a fault or ""."""
        if self._settings.mode not in _CLIENTS_DECIDE:
            return {}
        try:
            found = await _in_thread(lambda: layout.names(self._settings.paths))
        except UsageError as exc:
            log.error("%s", exc)
            return {}
        self._repository.forget(found)
        self._there = set(found)
        return found

    # on demand

    def ask_for(self, name: str) -> None:
        """A model that does not serve is asked for: where that loads it, raises NotLoaded, or why the last
        attempt failed."""
        if (
            self._settings.mode == "lazy"
            and not self._stopping.is_set()
            and not self._repository.recipes(name)
        ):
            self.demand.check(name)

    def would_load(self, name: str) -> bool:
        """Whether a request for a model that does not serve would load it, as far as is known."""
        return self._settings.mode == "lazy" and name in self._there and not self.demand.failed(name)

    async def _load_for_request(self, name: str) -> None:
        parts = self._round(lambda part: self._sight(part, None))
        try:
            await self._load(name, lambda: self._sight(name, None), parts)
        except InvalidRequest as exc:
            if not self._repository.entries(name):
                raise NotFound(f"Request for unknown model: '{name}' is not found") from exc
            if self._room is not None and name in self._room.refused:
                raise Overloaded(exc.message) from exc
            raise NotReady(exc.message) from exc
        self._asked.add(name)
        self._there.add(name)

    def _held(self, name: str) -> bool:
        """Whether a model must not go now."""
        parts = any(name in models for models in self._composing.values())
        return parts or name in self._turns or self.demand.pinned(name)

    # looking at the disk, in a thread

    def _scan(self) -> list[ModelSource]:
        return layout.scan(self._settings.paths, config_name=self._settings.config_name)

    def _sight(self, name: str, override: Override | None) -> Sighting | None:
        return sight(self._settings.paths, self._settings.config_name, name, override)

    # loading

    def _round(self, look: Callable[[str], Sighting | None]) -> Round:
        """Loads that nobody waits for: a failure is in the log, and the state of the model."""

        async def load(name: str, parts: Round) -> None:
            with suppress(InvalidRequest, NotReady):
                await self._load(name, lambda: look(name), parts)

        return Round(load)

    async def _load(self, name: str, look: Callable[[], Sighting | None], parts: Round) -> None:
        async with self._turns.take(name):
            self._check_running()
            sighting = await self._seen(name, look)
            if sighting is None:
                raise InvalidRequest(_ABSENT.format(name))
            custody = Custody(sighting.files)
            self.retirement.hold(custody)
            try:
                wanted = await self._want(sighting.source, custody)
                await self._load_parts(wanted, parts)
                await self._replace(wanted, custody)
                if custody.agents:
                    await _in_thread(custody.complete)
            except InvalidRequest:
                if sighting.files is not None and sighting.source.origin is None:
                    self._repository.forget_unused(name)  # nobody can correct what only a request held
                    if not self._repository.entries(name):
                        self._ensembles.forget(name)
                raise
            finally:
                await self.retirement.release(custody)
        log.info("successfully loaded '%s'", name)

    async def _seen(self, name: str, look: Callable[[], Sighting | None]) -> Sighting | None:
        try:
            return await _in_thread(look)
        except (LoadError, UsageError) as exc:
            log.error("failed to load '%s': %s", name, exc)
            self._repository.fault(name, reason_of(exc))
            raise InvalidRequest(f"{_ABSENT.format(name)}: {reason_of(exc)}") from exc

    async def _want(self, source: ModelSource, custody: Custody) -> Wanted:
        served = self._repository.custody(source.name)
        try:
            return await _in_thread(lambda: self._loader.want(source, custody, served))
        except Exception as exc:
            reason = source.fault or reason_of(exc)
            log.error("failed to load '%s': %s", source.name, reason)
            self._repository.fault(source.name, reason)
            if isinstance(exc, NoVersion):
                raise InvalidRequest(f"load failed for model '{source.name}': {exc.message}\n") from exc
            raise InvalidRequest(f"{_ABSENT.format(source.name)}: {reason}") from exc

    async def _load_parts(self, wanted: Wanted, parts: Round) -> None:
        """First what an ensemble is made of; what of it fails is the ensemble's fault to tell."""
        name, graph = wanted.source.name, wanted.graph
        if graph is None:
            return
        self._composing[name] = graph.models
        try:
            circle = plan_order(self._composing).circular.get(name)
            if circle is not None:
                fault = ConfigError(f"circular dependency between ensembles: {circle}")
                log.error("failed to load '%s': %s", name, fault)
                self._repository.fault(name, reason_of(fault))
                raise InvalidRequest(f"load failed for model '{name}': {fault.message}\n")
            await parts.load(graph.models)
        finally:
            del self._composing[name]

    async def _replace(self, wanted: Wanted, custody: Custody) -> None:
        """Put what is wanted in the place of what serves: all of its versions or none."""
        name, repository = wanted.source.name, self._repository
        recipes = repository.recipes(name)
        serving = {version: repository.get(name, str(version)) for version in recipes}
        plan = plan_load(
            wanted.recipes, recipes, lambda v: self._versions.may_regroup(serving[v], wanted.config)
        )
        repository.begin(name, plan)
        outcomes: dict[int, Served | BaseException]
        if wanted.graph is not None:  # over what serves at this moment: nothing may come in between
            outcomes = self._ensembles.compose_all(wanted, wanted.graph, plan.load)
        else:
            outcomes = await self._versions.load(wanted, plan.load)
        regroups = await self._versions.regroup(wanted, {v: serving[v] for v in plan.regroup})
        loaded = {}
        for version, outcome in outcomes.items():
            if not isinstance(outcome, BaseException):
                loaded[version] = Loaded(served=outcome, recipe=wanted.recipes[version], custody=custody)
                custody.share()
        ends = {**outcomes, **regroups}
        reasons = {v: reason_of(o) for v, o in ends.items() if isinstance(o, BaseException)}
        if reasons:
            self.retirement.discard(loaded.values())
            self.retirement.drop([r for r in regroups.values() if not isinstance(r, BaseException)])
            aside = dict.fromkeys(loaded, "unloaded: another version failed to load")
            repository.fail(name, reasons | aside)
            log.error("failed to load '%s'", name)
            if wanted.graph is not None:
                self._ensembles.remember(wanted, unless_serving=True)
                raise InvalidRequest(f"load failed for model '{name}': {outcomes[plan.load[0]]}\n")
            clauses = "".join(
                f"version {v} is at UNAVAILABLE state: {reason};\n" for v, reason in reasons.items()
            )
            raise InvalidRequest(f"load failed for model '{name}': {clauses}")
        self.retirement.leave_imports_alone()
        self.retirement.retire(repository.succeed(name, plan, loaded, wanted.stamps))
        self._change_in_place(wanted, plan, regroups)
        self._ensembles.remember(wanted)
        self._ensembles.settle([name])

    def _change_in_place(
        self, wanted: Wanted, plan: Plan, regroups: Mapping[int, Regroup | BaseException]
    ) -> None:
        """What becomes of versions that serve on."""
        name, repository = wanted.source.name, self._repository
        for version, regroup in regroups.items():
            if not isinstance(regroup, BaseException):
                self.retirement.dismiss(regroup.do())
                repository.remake(name, version, wanted.recipes[version])
        for version in plan.keep:
            kept = repository.loaded(name, version)
            if kept is not None:
                kept.served.config.version_policy.CopyFrom(wanted.config.version_policy)

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
        found = await _in_thread(self._stamped)
        changes = plan_poll(found, self._repository.stamps())
        if changes.load:
            await asyncio.sleep(_SETTLE_S)
            again = await _in_thread(self._stamped)
            settled = [name for name in changes.load if again.get(name) == found[name]]
            changed = self._round(lambda name: self._sight(name, None) if name in settled else None)
            await changed.load(settled)
        for name in changes.unload:
            async with self._turns.take(name):
                self._unload(name)
        self._repository.forget(found)

    def _stamped(self) -> dict[str, Stamps | None]:
        """What is there, by name; without stamps where a model cannot be told what it is."""
        return {source.name: None if source.fault else stamps_of(source) for source in self._scan()}

    def _check_running(self) -> None:
        if self._stopping.is_set():
            raise NotReady("Server exiting")


async def _in_thread(work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(None, work)
