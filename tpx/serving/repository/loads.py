"""One load of a model, from discovery to replacing the versions that serve.

Loads and unloads of one model run one after another, those of different models concurrently. Load
threads read files and create instances while the old versions keep serving; the swap is one step on the
event loop.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from tpx.errors import ConfigError, InvalidRequest, LoadError, NotReady, TpxError, UsageError
from tpx.serving.ensemble.graph import Graph
from tpx.serving.host import Host
from tpx.serving.model import ServedModel
from tpx.serving.model_id import ModelId
from tpx.serving.repository.agents.ownership import Ownership
from tpx.serving.repository.discovery import Repositories, relative_paths, size_of, stamps_of
from tpx.serving.repository.ensembles import Ensembles
from tpx.serving.repository.in_use import ModelsInUse
from tpx.serving.repository.layout import ModelSource, NoVersion
from tpx.serving.repository.loading import Loader, Regroup, WantedModel, reason_of
from tpx.serving.repository.memory import ModelMemory, Outcomes, Permits
from tpx.serving.repository.records import KeptConfig, Loaded, plan_load
from tpx.serving.repository.retirement import Retirement
from tpx.serving.repository.table import ModelRepository
from tpx.serving.served import Served

log = logging.getLogger(__name__)

T = TypeVar("T")


def absent(model: ModelId) -> str:
    """Return the message for a model that was not found or could not be read."""
    return f"failed to load '{model}', failed to poll from model repository"


async def in_load_thread(permits: Permits, work: Callable[[], T]) -> T:
    """Run blocking work in a new thread once a permit is available."""
    async with permits:
        # not the loop's default executor: requests need it, and stores and agents may block for minutes
        thread = ThreadPoolExecutor(1, thread_name_prefix="load")
        try:
            return await asyncio.get_running_loop().run_in_executor(thread, work)
        finally:
            thread.shutdown(wait=False)


class LoadGroup(msgspec.Struct, frozen=True):
    """Loads that belong together: each model loads once, using `discover`, parts before their ensemble."""

    discover: Callable[[ModelId], ModelSource | None]
    tasks: dict[ModelId, asyncio.Task[None]] = msgspec.field(default_factory=dict)


class Loads(msgspec.Struct, frozen=True, kw_only=True):
    """Loads models into a ModelRepository."""

    table: ModelRepository
    loader: Loader
    repositories: Repositories
    ensembles: Ensembles
    retirement: Retirement
    memory: ModelMemory
    in_use: ModelsInUse
    permits: Permits
    """Permits for load threads."""
    host_of: Callable[[ModelId], Host]
    retries: int
    stopping: asyncio.Event = msgspec.field(default_factory=asyncio.Event)

    def check_running(self) -> None:
        """Raise NotReady if the server is stopping and starts no more loads."""
        if self.stopping.is_set():
            raise NotReady("Server exiting")

    @asynccontextmanager
    async def one_more(self) -> AsyncIterator[None]:
        """Allow one more load while the calling model, which may hold a permit for its own load, waits."""
        async with self.permits.one_more(), self.memory.permits.one_more():
            yield

    # loads

    async def load_all(self, models: Collection[ModelId], group: LoadGroup) -> None:
        """Start the loads of these models that the group has not started yet, and wait for all of them.

        Failures are logged and recorded as model states, not raised.
        """

        async def load(model: ModelId) -> None:
            with suppress(InvalidRequest, NotReady):
                await self.load(model, partial(group.discover, model), group)

        for model in models:
            if model not in group.tasks:
                group.tasks[model] = asyncio.get_running_loop().create_task(load(model))
        await asyncio.gather(*(group.tasks[model] for model in models))

    async def load(
        self, model: ModelId, discover: Callable[[], ModelSource | None], group: LoadGroup
    ) -> None:
        """Load the model that `discover` returns, and the parts of an ensemble with `group`.

        Raises NotReady, and InvalidRequest with the reason for a failed load, which is also logged and
        recorded.
        """
        async with self.in_use.exclusive(model):
            self.check_running()
            try:
                source = await in_load_thread(self.permits, discover)
            except (LoadError, UsageError) as exc:
                reason = reason_of(exc)
                raise self._record_refusal(model, reason, f"{absent(model)}: {reason}", skipped=True) from exc
            if source is None:
                log.error("%s", absent(model))
                raise InvalidRequest(absent(model))
            ownership = Ownership(source.directory if source.private else None)
            self.retirement.hold(ownership)
            try:
                await self._load_model(source, ownership, group)
            finally:
                await self.retirement.release(ownership)
            log.info("successfully loaded '%s'", model)

    async def _load_model(self, source: ModelSource, ownership: Ownership, group: LoadGroup) -> None:
        model, table, in_request = source.model_id, self.table, source.private and source.origin is None
        try:
            kept = table.record(model).kept
            if kept is not None and source.override is None and not source.fault:
                stamps = await in_load_thread(self.permits, partial(stamps_of, source))
                # the configuration of an earlier load request holds while the files are unchanged
                source = replace(source, override=kept.config) if stamps == kept.stamps else source
            wanted = await self._read_wanted_model(source, ownership)
            if wanted.graph is not None:
                await self._load_parts(wanted, wanted.graph, group)
            await self._replace_versions(wanted, ownership)
            kept = None
            if source.override is not None and not in_request:
                kept = KeptConfig(config=source.override, stamps=wanted.stamps)
            table.keep_config(model, kept)
            if ownership.agents:
                await in_load_thread(self.permits, ownership.complete)
        except InvalidRequest:
            if in_request:  # its files came with the request, so there is nothing to retry from
                table.forget_unused(model)
                if not table.record(model).entries:
                    self.ensembles.forget(model)
            if table.namespaces:  # steps that now refer to it may have referred to another namespace before
                self.ensembles.settle([model])
            raise

    def _record_refusal(
        self, model: ModelId, reason: str, message: str, *, skipped: bool = False
    ) -> InvalidRequest:
        """Record why a model cannot be loaded, and return the error to raise."""
        log.error("failed to load '%s': %s", model, reason)
        self.table.fault(model, reason, skipped=skipped)
        return InvalidRequest(message)

    async def _read_wanted_model(self, source: ModelSource, ownership: Ownership) -> WantedModel:
        model = source.model_id
        served = self.table.record(model).ownership
        try:
            return await in_load_thread(self.permits, partial(self.loader.want, source, ownership, served))
        except NoVersion as exc:
            message = f"load failed for model '{model}': {relative_paths(exc.message)}\n"
            raise self._record_refusal(model, source.fault or reason_of(exc), message) from exc
        except Exception as exc:  # backends and agents run here: any failure fails this model only
            reason = source.fault or reason_of(exc)
            # Triton skips a model that it cannot poll and may still be ready
            skipped = isinstance(exc, TpxError)
            raise self._record_refusal(model, reason, f"{absent(model)}: {reason}", skipped=skipped) from exc

    async def _load_parts(self, wanted: WantedModel, graph: Graph, group: LoadGroup) -> None:
        """Load the parts of an ensemble. A failed part is reported when the ensemble is composed."""
        model = wanted.source.model_id
        matches = await self.repositories.find_named({step.model.name for step in graph.steps})
        parts = self.ensembles.needs(graph, matches)
        with self.in_use.depending(model, parts) as circle:
            if circle:
                fault = ConfigError(f"circular dependency between ensembles: {circle}")
                message = f"load failed for model '{model}': {fault.message}\n"
                raise self._record_refusal(model, reason_of(fault), message)
            await self.load_all(parts, group)

    async def _replace_versions(self, wanted: WantedModel, ownership: Ownership) -> None:
        """Replace the serving versions with the wanted ones, all or none."""
        model, table = wanted.source.model_id, self.table
        serving = {
            version: loaded.served
            for version, loaded in table.record(model).loaded.items()
            if isinstance(loaded.served, ServedModel)
        }

        def may_regroup(version: int) -> bool:
            # with a memory limit versions are reloaded, because memory is only measured during a load
            return (
                not self.memory.limit_bytes
                and version in serving
                and serving[version].may_regroup(wanted.config)
            )

        plan = plan_load(wanted.fingerprints, table.fingerprints(model), may_regroup)
        table.begin(model, plan)
        outcomes: Outcomes
        if wanted.graph is not None:  # composed from what serves now: do not await before the swap
            outcomes = self.ensembles.compose_all(wanted, wanted.graph, plan.load)
        else:
            outcomes = await self._load_versions(wanted, plan.load)
        regroups = await self._regroup_instances(
            wanted, {version: serving[version] for version in plan.regroup}
        )
        loaded = {}
        for version, outcome in outcomes.items():
            if not isinstance(outcome, BaseException):
                loaded[version] = Loaded(
                    served=outcome, fingerprint=wanted.fingerprints[version], ownership=ownership
                )
                ownership.share()
        ends = {**outcomes, **regroups}
        failures = {v: end for v, end in ends.items() if isinstance(end, BaseException)}
        ready = {v: regroup for v, regroup in regroups.items() if not isinstance(regroup, BaseException)}
        # all or nothing: the old versions keep serving
        if failures:
            self.retirement.close_unused(loaded.values(), ready.values())
            raise self._record_failure(wanted, failures, aside=loaded)
        self.retirement.freeze_imports()
        self.retirement.drain(table.succeed(model, plan, loaded, wanted.stamps))
        for version, regroup in ready.items():
            self.retirement.close_removed(regroup.model, regroup.do())
            table.remake(model, version, wanted.fingerprints[version])
        kept = table.record(model).loaded
        for version in kept.keys() & plan.keep:
            kept[version].served.config.version_policy.CopyFrom(wanted.config.version_policy)
        self.ensembles.remember(wanted)
        self.ensembles.settle([model])

    def _record_failure(
        self, wanted: WantedModel, failures: Mapping[int, BaseException], aside: Iterable[int]
    ) -> InvalidRequest:
        """Record a failed load and return the error to raise; `aside` are the versions that did not fail."""
        model = wanted.source.model_id
        reasons = {version: reason_of(failure) for version, failure in failures.items()}
        others = dict.fromkeys(aside, "unloaded: another version failed to load")
        self.table.fail(model, reasons | others)
        if wanted.graph is not None:
            log.error("failed to load '%s': %s", model, next(iter(reasons.values())))
            self.ensembles.remember(wanted, unless_serving=True)
            message = relative_paths(f"{next(iter(failures.values()))}\n")
        else:
            log.error("failed to load '%s'", model)
            message = "".join(f"version {v} is at UNAVAILABLE state: {why};\n" for v, why in reasons.items())
        return InvalidRequest(f"load failed for model '{model}': {message}")

    # work in load threads; an exception is the outcome of its version

    async def _load_versions(self, wanted: WantedModel, versions: Sequence[int]) -> Outcomes:
        """Load versions, within the memory limit if there is one."""
        source, model = wanted.source, wanted.source.model_id

        def load(version: int) -> Served:
            log.info("loading: %s:%d", model, version)
            return self.loader.load(source, version, wanted.config, self.host_of(model))

        return await self.memory.load(
            model,
            {version: wanted.fingerprints[version] for version in versions},
            partial(size_of, source),
            lambda: self._attempt_all(
                f"load '{model}'", {version: partial(load, version) for version in versions}
            ),
        )

    async def _regroup_instances(
        self, wanted: WantedModel, serving: Mapping[int, ServedModel]
    ) -> dict[int, Regroup | BaseException]:
        """Create the missing instances of versions that otherwise keep serving unchanged."""
        model = wanted.source.model_id

        def regroup(served: ServedModel) -> Regroup:
            log.info("changing the instances of: %s:%d", model, served.version)
            return self.loader.regroup(served, wanted.source, wanted.config)

        work = {version: partial(regroup, served) for version, served in serving.items()}
        return await self._attempt_all(f"change the instances of '{model}'", work)

    async def _attempt_all(
        self, what: str, work: Mapping[int, Callable[[], T]]
    ) -> dict[int, T | BaseException]:
        attempts = [self._attempt(f"{what} version {version}", each) for version, each in work.items()]
        outcomes = await asyncio.gather(*attempts, return_exceptions=True)
        return dict(zip(work, outcomes, strict=True))

    async def _attempt(self, what: str, work: Callable[[], T]) -> T:
        """Run work in a load thread, with up to --model-load-retry-count retries."""
        retries = self.retries
        while True:
            try:
                return await in_load_thread(self.permits, work)
            except Exception as exc:  # backends may raise anything: retry the load
                log.error("failed to %s: %s", what, reason_of(exc))
                if not retries or self.stopping.is_set():
                    raise
                retries -= 1
