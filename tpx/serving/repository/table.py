"""The table of models: which versions serve, and in which state the others are.

Everything here runs on the event loop and never blocks; loads and unloads report their results to it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec.structs import replace

from tpx.errors import Code, InvalidRequest, NotFound, NotReady
from tpx.options import nearest_for_client
from tpx.serving.model_id import ModelId
from tpx.serving.repository.discovery import Stamps
from tpx.serving.repository.records import (
    UNLOADED,
    Fingerprint,
    KeptConfig,
    Loaded,
    Plan,
    Record,
    VersionEntry,
    VersionState,
)
from tpx.serving.served import Served


class AmbiguousName(InvalidRequest):
    """Raised for a name that several namespaces have, when a request cannot give the namespace."""

    def __init__(self, name: str, count: int) -> None:
        super().__init__(
            f"There are {count} identifiers of model '{name}' in global map, model namespace must be "
            "provided to resolve ambiguity."
        )


class ModelRepository:
    """The table of models; without `namespaces` a model is identified by its name alone.

    `generation` changes whenever a different version serves, so that caches of models can detect
    staleness.
    """

    def __init__(self, *, namespaces: bool = False) -> None:
        self.namespaces = namespaces
        self.generation = 0
        self.on_change: Callable[[], None] = lambda: None
        """Called when `generation` changes."""
        self.unreadable: tuple[str, ...] = ()
        """Errors of repositories that could not be read at startup; cleared by the next successful read."""
        self._models: dict[str, dict[str, Record]] = {}
        """Records by name, then by namespace: clients only know names."""
        self._served: list[Served] | None = None
        """Result of `served`, until a different version serves."""
        self._in_processes: list[Served] = []
        """Served versions that compute in processes."""
        self._blocked: bool | None = None
        """True if some model blocks readiness by its state, until the next change of a state."""

    # what serves

    def get(self, name: str, version: str = "") -> Served:
        """Return the served model; an empty `version` selects the latest ready one.

        Raises NotFound, NotReady, AmbiguousName, and InvalidRequest if the version is not a positive
        number.
        """
        if self.namespaces:
            return self.serving(self.resolve(name), version)
        records = self._models.get(name)
        if records is None:
            near = nearest_for_client(name, self._models)
            raise NotFound(f"Request for unknown model: '{name}' is not found{near}")
        return _find_serving(name, records[""], version)

    def resolve(self, name: str) -> ModelId:
        """Return the model that a client's name refers to. Raises NotFound, AmbiguousName."""
        found = self.named(name)
        if len(found) > 1:
            raise AmbiguousName(name, len(found))
        if found:
            return found[0]
        if name in self._models:
            raise NotFound(f"Identifier of model '{name}' is not found in global map")
        near = nearest_for_client(name, self._models)
        raise NotFound(f"Request for unknown model: '{name}' is not found{near}", code=Code.INVALID_ARGUMENT)

    def named(self, name: str) -> list[ModelId]:
        """Return the models a name may refer to. Unloaded models are excluded; a model in its first
        load counts only if there is no other.
        """
        if not self.namespaces:
            return [ModelId(name)]
        records = sorted(self._find_records(name).items())
        known = [namespace for namespace, record in records if record.known]
        return [
            ModelId(name, namespace)
            for namespace in known or [namespace for namespace, record in records if record.loading]
        ]

    def all_named(self, name: str) -> list[ModelId]:
        """Return all models of a name, in any state."""
        if not self.namespaces:
            return [ModelId(name)]
        return [ModelId(name, namespace) for namespace in sorted(self._find_records(name))]

    def serving(self, model: ModelId, version: str = "") -> Served:
        """Return the served model of a ModelId; otherwise like `get`."""
        record = self._find_records(model.name).get(model.namespace)
        if record is None:
            raise NotFound(f"Request for unknown model: '{model}' is not found")
        return _find_serving(model, record, version)

    def is_ready(self, name: str, version: str = "") -> bool:
        """Return True if a model serves and is healthy. Raises InvalidRequest like `get`."""
        try:
            return self.get(name, version).healthy
        except (NotFound, NotReady, AmbiguousName):
            return False

    def served(self) -> list[Served]:
        """Return every ready version, ordered by namespace, name and version."""
        return list(self._list_served())

    def versions(self, model: ModelId) -> list[Served]:
        """Return the ready versions of one model, ascending."""
        return [loaded.served for _, loaded in sorted(self.record(model).loaded.items())]

    def in_processes(self) -> Sequence[Served]:
        """Return the ready versions that compute in processes: only these become unhealthy while they
        serve, or have readiness hooks.
        """
        self._list_served()
        return self._in_processes

    # what is known

    def all_ready(self) -> bool:
        """Return True if all repositories were readable and every version that was not unloaded is ready.

        Load balancers ask often, so models are examined only after a change.
        """
        if self._blocked is None:
            self._blocked = any(record.blocks_readiness for _, record in self._list_records())
        return not (self.unreadable or self._blocked) and all(one.healthy for one in self.in_processes())

    def failures(self) -> list[str]:
        """Return the models that are not ready or could not be read, sorted: they load side by side, in
        any order.
        """
        return sorted(
            str(model)
            for model, record in self._list_records()
            if any(entry.blocks_readiness or entry.skipped for entry in record.entries)
            or not all(loaded.served.healthy for loaded in record.loaded.values())
        )

    def index(self, on_disk: Mapping[ModelId, str] | None = None) -> list[tuple[ModelId, VersionEntry]]:
        """Return every known version, and the models `on_disk`, each with a fault or "".

        Ordered by namespace, name and version: clients that only see names can tell models apart by
        their order.
        """
        found = [(model, entry) for model, record in self._list_records() for entry in record.entries]
        for model, fault in (on_disk or {}).items():
            if model.namespace not in self._find_records(model.name):
                state = VersionState.UNAVAILABLE if fault else None
                found.append((model, VersionEntry(version=None, state=state, reason=fault)))
        return sorted(found, key=lambda item: (item[0].namespace, item[0].name, item[1].version or 0))

    def record(self, model: ModelId) -> Record:
        """Return the record of a model, or an empty one."""
        return self._find_records(model.name).get(model.namespace) or Record()

    def fingerprints(self, model: ModelId) -> dict[int, Fingerprint]:
        """Return the fingerprints of the versions that serve."""
        return {version: loaded.fingerprint for version, loaded in self.record(model).loaded.items()}

    def stamps(self) -> dict[ModelId, Stamps | None]:
        """Return the stamps of each model's last load, None if it failed. Unloaded models are excluded."""
        return {
            model: record.stamps
            for model, record in self._list_records()
            if any(entry.reason != UNLOADED for entry in record.entries)
        }

    # results of loads

    def begin(self, model: ModelId, plan: Plan) -> None:
        """Mark the versions of a plan as loading, except those that serve meanwhile."""
        record = self._get_or_add_record(model)
        record.fault = self._blocked = None
        for version in plan.load:
            entry = record.versions.setdefault(version, VersionEntry(version=version))
            if entry.loaded is None:
                entry.state, entry.reason = VersionState.LOADING, ""

    def succeed(
        self, model: ModelId, plan: Plan, loaded: Mapping[int, Loaded], stamps: Stamps
    ) -> list[Loaded]:
        """Serve the new versions. Return those that no longer serve."""
        record = self._models[model.name][model.namespace]
        record.stamps, record.known = stamps, True
        ended = record.put(loaded)
        for version in plan.unload:
            ended += record.versions[version].end()
        # drop versions that failed before and are no longer wanted
        for version in record.versions.keys() - {*plan.load, *plan.keep}:
            if record.versions[version].blocks_readiness:
                del record.versions[version]
        self._record_change()
        return ended

    def keep_config(self, model: ModelId, config: KeptConfig | None) -> None:
        """Keep the configuration of a load request, or drop the one kept before.

        Triton keeps a configuration until the model is unloaded or its files change, unless this was the
        first load that it could poll (core/src/model_repository_manager/model_repository_manager.cc).
        """
        record = self._models[model.name][model.namespace]
        record.kept = config if record.polled else None
        record.polled = True

    def remake(self, model: ModelId, version: int, fingerprint: Fingerprint) -> None:
        """Assign a new fingerprint to a version that keeps serving because it already matches it."""
        entry = self._models[model.name][model.namespace].versions[version]
        if entry.loaded is not None:
            entry.loaded = replace(entry.loaded, fingerprint=fingerprint)

    def fail(self, model: ModelId, reasons: Mapping[int, str]) -> None:
        """Mark the versions of a failed load as unavailable, except those that keep serving."""
        record = self._models[model.name][model.namespace]
        record.polled = True
        self._mark_failed(record)
        for version, reason in reasons.items():
            entry = record.versions[version]
            if entry.loaded is None:
                entry.state, entry.reason = VersionState.UNAVAILABLE, reason

    def fault(self, model: ModelId, reason: str, *, skipped: bool = False) -> None:
        """Record why a model could not be read; versions that serve are not affected.

        `skipped` means that the fault does not affect the server's readiness.
        """
        record = self._get_or_add_record(model)
        self._mark_failed(record)
        if not record.loaded:
            state = VersionState.UNAVAILABLE
            record.fault = VersionEntry(version=None, state=state, reason=reason, skipped=skipped)

    def suspend(self, model: ModelId, reason: str) -> list[Loaded]:
        """Stop serving an ensemble until the models it depends on serve again. Return what served."""
        record = self._models[model.name][model.namespace]
        ended = []
        for entry in record.versions.values():
            ended += entry.end()
            gone = entry.state is VersionState.UNLOADING or not entry.blocks_readiness
            entry.reason = f"{UNLOADED}: {reason}" if gone else reason
        self._record_change()
        return ended

    def restore(self, model: ModelId, loaded: Mapping[int, Loaded]) -> list[Loaded]:
        """Serve these versions in place of others. Return those they replace."""
        self._record_change()
        return self._models[model.name][model.namespace].put(loaded)

    def unload(self, model: ModelId) -> list[Loaded]:
        """Stop serving a model. Return what served."""
        record = self._find_records(model.name).get(model.namespace)
        if record is None:
            return []
        record.fault = record.stamps = record.kept = None
        record.known = False
        if not record.versions:
            self._drop_record(model)
        ended = [loaded for entry in record.versions.values() for loaded in entry.end()]
        for entry in record.versions.values():
            if entry.state is not VersionState.UNLOADING:
                entry.state, entry.reason = VersionState.UNAVAILABLE, UNLOADED
        self._record_change()
        return ended

    def unload_duplicate(self, model: ModelId, reason: str) -> list[Loaded]:
        """Stop serving a model and keep only `reason`. Return what served.

        The server may still be ready, as in Triton: a model is in two repositories while it is moved.
        """
        record = self.record(model)
        if record.fault is not None and record.fault.reason == reason:
            return []
        ended = self.unload(model)
        if model.namespace in self._find_records(model.name):
            self._drop_record(model)
        self.fault(model, reason, skipped=True)
        return ended

    def ended(self, served: Served) -> None:
        """Record that a version which no longer serves has answered its last request."""
        entry = self.record(served.model_id).versions.get(served.version)
        # unless it was loaded again or is loading
        if entry is not None and entry.state is VersionState.UNLOADING:
            entry.state, entry.reason = VersionState.UNAVAILABLE, entry.reason or UNLOADED
            self._blocked = None

    def forget(self, present: Iterable[ModelId]) -> None:
        """Drop models that are neither present nor in use."""
        for model in {model for model, _ in self._list_records()} - set(present):
            self.forget_unused(model)

    def forget_unused(self, model: ModelId) -> None:
        """Drop a model if all its versions are unavailable."""
        record = self._find_records(model.name).get(model.namespace)
        if record is not None and all(entry.state is VersionState.UNAVAILABLE for entry in record.entries):
            self._drop_record(model)

    # the table

    def _record_change(self) -> None:
        """Record that a different version serves; what no longer serves is not kept alive."""
        self.generation += 1
        self._served, self._in_processes, self._blocked = None, [], None
        self.on_change()

    def _list_served(self) -> Sequence[Served]:
        if self._served is None:
            self._served = [entry.loaded.served for _, entry in self.index() if entry.loaded is not None]
            self._in_processes = [served for served in self._served if served.in_processes]
        return self._served

    def _mark_failed(self, record: Record) -> None:
        record.stamps = self._blocked = None
        if self.namespaces and not record.known:  # the name may now refer to another model
            record.known = True
            self._record_change()

    def _list_records(self) -> list[tuple[ModelId, Record]]:
        return [
            (ModelId(name, namespace), record)
            for name, records in self._models.items()
            for namespace, record in records.items()
        ]

    def _find_records(self, name: str) -> dict[str, Record]:
        return self._models.get(name, {})

    def _get_or_add_record(self, model: ModelId) -> Record:
        return self._models.setdefault(model.name, {}).setdefault(model.namespace, Record())

    def _drop_record(self, model: ModelId) -> None:
        self._blocked = None
        records = self._models[model.name]
        del records[model.namespace]
        if not records:
            del self._models[model.name]


