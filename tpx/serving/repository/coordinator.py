"""Model control: loads and unloads models at startup, by polling, and at the request of clients.

Operations on one model run one after another, those on different models concurrently. Everything here
runs on the event loop; blocking work runs in load threads (`loads.py`) and retirement threads
(`retirement.py`). In lazy mode a request for a model that is not loaded starts its load and waits for it.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

from tpx.errors import InvalidRequest, NotFound, NotReady, Overloaded, TpxError, UsageError
from tpx.options import nearest
from tpx.protocol.v2 import LoadParameter
from tpx.serving.custom_metrics import CustomMetrics
from tpx.serving.deferred import Tasks
from tpx.serving.heap import tree_resident_bytes
from tpx.serving.model_id import ModelId, check_name
from tpx.serving.repository import discovery
from tpx.serving.repository.ensembles import Ensembles
from tpx.serving.repository.in_use import ModelsInUse
from tpx.serving.repository.layout import ModelArchive, Repository
from tpx.serving.repository.loading import Loader
from tpx.serving.repository.loads import LoadGroup, Loads, absent
from tpx.serving.repository.memory import ModelMemory, Permits
from tpx.serving.repository.on_demand import LoadOnDemand
from tpx.serving.repository.records import VersionState
from tpx.serving.repository.retirement import Retirement
from tpx.serving.repository.table import AmbiguousName, ModelRepository

log = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.02


class Coordinator:
    """Loads and unloads the models of a ModelRepository. `tasks` owns work that no caller awaits."""

    def __init__(
        self,
        repository: ModelRepository,
        loader: Loader,
        places: Sequence[Repository],
        *,
        settle_s: float = 0.25,
        resident: Callable[[], int] = tree_resident_bytes,
    ) -> None:
        """Control the models in `places`. A changed model must stay unchanged for `settle_s` seconds before
        it is loaded: it may still be being written. `resident` returns the memory that the process holds.
        """
        self.repository = repository
        self._options = options = loader.settings.options
        self._settle_s = settle_s
        self.metrics = CustomMetrics()
        """Metrics that models add to the metrics page."""
        self._repositories = discovery.Repositories(
            repositories=places, config_name=options.model_config_name, namespaces=repository.namespaces
        )
        self.tasks = Tasks()
        self.retirement = Retirement(self.tasks, repository.ended)
        self._ensembles = Ensembles(repository, self.retirement, loader.settings)
        self.in_use = ModelsInUse()
        self._memory = ModelMemory(
            options.model_memory_limit,
            resident,
            repository,
            self.retirement,
            self._ensembles,
            self.in_use,
        )
        self.loads = Loads(
            table=repository,
            loader=loader,
            repositories=self._repositories,
            ensembles=self._ensembles,
            retirement=self.retirement,
            memory=self._memory,
            in_use=self.in_use,
            permits=Permits(options.model_load_thread_count),
            host_of=partial(ModelHost, self, asyncio.get_running_loop()),
            retries=options.model_load_retry_count,
        )
        self.on_demand = LoadOnDemand(
            self._load_for_request, self.tasks, self.in_use, options.lazy_load_timeout_secs
        )
        self._poller: asyncio.Task[None] | None = None
        self._archives: dict[str, ModelArchive] = {}
        """Models that clients have loaded from directories outside the repositories."""
        self._registering = asyncio.Lock()
        self._unique_names: set[str] = set()
        """Names that belonged to exactly one model when the repositories were last read."""

    # startup and shutdown

    async def start(self) -> None:
        """Load the startup models. A failed load is recorded as the state of its model. Raises UsageError."""
        options, faults = self._options, list[str]()
        found = await asyncio.to_thread(self._repositories.scan, None if options.exit_on_error else faults)
        for fault in faults:
            log.error("failed to poll the model repositories: %s", fault)
        self.repository.unreadable = tuple(faults)
        if not options.on_request:
            for warning in await asyncio.to_thread(self._repositories.misplaced):
                log.warning("%s", warning)
        models = discovery.plan_start(options, found)
        self._record_unique_names(found)
        for model in models:
            if model not in found:
                meant = nearest(model.name, [each.name for each in found])
                fault = f"{absent(model)}: no repository has it{meant}"
                log.error("%s", fault)
                self.repository.fault(model, fault, skipped=True)
        self._ensembles.requested.update(models)
        present = [model for model in models if model in found]
        for warning in await asyncio.to_thread(
            discovery.misplaced_configs, [found[model] for model in present]
        ):
            log.warning("%s", warning)
        group = LoadGroup(lambda model: discovery.fetch(found[model]) if model in found else None)
        await self.loads.load_all(present, group)
        if options.model_control_mode == "poll" and options.repository_poll_secs:
            self._poller = asyncio.get_running_loop().create_task(self._poll_until_stopped())

    def stop(self) -> None:
        """Start no more loads."""
        self.loads.stopping.set()

    def abandon(self) -> None:
        """Remove temporary files without waiting for loads in progress: the process is exiting."""
        self.retirement.abandon()

    async def close(self) -> None:
        """Unload all models and wait until they are closed."""
        self.stop()
        if self._poller is not None:
            await self._poller
        self.retirement.last = True
        await self.tasks.finish()
        for model in {model for model, _ in self.repository.index()}:
            self._ensembles.forget(model)
            self.retirement.drain(self.repository.unload(model))
        await self.tasks.finish()
        self.retirement.shutdown()

    # verbs

    def check_explicit(self) -> None:
        """Raise NotReady unless clients may load and unload models."""
        if not self._options.on_request:
            raise NotReady("explicit model load / unload is not allowed if polling is enabled")
        self.loads.check_running()

    async def load(
        self,
        name: str,
        override: discovery.Override | None,
        caller: ModelId | None = None,
        *,
        until_removed: bool = True,
    ) -> None:
        """Load a model, or reload it if its files changed. Return when it serves and, if
        `until_removed`, its replaced instances have ended. `caller` is a model that is itself being
        loaded.

        Raises NotReady, and InvalidRequest with the reason for a failed load.
        """
        self.check_explicit()
        try:
            check_name(name)
            models = await self._find_models_to_load(name, override)
        except InvalidRequest as exc:
            log.error("failed to load '%s': %s", name, exc.message)
            raise
        discover, faults = self._repositories.discover, list[InvalidRequest]()
        group = LoadGroup(discover)
        for model in models:
            try:
                with self.in_use.called_by(caller, model):
                    await self.loads.load(model, partial(discover, model, override), group)
                self._ensembles.requested.add(model)
                if until_removed:
                    await self.retirement.until_removed(model)
            except InvalidRequest as exc:
                faults.append(exc)
        if len(faults) == 1:
            raise faults.pop()  # the list would keep the error, and the error this frame with the files
        if faults:
            raise InvalidRequest("\n".join(fault.message.rstrip() for fault in faults))
        self.on_demand.failures.pop(name, None)  # it was loaded in another way

    async def unload(self, name: str, *, unload_dependents: bool, caller: ModelId | None = None) -> None:
        """Stop serving a model; requests in flight are still answered.

        `unload_dependents` also unloads the parts of an ensemble that were not requested by name and
        that no other ensemble needs. Raises NotReady, and InvalidRequest if `caller`, a model being
        loaded, would wait for itself.
        """
        self.check_explicit()
        models = {*self.repository.all_named(name), *await self._repositories.find_named([name])}
        for model in sorted(models):
            gone = [model]
            if unload_dependents:
                gone = self._ensembles.cascade(model)
            for each in gone:
                with self.in_use.called_by(caller, each):
                    async with self.in_use.exclusive(each):
                        self._ensembles.unload(each)

    async def load_archive(self, path: Path, name: str) -> None:
        """Load a model from a directory outside the repositories under this name, with its composing models.

        Raises NotReady, and InvalidRequest with the reason for a failed load.
        """
        self.check_explicit()
        async with self._registering:
            try:
                archive = await asyncio.to_thread(self._repositories.register, path, name)
            except UsageError as exc:
                raise InvalidRequest(exc.message) from exc
        with ExitStack() as undo:
            undo.callback(self._repositories.unregister, archive)
            await self.load(name, None)
            undo.pop_all()
        self._archives[name] = archive

    async def unload_archive(self, name: str) -> None:
        """Unload what `load_archive` has loaded; return when its memory is free. Raises NotReady."""
        archive = self._archives[name]
        await self.unload(name, unload_dependents=True)
        models = [model for each in archive.names() for model in self.repository.all_named(each)]
        while any(  # noqa: ASYNC110 (as retirement, which waits for requests without an event)
            entry.state is VersionState.UNLOADING
            for model in models
            for entry in self.repository.record(model).entries
        ):
            await asyncio.sleep(_LOOK_EVERY_S)
        self._repositories.unregister(archive)
        del self._archives[name]

    async def _find_models_to_load(
        self, name: str, override: discovery.Override | None = None
    ) -> list[ModelId]:
        """Return all models of a name, or the one that files of a request replace. Raises AmbiguousName."""
        matches = sorted(await self._repositories.find_named([name]))
        if override is not None and override.files:
            matches = sorted({*matches, *self.repository.named(name)})
            if len(matches) > 1:
                raise AmbiguousName(name, len(matches))
        return matches or [ModelId(name)]

    async def names_on_disk(self) -> Mapping[ModelId, str]:
        """Return the models in the repositories, each with a fault or ""; none if all are loaded."""
        if not self._options.on_request:
            return {}
        try:
            found = await asyncio.to_thread(self._repositories.names)
        except UsageError as exc:
            log.error("%s", exc)
            return {}
        self.repository.unreadable = ()
        self.repository.forget(found)
        self._record_unique_names(found)
        return found

    def _record_unique_names(self, found: Iterable[ModelId]) -> None:
        counts = Counter(model.name for model in found)
        self._unique_names = {name for name, count in counts.items() if count == 1}

    # load on demand

    def ask_for(self, name: str) -> None:
        """Raise NotLoaded if a request for this model would load it, or the error of its last load."""
        if self._options.model_control_mode != "lazy" or any(
            map(self.repository.fingerprints, self.repository.all_named(name))
        ):
            return
        if not self.loads.stopping.is_set():
            self.on_demand.check(name)
        elif self.would_load(name):
            self.loads.check_running()

    def would_load(self, name: str) -> bool:
        """Return True if a request would load this model, judging by the last read of the repositories."""
        lazy = self._options.model_control_mode == "lazy"
        return lazy and name in self._unique_names and name not in self.on_demand.failures

    async def _load_for_request(self, name: str) -> None:
        model, *others = await self._find_models_to_load(name)
        if others:
            raise AmbiguousName(name, 1 + len(others))
        discover = self._repositories.discover
        try:
            await self.loads.load(model, partial(discover, model), LoadGroup(discover))
        except InvalidRequest as exc:
            if not self.repository.record(model).entries:
                raise NotFound(f"Request for unknown model: '{name}' is not found") from exc
            if model in self._memory.refused:
                raise Overloaded(exc.message) from exc
            raise NotReady(exc.message) from exc
        self._ensembles.requested.add(model)
        self._unique_names.add(name)

    # polling

    async def _poll_until_stopped(self) -> None:
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self.loads.stopping.wait(), self._options.repository_poll_secs)
                return
            try:
                await self.poll()
            except TpxError as exc:
                log.error("failed to poll the model repositories: %s", exc)
            except Exception:  # keep polling: the next poll may succeed
                log.exception("failed to poll the model repositories")

    async def poll(self) -> None:
        """Read the repositories once, then load and unload what changed. Raises UsageError."""
        found, duplicates = await asyncio.to_thread(self._repositories.snapshot)
        self.repository.unreadable = ()
        changed, gone = discovery.plan_poll(found, self.repository.stamps())
        if changed:
            await asyncio.sleep(self._settle_s)
            again, _ = await asyncio.to_thread(self._repositories.snapshot)
            # models that changed again are still being written: the next poll retries them
            settled = [model for model in changed if again.get(model) == found[model]]
            discover = self._repositories.discover
            group = LoadGroup(lambda model: discover(model) if model in settled else None)
            await self.loads.load_all(settled, group)
        for model in gone:
            async with self.in_use.exclusive(model):
                self._ensembles.unload(model)
        for model, places in duplicates.items():
            async with self.in_use.exclusive(model):
                self._ensembles.unload(model, duplicate=places)
        self.repository.forget(found)


class ModelHost:
    """Host (implements the protocol) for one version of a model."""

    def __init__(self, coordinator: Coordinator, loop: asyncio.AbstractEventLoop, model: ModelId) -> None:
        self.metrics = coordinator.metrics
        self.loop = loop
        self.loading = True
        self.model = coordinator.repository.get
        self.is_ready = coordinator.repository.is_ready
        self._coordinator = coordinator
        self._caller = model

    async def load(self, name: str, config: str, files: Mapping[str, bytes]) -> None:
        self._coordinator.check_explicit()
        parameters: dict[str, LoadParameter] = {"config": config} if config else {}
        parameters.update(
            {path if path.startswith("file:") else f"file:{path}": data for path, data in files.items()}
        )
        override = await asyncio.to_thread(discovery.override_of, parameters, name)
        async with self._coordinator.loads.one_more():
            # do not wait for replaced instances to end: one of them may be computing the calling request
            await self._coordinator.load(
                name, override, self._caller if self.loading else None, until_removed=False
            )

    async def unload(self, name: str, *, unload_dependents: bool) -> None:
        self._coordinator.check_explicit()
        async with self._coordinator.loads.one_more():
            await self._coordinator.unload(
                name, unload_dependents=unload_dependents, caller=self._caller if self.loading else None
            )
