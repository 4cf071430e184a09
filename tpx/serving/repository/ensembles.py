"""Ensembles: composed from the models that serve, and recomposed or suspended when these change.

Everything here runs on the event loop without awaiting, so that a model and its ensembles change in one
step.
"""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING

import msgspec

from tpx.errors import ConfigError, LoadError, NotFound, NotReady
from tpx.serving.distributions.latencies import latencies_of
from tpx.serving.ensemble.graph import EnsembleStep, Graph
from tpx.serving.model_id import ModelId
from tpx.serving.repository.configuration import validate
from tpx.serving.repository.loading import LoadSettings, WantedModel, locating_faults, reason_of
from tpx.serving.repository.records import Loaded, VersionState
from tpx.serving.repository.retirement import Retirement
from tpx.serving.repository.table import ModelRepository
from tpx.serving.served import Served
from tpx.serving.signature import Signature

if TYPE_CHECKING:
    from tpx.serving.ensemble.model import Ensemble

log = logging.getLogger(__name__)

Requirements = Mapping[ModelId, Collection[ModelId]]
"""Models that each ensemble is composed of; models that are no ensembles may be omitted."""


class LoadOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Models in load order (dependencies first), and those in a dependency cycle with a description of it."""

    models: tuple[ModelId, ...]
    circular: Mapping[ModelId, str]


def meant(written: ModelId, namespace: str, there: Iterable[ModelId]) -> frozenset[ModelId]:
    """Return the model that a step of an ensemble in `namespace` refers to; `there` has that name.

    An explicit namespace wins, then the ensemble's own namespace, then a single candidate. Returns all
    candidates if the reference is ambiguous, and the missing model if there are none.
    """
    own = written if written.namespace else ModelId(written.name, namespace)
    candidates = frozenset(there)
    if written.namespace or own in candidates or not candidates:
        return frozenset([own])
    return candidates


def plan_order(requires: Requirements) -> LoadOrder:
    """Return the load order of the keys of `requires`."""
    done: dict[ModelId, None] = {}
    circles: dict[ModelId, str] = {}
    for root in sorted(requires):
        # depth first, without recursion: nesting may be deeper than the Python stack allows
        path = {} if root in done else {root: iter(sorted(requires[root]))}
        while path:
            model = next(reversed(path))
            needed = next(path[model], None)
            if needed is None:
                del path[model]
                done[model] = None
            elif needed in path:
                around = list(path)[list(path).index(needed) :]
                circles.update(dict.fromkeys(around, " -> ".join(map(str, [*around, needed]))))
            elif needed in requires and needed not in done:
                path[needed] = iter(sorted(requires[needed]))
    return LoadOrder(models=tuple(model for model in done if model not in circles), circular=circles)


def dependents(models: Iterable[ModelId], requires: Requirements) -> list[ModelId]:
    """Return the ensembles that depend on any of these models, directly or not, in load order."""
    changed, found = set(models), []
    for model in plan_order(requires).models:
        if not changed.isdisjoint(requires[model]):
            changed.add(model)
            found.append(model)
    return found


def plan_cascade(model: ModelId, requires: Requirements, requested: Collection[ModelId]) -> list[ModelId]:
    """Return an ensemble and its parts that are neither `requested` by name nor needed by another."""
    left = {key: set(needed) for key, needed in requires.items()}
    gone, waiting = [], [model]
    while waiting:
        current = waiting.pop(0)
        gone.append(current)
        for needed in sorted(left.pop(current, ())):
            kept = needed in requested or any(needed in others for others in left.values())
            if not kept and needed not in gone and needed not in waiting:
                waiting.append(needed)
    return gone


class Ensembles:
    """Composes ensembles when they are loaded, and again whenever a model they depend on changes."""

    def __init__(self, repository: ModelRepository, retirement: Retirement, settings: LoadSettings) -> None:
        self._repository = repository
        self._retirement = retirement
        self._settings = settings
        self.requested: set[ModelId] = set()
        """Models that were requested by name, not only as parts of ensembles."""
        self._wanted: dict[ModelId, tuple[WantedModel, Graph]] = {}
        self._resolved: dict[tuple[ModelId, str], Served] = {}
        """Resolved step models by name and version; valid for one generation of the table."""
        self._resolved_at = -1

    @property
    def requires(self) -> dict[ModelId, frozenset[ModelId]]:
        """Models that each ensemble is composed of."""
        return {model: self.needs(graph) for model, (_, graph) in self._wanted.items()}

    def needs(self, graph: Graph, on_disk: Collection[ModelId] = ()) -> frozenset[ModelId]:
        """Return the models that the steps of an ensemble refer to, among those known or `on_disk`."""
        return frozenset().union(*(self._match_models(graph, step, on_disk) for step in graph.steps))

    def _match_models(
        self, graph: Graph, step: EnsembleStep, on_disk: Collection[ModelId] = ()
    ) -> frozenset[ModelId]:
        """Return the models that a step may refer to; several if it is ambiguous."""
        name = step.model.name
        candidates = [*self._repository.named(name), *(model for model in on_disk if model.name == name)]
        return meant(step.model, graph.model.namespace, candidates)

    def cascade(self, model: ModelId) -> list[ModelId]:
        """Return an ensemble and the parts that would end with it."""
        return plan_cascade(model, self.requires, self.requested)

    def unload(self, model: ModelId, duplicate: str = "") -> None:
        """Stop serving a model; with `duplicate`, because it is unknown which of several is meant."""
        table = self._repository
        ended = table.unload_duplicate(model, duplicate) if duplicate else table.unload(model)
        self.requested.discard(model)
        self.forget(model)
        self._retirement.drain(ended)
        self.settle([model])

    def remember(self, wanted: WantedModel, *, unless_serving: bool = False) -> None:
        """Compose this ensemble whenever its models allow; with `unless_serving`, keep one that serves."""
        model = wanted.source.model_id
        if unless_serving and self._repository.fingerprints(model):
            return
        if wanted.graph is not None:
            self._wanted[model] = wanted, wanted.graph
        else:
            self.forget(model)

    def forget(self, model: ModelId) -> None:
        """Stop composing an ensemble."""
        self._wanted.pop(model, None)

    def compose_all(
        self, wanted: WantedModel, graph: Graph, versions: Sequence[int]
    ) -> dict[int, Served | BaseException]:
        """Return each version composed, or the error if it cannot be."""
        out: dict[int, Served | BaseException] = {}
        for version in versions:
            try:
                out[version] = self._compose(wanted, graph, version)
            except LoadError as exc:
                out[version] = exc
        return out

    def _compose(self, wanted: WantedModel, graph: Graph, version: int) -> "Ensemble":
        """Compose one version from the models that serve now. Raises LoadError naming what does not fit."""
        from tpx.serving.ensemble.composition import compose  # late: few servers have an ensemble
        from tpx.serving.ensemble.model import Ensemble

        models = [self._find_step_model(graph, step) for step in graph.steps]
        config = deepcopy(wanted.config)
        with locating_faults(wanted.source):
            composition = compose(config, graph, models)
        for step in composition.graph.steps:
            config.ensemble_scheduling.step[step.index].model_namespace = step.model.namespace
        config.model_transaction_policy.decoupled = composition.decoupled
        validate(config)
        ensemble = Ensemble(
            config,
            version,
            Signature.of(config, {**composition.labels, **wanted.labels}),
            composition,
            self._resolve,
            self._settings.cache if config.response_cache.enable else None,
        )
        ensemble.statistics.latencies = latencies_of(config, self._settings.latencies)
        return ensemble

    def settle(self, changed: Sequence[ModelId]) -> None:
        """Recompose or suspend the ensembles that depend on these changed or removed models.

        Includes ensembles that depend on other models of the same names, since their steps may now
        refer to these.
        """
        requires, names = self.requires, {model.name for model in changed}
        touched = {model for needed in requires.values() for model in needed if model.name in names}
        for model in dependents(touched, requires):
            wanted, graph = self._wanted[model]
            try:
                composed = [self._compose(wanted, graph, version) for version in wanted.fingerprints]
            except LoadError as exc:
                reason = reason_of(exc)
                log.error("'%s' is not available: %s", model, reason)
                self._retirement.drain(self._repository.suspend(model, reason))
                continue
            new, serving = {}, self._repository.record(model).loaded
            for ensemble in composed:
                version = ensemble.version
                current = serving[version].served if version in serving else None
                if isinstance(current, type(ensemble)) and _is_same_ensemble(current, ensemble):
                    current.recomposed()
                else:
                    new[version] = Loaded(served=ensemble, fingerprint=wanted.fingerprints[version])
            if new:
                self._retirement.drain(self._repository.restore(model, new))
                log.info("successfully loaded '%s'", model)

    def _resolve(self, model: ModelId, version: str) -> Served:
        """Return the model that computes a step: the one that serves, or else a version that still drains."""
        if self._resolved_at != self._repository.generation:
            self._resolved.clear()
            self._resolved_at = self._repository.generation
        known = self._resolved.get((model, version))
        if known is not None:
            return known
        try:
            found = self._repository.serving(model, version)
        except (NotFound, NotReady):
            for served in reversed(self._retirement.draining):
                if served.model_id == model and version in ("", str(served.version)):
                    return served
            raise
        self._resolved[model, version] = found
        return found

    def _find_step_model(self, graph: Graph, step: EnsembleStep) -> Served:
        """Return the served model of a step. Raises ConfigError with Triton's wording."""
        found, repository = self._match_models(graph, step), self._repository
        needed, entries = min(found), repository.record(min(found)).entries
        if len(found) > 1 or not entries:
            missing = {
                each.model.name
                for each in graph.steps
                if len(known := self._match_models(graph, each)) > 1
                or not repository.record(min(known)).entries
            }
            raise ConfigError(
                f"ensemble {graph.model} contains models that are not available or ambiguous: "
                f"{', '.join(sorted(missing))}"
            )
        serving = {str(entry.version): entry.loaded.served for entry in entries if entry.loaded is not None}
        depends = f"ensemble '{graph.model}' depends on '{needed}'"
        if serving and step.version:
            if step.version not in serving:
                raise ConfigError(f"{depends} whose required version {step.version} is not loaded.")
            return serving[step.version]
        if serving:
            return repository.serving(needed)
        failed = [
            entry for entry in entries if entry.state is VersionState.UNAVAILABLE and entry.blocks_readiness
        ]
        for fault in failed:
            if fault.version is None:
                raise ConfigError(
                    f"{depends} which is not valid. Model '{needed}' failed with error: {fault.reason}"
                )
        why = "".join(f"version {entry.version} is at UNAVAILABLE state: {entry.reason};" for entry in failed)
        raise ConfigError(
            f"{depends} which has no loaded version."
            + (f" Model '{needed}' loading failed with error: {why}" if why else "")
        )


def _is_same_ensemble(current: "Ensemble", new: "Ensemble") -> bool:
    """Return True if both produce the same responses. Models are not compared: steps resolve them."""
    return (
        current.config == new.config
        and current.composition == new.composition
        and all(
            spec.labels == new.signature.outputs[name].labels
            for name, spec in current.signature.outputs.items()
        )
    )