def _find_serving(model: ModelId | str, record: Record, version: str) -> Served:
    """Return the version that serves a model; an empty `version` selects the latest ready one.

    Raises NotFound, NotReady, and InvalidRequest if the version is not a positive number.
    """
    if not record.versions and record.fault is not None and record.fault.skipped:
        raise NotFound(f"Request for unknown model: '{model}' is not found")
    if not version:
        ready = [number for number, entry in record.versions.items() if entry.loaded is not None]
        if not ready:
            raise NotFound(f"Request for unknown model: '{model}' has no available versions")
        number = max(ready)
    else:
        number = parse_version(version)
    entry = record.versions.get(number)
    if entry is None:
        raise NotFound(f"Request for unknown model: '{model}' version {number} is not found")
    if entry.loaded is None:
        raise NotReady(f"Request for unknown model: '{model}' version {number} is not at ready state")
    return entry.loaded.served


def parse_version(text: str) -> int:
    """Parse the version in a request. Raises InvalidRequest."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 19 or int(digits) >= 2**63:
        # Triton parses the version with std::stol and includes that name in the message
        raise InvalidRequest(
            f"failed to get model version from specified version string '{text}' (details: stol), "
            "version should be an integral value > 0"
        )
    number = int(text)
    if number <= 0:
        raise InvalidRequest(
            f"invalid model version specified '{text}' , version should be an integral value > 0"
        )
    return number
