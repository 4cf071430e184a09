"""What is known of every model: its versions, their states, and who serves them.

Everything here runs on the event loop and takes no time; whoever loads and unloads tells what became of it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from tpx.errors import Code, InvalidRequest, NotFound, NotReady
from tpx.serving.model_id import ModelId
from tpx.serving.repository.agents.custody import Custody
from tpx.serving.repository.decisions import Plan, Recipe
from tpx.serving.repository.records import (
    UNLOADED,
    KeptConfig,
    Loaded,
    Record,
    State,
    VersionEntry,
    end,
    serving,
)
from tpx.serving.repository.stamps import Stamps
from tpx.serving.served import Served


class AmbiguousName(InvalidRequest):
    """Repositories have several models of this name, and a request names no more than that."""

    def __init__(self, name: str, count: int) -> None:
        super().__init__(
            f"There are {count} identifiers of model '{name}' in global map, model namespace must be "
            "provided to resolve ambiguity."
        )


class ModelRepository:
    """The table of models.

    `generation` changes with what is served: whoever remembers models compares it. Without `namespaces` every
    model is known by its name.
    """

    def __init__(self, *, namespaces: bool = False) -> None:
        self.namespaces = namespaces
        self.generation = 0
        self.unreadable: tuple[str, ...] = ()
        """Why repositories could not be read at startup, as long as no later look has read them."""
        self._models: dict[str, dict[str, Record]] = {}
        """By name, and then by namespace: clients know names."""

    # who serves

    def get(self, name: str, version: str = "") -> Served:
        """The model that serves `name`; an empty `version` is the latest that is ready.

        Raises NotFound, NotReady, AmbiguousName, and InvalidRequest for a version that is no positive number.
        """
        if self.namespaces:
            return self.serving(self.resolve(name), version)
        records = self._models.get(name)
        if records is None:
            raise NotFound(f"Request for unknown model: '{name}' is not found")
        return serving(name, records[""], version)

    def resolve(self, name: str) -> ModelId:
        """The model that a client means by a name. Raises NotFound, AmbiguousName, with Triton's codes."""
        found = self.named(name)
        if len(found) > 1:
            raise AmbiguousName(name, len(found))
        if found:
            return found[0]
        if name in self._models:
            raise NotFound(f"Identifier of model '{name}' is not found in global map")
        raise NotFound(f"Request for unknown model: '{name}' is not found", code=Code.INVALID_ARGUMENT)

    def named(self, name: str) -> list[ModelId]:
        """The models that a name may mean: not one that was unloaded, and one that is being loaded for the
        first time only as long as there is no other."""
        if not self.namespaces:
            return [ModelId(name)]
        records = sorted(self._models.get(name, {}).items())
        known = [namespace for namespace, record in records if record.known]
        return [
            ModelId(name, namespace)
            for namespace in known or [namespace for namespace, record in records if record.coming]
        ]

    def all_named(self, name: str) -> list[ModelId]:
        """All models of a name, whatever has become of them."""
        if not self.namespaces:
            return [ModelId(name)]
        return [ModelId(name, namespace) for namespace in sorted(self._models.get(name, {}))]

    def serving(self, model: ModelId, version: str = "") -> Served:
        """Who serves a model; otherwise as `get`."""
        record = self._record(model)
        if record is None:
            raise NotFound(f"Request for unknown model: '{model}' is not found")
        return serving(model, record, version)

    def is_ready(self, name: str, version: str = "") -> bool:
        """Whether `get` would give a model. Raises InvalidRequest for a version that is no positive
        number."""
        try:
            return self.get(name, version).healthy
        except (NotFound, NotReady, AmbiguousName):
            return False

    def served(self) -> list[Served]:
        """Every version that is ready, by name and version."""
        return [entry.loaded.served for _, entry in self.index() if entry.loaded is not None]

    # what is known

    def all_ready(self) -> bool:
        """Whether the repositories could be read, and every known version is ready, but for those that were
        unloaded on purpose."""
        return not self.unreadable and not any(
            entry.hinders for _, record in self._records() for entry in record.entries
        )

    def failures(self) -> list[str]:
        """The models of which something is not ready, or that could not be told what they are."""
        return [
            str(model)
            for model, record in self._records()
            if any(entry.hinders or entry.passed_over for entry in record.entries)
        ]

    def index(self, on_disk: Mapping[ModelId, str] | None = None) -> list[tuple[ModelId, VersionEntry]]:
        """Every known version, and the models that lie `on_disk`, each with a fault or "".

        By namespace, name and version: where only names are told, the order tells models of one name apart.
        """
        found = [(model, entry) for model, record in self._records() for entry in record.entries]
        for model, fault in (on_disk or {}).items():
            if self._record(model) is None:
                state = State.UNAVAILABLE if fault else None
                found.append((model, VersionEntry(version=None, state=state, reason=fault)))
        return sorted(found, key=lambda item: (item[0].namespace, item[0].name, item[1].version or 0))

    def recipes(self, model: ModelId) -> dict[int, Recipe]:
        """What the versions that serve were made from."""
        record = self._record(model) or Record()
        return {v: e.loaded.recipe for v, e in record.versions.items() if e.loaded is not None}

    def stamps(self) -> dict[ModelId, Stamps | None]:
        """Of each model that is not unloaded, the files that it was last loaded from; None if that
        failed."""
        return {
            model: record.stamps
            for model, record in self._records()
            if record.fault or any(entry.reason != UNLOADED for entry in record.entries)
        }

    # what becomes of a load

    def begin(self, model: ModelId, plan: Plan) -> None:
        """The versions of a plan are loading, but for those that go on serving meanwhile."""
        record = self._make(model)
        record.fault = ""
        for version in plan.load:
            entry = record.versions.setdefault(version, VersionEntry(version=version))
            if entry.loaded is None:
                entry.state, entry.reason = State.LOADING, ""

    def succeed(
        self, model: ModelId, plan: Plan, loaded: Mapping[int, Loaded], stamps: Stamps
    ) -> list[Loaded]:
        """The new versions serve from now on; returns those that do not serve any more."""
        record = self._models[model.name][model.namespace]
        record.stamps, record.known = stamps, True
        ended = []
        for version, new in loaded.items():
            entry = record.versions[version]
            if entry.loaded is not None:
                ended.append(entry.loaded)
            entry.loaded, entry.state, entry.reason = new, State.READY, ""
        for version in plan.unload:
            ended += end(record.versions[version])
        # what failed once and is not wanted any more
        for version in record.versions.keys() - {*plan.load, *plan.keep}:
            if record.versions[version].hinders:
                del record.versions[version]
        self.generation += 1
        return ended

    def keep_config(self, model: ModelId, config: KeptConfig | None) -> None:
        """Keep what a load request brought, or forget what one brought before.

        Triton keeps a configuration until the model is unloaded or its files change, unless the model had
        never served before (core/src/model_repository_manager/model_repository_manager.cc).
        """
        record = self._models[model.name][model.namespace]
        record.kept = config if record.has_served else None
        record.has_served = True

    def kept_config(self, model: ModelId) -> KeptConfig | None:
        """Return the configuration for loads that bring none."""
        return (self._record(model) or Record()).kept

    def remake(self, model: ModelId, version: int, recipe: Recipe) -> None:
        """A version serves on, and is what another recipe makes."""
        entry = self._models[model.name][model.namespace].versions[version]
        if entry.loaded is not None:
            entry.loaded = replace(entry.loaded, recipe=recipe)

    def fail(self, model: ModelId, reasons: Mapping[int, str]) -> None:
        """A load has failed: what served goes on, the other versions are unavailable."""
        record = self._models[model.name][model.namespace]
        self._failed(record)
        for version, reason in reasons.items():
            entry = record.versions[version]
            if entry.loaded is None:
                entry.state, entry.reason = State.UNAVAILABLE, reason

    def fault(self, model: ModelId, reason: str, *, passed_over: bool = False) -> None:
        """A model cannot be told what it is: what served goes on.

        `passed_over`: the server can be ready nevertheless.
        """
        record = self._make(model)
        self._failed(record)
        if not any(entry.loaded is not None for entry in record.versions.values()):
            record.fault, record.passed_over = reason, passed_over

    def suspend(self, model: ModelId, reason: str) -> list[Loaded]:
        """A model cannot serve until others do; returns what did."""
        record = self._models[model.name][model.namespace]
        ended = []
        for entry in record.versions.values():
            ended += end(entry)
            serves_not = f"{UNLOADED}: {reason}"
            if entry.state is State.UNLOADING or not entry.hinders:
                entry.reason = serves_not
            else:
                entry.reason = reason
        self.generation += 1
        return ended

    def restore(self, model: ModelId, loaded: Mapping[int, Loaded]) -> list[Loaded]:
        """Versions serve, instead of those that did or could not; returns those that did."""
        record = self._models[model.name][model.namespace]
        ended = []
        for version, new in loaded.items():
            entry = record.versions.setdefault(version, VersionEntry(version=version))
            if entry.loaded is not None:
                ended.append(entry.loaded)
            entry.loaded, entry.state, entry.reason = new, State.READY, ""
        self.generation += 1
        return ended

    def unload(self, model: ModelId) -> list[Loaded]:
        """Nothing of a model serves any more; returns what did."""
        record = self._record(model)
        if record is None:
            return []
        record.fault, record.stamps, record.known, record.kept = "", None, False, None
        if not record.versions:
            self._drop(model)
        ended = [loaded for entry in record.versions.values() for loaded in end(entry)]
        for entry in record.versions.values():
            if entry.state is not State.UNLOADING:
                entry.state, entry.reason = State.UNAVAILABLE, UNLOADED
        self.generation += 1
        return ended

    def displace(self, model: ModelId, reason: str) -> list[Loaded]:
        """Nothing of a model serves any more, and `reason` is all that is told of it; returns what did.

        A server that has never served the model can be ready, as Triton.
        """
        record = self._record(model)
        if record is not None and record.fault == reason:
            return []
        served_before = record is not None and record.has_served
        ended = self.unload(model)
        if self._record(model) is not None:
            self._drop(model)
        self.fault(model, reason, passed_over=not served_before)
        return ended

    def ended(self, served: Served) -> None:
        """A version that did not serve any more has answered its last request."""
        record = self._record(served.model_id)
        entry = record.versions.get(served.version) if record is not None else None
        # unless it is loaded again, or being so
        if entry is not None and entry.state is State.UNLOADING:
            entry.state, entry.reason = State.UNAVAILABLE, entry.reason or UNLOADED

    def entries(self, model: ModelId) -> list[VersionEntry]:
        """The versions of a model, none where it is unknown."""
        return (self._record(model) or Record()).entries

    def loaded(self, model: ModelId, version: int) -> Loaded | None:
        """What serves a version."""
        record = self._record(model) or Record()
        entry = record.versions.get(version)
        return entry.loaded if entry is not None else None

    def custody(self, model: ModelId) -> Custody | None:
        """In whose custody the versions of a model are that serve, if it is one for all."""
        record = self._record(model) or Record()
        found = {e.loaded.custody for e in record.versions.values() if e.loaded is not None}
        return found.pop() if len(found) == 1 else None

    def forget(self, present: Iterable[ModelId]) -> None:
        """Drop what is neither there nor in any use."""
        for model in {model for model, _ in self._records()} - set(present):
            self.forget_unused(model)

    def forget_unused(self, model: ModelId) -> None:
        """Drop a model none of whose versions serves, comes or goes."""
        record = self._record(model)
        if record is not None and all(entry.state is State.UNAVAILABLE for entry in record.entries):
            self._drop(model)

    # the table

    def _failed(self, record: Record) -> None:
        record.stamps = None
        if self.namespaces and not record.known:  # its name means something else now
            record.known = True
            self.generation += 1

    def _records(self) -> list[tuple[ModelId, Record]]:
        return [
            (ModelId(name, namespace), record)
            for name, records in self._models.items()
            for namespace, record in records.items()
        ]

    def _record(self, model: ModelId) -> Record | None:
        records = self._models.get(model.name)
        return None if records is None else records.get(model.namespace)

    def _make(self, model: ModelId) -> Record:
        return self._models.setdefault(model.name, {}).setdefault(model.namespace, Record())

    def _drop(self, model: ModelId) -> None:
        records = self._models[model.name]
        del records[model.namespace]
        if not records:
            del self._models[model.name]
