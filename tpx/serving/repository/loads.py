"""One load: from a look at a model to its serving in the place of what served before.

It is done in threads while the old versions go on serving; the swap is one step on the event loop.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from tpx.errors import ConfigError, InvalidRequest, LoadError, TpxError, UsageError
from tpx.serving.model_id import ModelId
from tpx.serving.repository.agents.custody import Custody
from tpx.serving.repository.decisions import Plan, plan_load
from tpx.serving.repository.ensembles import Ensembles
from tpx.serving.repository.layout import ModelSource, NoVersion
from tpx.serving.repository.loading import Loader, Regroup, Wanted, reason_of
from tpx.serving.repository.names import Names
from tpx.serving.repository.overrides import relative_paths
from tpx.serving.repository.records import KeptConfig, Loaded
from tpx.serving.repository.repository import ModelRepository
from tpx.serving.repository.retirement import Retirement
from tpx.serving.repository.sightings import Sighting
from tpx.serving.repository.stamps import stamps_of
from tpx.serving.repository.turns import Round
from tpx.serving.repository.versions import Versions
from tpx.serving.repository.waits import Waits
from tpx.serving.served import Served

log = logging.getLogger(__name__)


def absent(model: ModelId) -> str:
    """What is told of a model that was not found, or not read."""
    return f"failed to load '{model}', failed to poll from model repository"


class Loads:
    """Loads into a ModelRepository. Those of one model must follow each other."""

    def __init__(
        self,
        repository: ModelRepository,
        loader: Loader,
        names: Names,
        retirement: Retirement,
        ensembles: Ensembles,
        versions: Versions,
        waits: Waits,
    ) -> None:
        self._repository = repository
        self._loader = loader
        self._names = names
        self._retirement = retirement
        self._ensembles = ensembles
        self._versions = versions
        self._waits = waits

    async def load(self, model: ModelId, look: Callable[[], Sighting | None], parts: Round) -> None:
        """Load a model as `look` sees it, and what it is made of as part of `parts`.

        Raises InvalidRequest that tells why it does not serve, as the log and its state do.
        """
        sighting = await self._seen(model, look)
        if sighting is None:
            log.error("%s", absent(model))
            raise InvalidRequest(absent(model))
        custody = Custody(sighting.files)
        self._retirement.hold(custody)
        brings_files = sighting.files is not None and sighting.source.origin is None
        try:
            source = await self._with_kept_config(sighting.source)
            wanted = await self._want(source, custody)
            await self._load_parts(wanted, parts)
            await self._replace(wanted, custody)
            kept = KeptConfig(config=source.override, stamps=wanted.stamps)
            self._repository.keep_config(model, None if source.override is None or brings_files else kept)
            if custody.agents:
                await self._versions.in_thread(custody.complete)
        except InvalidRequest:
            if brings_files:
                self._repository.forget_unused(model)  # nobody can correct what only a request held
                if not self._repository.entries(model):
                    self._ensembles.forget(model)
            if self._repository.namespaces:  # steps that mean it now meant another while it was not known
                self._ensembles.settle([model])
            raise
        finally:
            await self._retirement.release(custody)
        log.info("successfully loaded '%s'", model)

    async def _with_kept_config(self, source: ModelSource) -> ModelSource:
        """Return a source with the configuration of an earlier request, where that still holds."""
        kept = self._repository.kept_config(source.model_id)
        if kept is None or source.override is not None or source.fault:
            return source
        stamps = await self._versions.in_thread(lambda: stamps_of(source))
        return replace(source, override=kept.config) if stamps == kept.stamps else source

    async def _seen(self, model: ModelId, look: Callable[[], Sighting | None]) -> Sighting | None:
        try:
            return await self._versions.in_thread(look)
        except (LoadError, UsageError) as exc:
            log.error("failed to load '%s': %s", model, exc)
            self._repository.fault(model, reason_of(exc), passed_over=True)
            raise InvalidRequest(f"{absent(model)}: {reason_of(exc)}") from exc

    async def _want(self, source: ModelSource, custody: Custody) -> Wanted:
        served = self._repository.custody(source.model_id)
        try:
            return await self._versions.in_thread(lambda: self._loader.want(source, custody, served))
        except Exception as exc:
            model, reason = source.model_id, source.fault or reason_of(exc)
            log.error("failed to load '%s': %s", model, reason)
            # Triton passes over what it cannot poll; a model without a version it knows
            passed_over = isinstance(exc, TpxError) and not isinstance(exc, NoVersion)
            self._repository.fault(model, reason, passed_over=passed_over)
            if isinstance(exc, NoVersion):
                told = relative_paths(exc.message)
                raise InvalidRequest(f"load failed for model '{model}': {told}\n") from exc
            raise InvalidRequest(f"{absent(model)}: {reason}") from exc

    async def _load_parts(self, wanted: Wanted, parts: Round) -> None:
        """First what an ensemble is made of; what of it fails is the ensemble's fault to tell."""
        model, graph = wanted.source.model_id, wanted.graph
        if graph is None:
            return
        there = await self._names.on_disk({step.model.name for step in graph.steps})
        needs = self._ensembles.needs(graph, there)
        with self._waits.begin(model, needs) as circle:
            if circle:
                fault = ConfigError(f"circular dependency between ensembles: {circle}")
                log.error("failed to load '%s': %s", model, fault)
                self._repository.fault(model, reason_of(fault))
                raise InvalidRequest(f"load failed for model '{model}': {fault.message}\n")
            await parts.load(needs)

    async def _replace(self, wanted: Wanted, custody: Custody) -> None:
        """Put what is wanted in the place of what serves: all of its versions or none."""
        model, repository = wanted.source.model_id, self._repository
        recipes = repository.recipes(model)
        serving = {
            version: current.served
            for version in recipes
            if (current := repository.loaded(model, version)) is not None
        }
        plan = plan_load(
            wanted.recipes, recipes, lambda v: self._versions.may_regroup(serving[v], wanted.config)
        )
        repository.begin(model, plan)
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
        failures = {v: end for v, end in ends.items() if isinstance(end, BaseException)}
        if failures:
            self._retirement.discard(loaded.values())
            self._retirement.drop([r for r in regroups.values() if not isinstance(r, BaseException)])
            raise self._failed(wanted, failures, aside=loaded)
        self._retirement.leave_imports_alone()
        self._retirement.retire(repository.succeed(model, plan, loaded, wanted.stamps))
        self._change_in_place(wanted, plan, regroups)
        self._ensembles.remember(wanted)
        self._ensembles.settle([model])

    def _failed(
        self, wanted: Wanted, failures: Mapping[int, BaseException], aside: Iterable[int]
    ) -> InvalidRequest:
        """What becomes of the versions, `aside` being those that did not fail, and what is told of it."""
        model = wanted.source.model_id
        reasons = {version: reason_of(failure) for version, failure in failures.items()}
        others = dict.fromkeys(aside, "unloaded: another version failed to load")
        self._repository.fail(model, reasons | others)
        if wanted.graph is not None:
            log.error("failed to load '%s': %s", model, next(iter(reasons.values())))
            self._ensembles.remember(wanted, unless_serving=True)
            told = relative_paths(f"{next(iter(failures.values()))}\n")
        else:
            log.error("failed to load '%s'", model)
            told = "".join(f"version {v} is at UNAVAILABLE state: {why};\n" for v, why in reasons.items())
        return InvalidRequest(f"load failed for model '{model}': {told}")

    def _change_in_place(
        self, wanted: Wanted, plan: Plan, regroups: Mapping[int, Regroup | BaseException]
    ) -> None:
        """What becomes of versions that serve on."""
        model, repository = wanted.source.model_id, self._repository
        for version, regroup in regroups.items():
            if not isinstance(regroup, BaseException):
                self._retirement.dismiss(regroup.model, regroup.do())
                repository.remake(model, version, wanted.recipes[version])
        for version in plan.keep:
            kept = repository.loaded(model, version)
            if kept is not None:
                kept.served.config.version_policy.CopyFrom(wanted.config.version_policy)
