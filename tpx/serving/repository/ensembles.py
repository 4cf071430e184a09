"""The ensembles that should be served, and which of them can be with the models that are there.

Everything here runs on the event loop and waits for nothing: a model and the ensembles that need it change
in one step.
"""

import logging
from collections.abc import Collection, Sequence

from tpx.errors import ConfigError, LoadError, NotFound, NotReady
from tpx.protocol import messages
from tpx.serving.distributions.latencies import latencies_of
from tpx.serving.ensemble.composition import compose
from tpx.serving.ensemble.graph import Graph, Step
from tpx.serving.ensemble.model import Ensemble
from tpx.serving.model_id import ModelId
from tpx.serving.repository.configuration import validate
from tpx.serving.repository.dependencies import dependents, meant
from tpx.serving.repository.loading import LoadSettings, Wanted, reason_of
from tpx.serving.repository.records import Loaded, State
from tpx.serving.repository.repository import ModelRepository
from tpx.serving.repository.retirement import Retirement
from tpx.serving.served import Served
from tpx.serving.signature import Signature

log = logging.getLogger(__name__)


class Ensembles:
    """Composes ensembles, when they are loaded and whenever a model changes that they are made of."""

    def __init__(self, repository: ModelRepository, retirement: Retirement, settings: LoadSettings) -> None:
        self._repository = repository
        self._retirement = retirement
        self._settings = settings
        self._wanted: dict[ModelId, tuple[Wanted, Graph]] = {}
        self._resolved: dict[tuple[ModelId, str], Served] = {}
        """Who computes steps, as long as nothing that serves has changed."""
        self._resolved_at = -1

    @property
    def requires(self) -> dict[ModelId, frozenset[ModelId]]:
        """The models that each is made of."""
        return {model: self.needs(graph) for model, (_, graph) in self._wanted.items()}

    def needs(self, graph: Graph, on_disk: Collection[ModelId] = ()) -> frozenset[ModelId]:
        """The models that the steps of an ensemble mean, of those that are known or `on_disk`."""
        return frozenset().union(*(self._meant(graph, step, on_disk) for step in graph.steps))

    def _meant(self, graph: Graph, step: Step, on_disk: Collection[ModelId] = ()) -> frozenset[ModelId]:
        """More than one where it is not clear."""
        name = step.model.name
        there = [*self._repository.named(name), *(model for model in on_disk if model.name == name)]
        return meant(step.model, graph.model.namespace, there)

    def remember(self, wanted: Wanted, *, unless_serving: bool = False) -> None:
        """It should be served, from now on whenever it can be; or else what serves goes on."""
        if unless_serving and self._repository.recipes(wanted.source.model_id):
            return
        if wanted.graph is not None:
            self._wanted[wanted.source.model_id] = wanted, wanted.graph
        else:
            self.forget(wanted.source.model_id)

    def forget(self, model: ModelId) -> None:
        """It should not be served any more."""
        self._wanted.pop(model, None)

    def compose_all(
        self, wanted: Wanted, graph: Graph, versions: Sequence[int]
    ) -> dict[int, Served | BaseException]:
        """Each version, or why it cannot be."""
        out: dict[int, Served | BaseException] = {}
        for version in versions:
            try:
                out[version] = self._compose(wanted, graph, version)
            except LoadError as exc:
                out[version] = exc
        return out

    def _compose(self, wanted: Wanted, graph: Graph, version: int) -> Ensemble:
        """A version over the models that serve now. Raises LoadError that tells what does not fit."""
        models = [self._model(graph, step) for step in graph.steps]
        config = messages.ModelConfig()
        config.CopyFrom(wanted.config)
        resolved = graph.over([model.model_id for model in models])
        for step in resolved.steps:
            config.ensemble_scheduling.step[step.index].model_namespace = step.model.namespace
        composition = compose(config, resolved, models)
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
        """These models are others now, or not there any more: so are the ensembles that need them.

        And those that need others of their names, which they might mean no longer.
        """
        requires, names = self.requires, {model.name for model in changed}
        touched = {model for needed in requires.values() for model in needed if model.name in names}
        for model in dependents(touched, requires):
            wanted, graph = self._wanted[model]
            try:
                composed = [self._compose(wanted, graph, version) for version in wanted.recipes]
            except LoadError as exc:
                reason = reason_of(exc)
                log.error("'%s' is not available: %s", model, reason)
                self._retirement.retire(self._repository.suspend(model, reason))
            else:
                self._put(wanted, composed)

    def _put(self, wanted: Wanted, composed: Sequence[Ensemble]) -> None:
        """Serve these, but for those that would be what serves already."""
        model, repository = wanted.source.model_id, self._repository
        new = {}
        for ensemble in composed:
            current = repository.loaded(model, ensemble.version)
            if current is None or not _same(current.served, ensemble):
                new[ensemble.version] = Loaded(served=ensemble, recipe=wanted.recipes[ensemble.version])
            elif isinstance(current.served, Ensemble):
                current.served.recomposed()
        if new:
            self._retirement.retire(repository.restore(model, new))
            log.info("successfully loaded '%s'", model)

    def _resolve(self, model: ModelId, version: str) -> Served:
        """Who computes a step: what serves, or else what still answers those that it was unloaded under."""
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

    def _is_clear(self, graph: Graph, step: Step) -> bool:
        """Whether a step means one model, and that is known."""
        found = self._meant(graph, step)
        return len(found) == 1 and bool(self._repository.entries(min(found)))

    def _model(self, graph: Graph, step: Step) -> Served:
        """Raises ConfigError in Triton's words."""
        found, repository = self._meant(graph, step), self._repository
        needed, entries = min(found), repository.entries(min(found))
        if len(found) > 1 or not entries:
            missing = {step.model.name for step in graph.steps if not self._is_clear(graph, step)}
            raise ConfigError(
                f"ensemble {graph.model} contains models that are not available or ambiguous: "
                + ", ".join(sorted(missing))
            )
        serving = {str(entry.version): entry.loaded.served for entry in entries if entry.loaded is not None}
        depends = f"ensemble '{graph.model}' depends on '{needed}'"
        if serving and step.version:
            if step.version not in serving:
                raise ConfigError(f"{depends} whose required version {step.version} is not loaded.")
            return serving[step.version]
        if serving:
            return repository.serving(needed)
        failed = [entry for entry in entries if entry.state is State.UNAVAILABLE and entry.hinders]
        faults = [entry.reason for entry in failed if entry.version is None]
        if faults:
            raise ConfigError(
                f"{depends} which is not valid. Model '{needed}' failed with error: {faults[0]}"
            )
        why = "".join(f"version {entry.version} is at UNAVAILABLE state: {entry.reason};" for entry in failed)
        raise ConfigError(
            f"{depends} which has no loaded version."
            + (f" Model '{needed}' loading failed with error: {why}" if why else "")
        )


def _same(current: Served, new: Ensemble) -> bool:
    """Whether one would answer as the other: who computes the steps is asked at every step."""
    return (
        isinstance(current, Ensemble)
        and current.config == new.config
        and current.composition == new.composition
        and all(
            spec.labels == new.signature.outputs[name].labels
            for name, spec in current.signature.outputs.items()
        )
    )
