"""One load: from discovering a model to serving it in place of what served before.

Files are read and instances made in load threads while the old versions serve on; the swap is one step on the
event loop.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from tpx.errors import InvalidRequest, LoadError, TpxError, UsageError
from tpx.protocol.messages import ModelConfig
from tpx.serving.host import Host
from tpx.serving.model import ServedModel
from tpx.serving.model_id import ModelId
from tpx.serving.repository.agents.ownership import Ownership
from tpx.serving.repository.discovery import DiscoveredModel, Repositories, size_of, stamps_of
from tpx.serving.repository.ensembles import Ensembles
from tpx.serving.repository.layout import ModelSource, NoVersion
from tpx.serving.repository.loading import Loader, Regroup, WantedModel, reason_of
from tpx.serving.repository.memory import ModelMemory, Outcomes, Permits
from tpx.serving.repository.overrides import relative_paths
from tpx.serving.repository.retirement import Retirement
from tpx.serving.repository.table import KeptConfig, Loaded, ModelRepository, Plan, plan_load
from tpx.serving.served import Served

log = logging.getLogger(__name__)

T = TypeVar("T")
LoadParts = Callable[[ModelId, Collection[ModelId]], Awaitable[None]]
"""Loads the models that an ensemble is made of. Raises ConfigError for a circle."""


def absent(model: ModelId) -> str:
    """Return the message for a model that was not found or could not be read."""
    return f"failed to load '{model}', failed to poll from model repository"


class LoadThreads:
    """The threads of loads. Requests need those of the event loop: stores and agents may take minutes."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="load")
        self.permits = Permits(count)
        self._running = 0

    def shutdown(self) -> None:
        """End the threads; nothing is being loaded any more."""
        self._pool.shutdown()

    async def run(self, work: Callable[[], T]) -> T:
        """Do blocking work once a thread is free."""
        loop = asyncio.get_running_loop()
        async with self.permits:
            self._running += 1
            try:
                if self._running <= self._count:
                    return await loop.run_in_executor(self._pool, work)
                # all threads wait for other loads; an extra one must not stay, as it keeps memory of its own
                extra = ThreadPoolExecutor(1, thread_name_prefix="load")
                try:
                    return await loop.run_in_executor(extra, work)
                finally:
                    extra.shutdown(wait=False)
            finally:
                self._running -= 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Loads:
    """Loads into a ModelRepository. Loads of one model must not overlap."""

    table: ModelRepository
    loader: Loader
    repositories: Repositories
    ensembles: Ensembles
    retirement: Retirement
    memory: ModelMemory
    threads: LoadThreads
    host_of: Callable[[ModelId], Host]
    retries: int
    stopping: asyncio.Event

    async def load(
        self, model: ModelId, discover: Callable[[], DiscoveredModel | None], load_parts: LoadParts
    ) -> None:
        """Load a model as `discover` finds it.

        Raises InvalidRequest that tells why it does not serve, as the log and its state do.
        """
        discovered = await self._discovered(model, discover)
        ownership = Ownership(discovered.files)
        self.retirement.hold(ownership)
        brings_files = discovered.files is not None and discovered.source.origin is None
        try:
            source = await self._with_kept_config(discovered.source)
            wanted = await self._want(source, ownership)
            await self._load_parts(wanted, load_parts)
            await self._replace(wanted, ownership)
            kept = None
            if source.override is not None and not brings_files:
                kept = KeptConfig(config=source.override, stamps=wanted.stamps)
            self.table.keep_config(model, kept)
            if ownership.agents:
                await self.threads.run(ownership.complete)
        except InvalidRequest:
            if brings_files:
                self.table.forget_unused(model)  # the files came with the request: nothing is left to correct
                if not self.table.record(model).entries:
                    self.ensembles.forget(model)
            if self.table.namespaces:  # steps that mean it now meant another while it was not known
                self.ensembles.settle([model])
            raise
        finally:
            await self.retirement.release(ownership)
        log.info("successfully loaded '%s'", model)

    async def _discovered(
        self, model: ModelId, discover: Callable[[], DiscoveredModel | None]
    ) -> DiscoveredModel:
        try:
            discovered = await self.threads.run(discover)
        except (LoadError, UsageError) as exc:
            log.error("failed to load '%s': %s", model, exc)
            self.table.fault(model, reason_of(exc), passed_over=True)
            raise InvalidRequest(f"{absent(model)}: {reason_of(exc)}") from exc
        if discovered is None:
            log.error("%s", absent(model))
            raise InvalidRequest(absent(model))
        return discovered

    async def _with_kept_config(self, source: ModelSource) -> ModelSource:
        """Return a source with the configuration of an earlier request, if the files are still the same."""
        kept = self.table.record(source.model_id).kept
        if kept is None or source.override is not None or source.fault:
            return source
        stamps = await self.threads.run(partial(stamps_of, source))
        return replace(source, override=kept.config) if stamps == kept.stamps else source

    async def _want(self, source: ModelSource, ownership: Ownership) -> WantedModel:
        served = self.table.record(source.model_id).ownership
        try:
            return await self.threads.run(partial(self.loader.want, source, ownership, served))
        except Exception as exc:  # one worker's loop: backends and agents run here, the other models load
            model, reason = source.model_id, source.fault or reason_of(exc)
            log.error("failed to load '%s': %s", model, reason)
            # Triton passes over what it cannot poll; a model without a version it knows
            passed_over = isinstance(exc, TpxError) and not isinstance(exc, NoVersion)
            self.table.fault(model, reason, passed_over=passed_over)
            if isinstance(exc, NoVersion):
                told = relative_paths(exc.message)
                raise InvalidRequest(f"load failed for model '{model}': {told}\n") from exc
            raise InvalidRequest(f"{absent(model)}: {reason}") from exc

    async def _load_parts(self, wanted: WantedModel, load_parts: LoadParts) -> None:
        """Load what an ensemble is made of; a failure of a part is reported when the ensemble is composed."""
        model, graph = wanted.source.model_id, wanted.graph
        if graph is None:
            return
        there = await self.repositories.find_named({step.model.name for step in graph.steps})
        try:
            await load_parts(model, self.ensembles.needs(graph, there))
        except LoadError as fault:
            log.error("failed to load '%s': %s", model, fault)
            self.table.fault(model, reason_of(fault))
            raise InvalidRequest(f"load failed for model '{model}': {fault.message}\n") from fault

    async def _replace(self, wanted: WantedModel, ownership: Ownership) -> None:
        """Put what is wanted in place of what serves: all versions or none."""
        model, table = wanted.source.model_id, self.table
        serving = {version: loaded.served for version, loaded in table.record(model).loaded.items()}
        plan = plan_load(
            wanted.recipes, table.recipes(model), lambda v: self._may_regroup(serving[v], wanted.config)
        )
        table.begin(model, plan)
        outcomes: Outcomes
        if wanted.graph is not None:  # composed of what serves now: no other task may run before the swap
            outcomes = self.ensembles.compose_all(wanted, wanted.graph, plan.load)
        else:
            outcomes = await self._load_versions(wanted, plan.load)
        regroups = await self._regroup(wanted, {v: serving[v] for v in plan.regroup})
        loaded = {}
        for version, outcome in outcomes.items():
            if not isinstance(outcome, BaseException):
                loaded[version] = Loaded(served=outcome, recipe=wanted.recipes[version], ownership=ownership)
                ownership.share()
        ends = {**outcomes, **regroups}
        failures = {v: end for v, end in ends.items() if isinstance(end, BaseException)}
        ready = {v: regroup for v, regroup in regroups.items() if not isinstance(regroup, BaseException)}
        if failures:
            self.retirement.discard(loaded.values(), ready.values())
            raise self._failed(wanted, failures, aside=loaded)
        self.retirement.freeze_imports()
        self.retirement.retire(table.succeed(model, plan, loaded, wanted.stamps))
        self._change_in_place(wanted, plan, ready)
        self.ensembles.remember(wanted)
        self.ensembles.settle([model])

    def _failed(
        self, wanted: WantedModel, failures: Mapping[int, BaseException], aside: Iterable[int]
    ) -> InvalidRequest:
        """Record the failure, `aside` being the versions that did not fail; returns the error to raise."""
        model = wanted.source.model_id
        reasons = {version: reason_of(failure) for version, failure in failures.items()}
        others = dict.fromkeys(aside, "unloaded: another version failed to load")
        self.table.fail(model, reasons | others)
        if wanted.graph is not None:
            log.error("failed to load '%s': %s", model, next(iter(reasons.values())))
            self.ensembles.remember(wanted, unless_serving=True)
            told = relative_paths(f"{next(iter(failures.values()))}\n")
        else:
            log.error("failed to load '%s'", model)
            told = "".join(f"version {v} is at UNAVAILABLE state: {why};\n" for v, why in reasons.items())
        return InvalidRequest(f"load failed for model '{model}': {told}")

    def _change_in_place(self, wanted: WantedModel, plan: Plan, regroups: Mapping[int, Regroup]) -> None:
        """Change the versions that serve on."""
        model = wanted.source.model_id
        for version, regroup in regroups.items():
            self.retirement.dismiss(regroup.model, regroup.do())
            self.table.remake(model, version, wanted.recipes[version])
        serving = self.table.record(model).loaded
        for version in plan.keep:
            if version in serving:
                serving[version].served.config.version_policy.CopyFrom(wanted.config.version_policy)

    # versions, made in load threads; what goes wrong with one is its outcome

    async def _load_versions(self, wanted: WantedModel, versions: Sequence[int]) -> Outcomes:
        """Load versions, under the memory limit if there is one."""
        source, model = wanted.source, wanted.source.model_id

        def load(version: int) -> Served:
            log.info("loading: %s:%d", model, version)
            return self.loader.load(source, version, wanted.config, self.host_of(model))

        return await self.memory.load(
            model,
            {version: wanted.recipes[version] for version in versions},
            partial(size_of, source),
            lambda: self._all(f"load '{model}'", {version: partial(load, version) for version in versions}),
        )

    def _may_regroup(self, served: Served, config: ModelConfig) -> bool:
        """Tell whether a version can change its instances while it serves. Under a memory limit it is loaded
        again, as that is when its memory is measured."""
        return not self.memory.limit_bytes and isinstance(served, ServedModel) and served.may_regroup(config)

    async def _regroup(
        self, wanted: WantedModel, serving: Mapping[int, Served]
    ) -> dict[int, Regroup | BaseException]:
        """Make the instances that versions lack, which serve on as they are."""
        model = wanted.source.model_id

        def regroup(served: ServedModel) -> Regroup:
            log.info("changing the instances of: %s:%d", model, served.version)
            return self.loader.regroup(served, wanted.source, wanted.config)

        models = {version: served for version, served in serving.items() if isinstance(served, ServedModel)}
        return await self._all(
            f"change the instances of '{model}'",
            {version: partial(regroup, served) for version, served in models.items()},
        )

    async def _all(self, what: str, work: Mapping[int, Callable[[], T]]) -> dict[int, T | BaseException]:
        attempts = [self._attempt(f"{what} version {version}", each) for version, each in work.items()]
        outcomes = await asyncio.gather(*attempts, return_exceptions=True)
        return dict(zip(work, outcomes, strict=True))

    async def _attempt(self, what: str, work: Callable[[], T]) -> T:
        """Do work in a thread, again as often as --model-load-retry-count says."""
        retries = self.retries
        while True:
            try:
                return await self.threads.run(work)
            except Exception as exc:  # one worker's loop: whatever a backend raises, the load is tried again
                log.error("failed to %s: %s", what, reason_of(exc))
                if not retries or self.stopping.is_set():
                    raise
                retries -= 1
