"""What is known of every model: its versions, their states, and who serves them.

Everything here runs on the event loop and takes no time; whoever loads and unloads tells what became of it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from tpx.errors import InvalidRequest, NotFound, NotReady
from tpx.serving.model_id import ModelId
from tpx.serving.repository.agents.custody import Custody
from tpx.serving.repository.decisions import Plan, Recipe
from tpx.serving.repository.stamps import Stamps
from tpx.serving.served import Served

UNLOADED = "unloaded"


class State(Enum):
    """States of a version, as the repository index names them."""

    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A version that serves, what it was made from, and what came into being with it."""

    served: Served
    recipe: Recipe
    custody: Custody | None = None


@dataclass(slots=True, kw_only=True)
class VersionEntry:
    """One version of a model. A model of which none could be named has one without a number, and one that
    was never loaded one without a state."""

    version: int | None
    state: State | None = State.LOADING
    reason: str = ""
    loaded: Loaded | None = None

    @property
    def hinders(self) -> bool:
        """Whether a server that is ready only with all its models is not, because of this one."""
        if self.loaded is not None and not self.loaded.served.healthy:
            return True
        gone = self.state is State.UNLOADING or self.reason.startswith(UNLOADED)
        return self.state is not State.READY and not gone


@dataclass(slots=True)
class _Record:
    versions: dict[int, VersionEntry] = field(default_factory=dict)
    fault: str = ""
    """Why no version could be named, while none is served."""
    stamps: Stamps | None = None
    """Of the files that the last load was made from; None if it failed."""

    @property
    def entries(self) -> list[VersionEntry]:
        found = [entry for _, entry in sorted(self.versions.items())]
        if self.fault:
            found.insert(0, VersionEntry(version=None, state=State.UNAVAILABLE, reason=self.fault))
        return found


class ModelRepository:
    """The table of models.

    `generation` changes with what is served: whoever remembers models compares it.
    """

    def __init__(self) -> None:
        self.generation = 0
        self._models: dict[str, dict[str, _Record]] = {}
        """By name, and then by namespace: clients know names."""

    # who serves

    def get(self, name: str, version: str = "") -> Served:
        """The model that serves `name`; an empty `version` is the latest that is ready.

        Raises NotFound, NotReady, and InvalidRequest for a version that is no positive number.
        """
        records = self._models.get(name)
        if records is None:
            raise NotFound(f"Request for unknown model: '{name}' is not found")
        return _serving(name, records[""], version)

    def serving(self, model: ModelId, version: str = "") -> Served:
        """Who serves a model; otherwise as `get`."""
        record = self._record(model)
        if record is None:
            raise NotFound(f"Request for unknown model: '{model}' is not found")
        return _serving(model, record, version)

    def is_ready(self, name: str, version: str = "") -> bool:
        """Whether `get` would give a model. Raises InvalidRequest for a version that is no positive
        number."""
        try:
            return self.get(name, version).healthy
        except (NotFound, NotReady):
            return False

    def served(self) -> list[Served]:
        """Every version that is ready, by name and version."""
        return [entry.loaded.served for _, entry in self.index() if entry.loaded is not None]

    # what is known

    def all_ready(self) -> bool:
        """Whether every known version is ready, but for those that were unloaded on purpose."""
        return not any(entry.hinders for _, record in self._records() for entry in record.entries)

    def failures(self) -> list[str]:
        """The models of which something is not ready."""
        return [str(model) for model, record in self._records() if any(e.hinders for e in record.entries)]

    def index(self, on_disk: Mapping[ModelId, str] | None = None) -> list[tuple[ModelId, VersionEntry]]:
        """Every known version, in order, and the models that lie `on_disk`, each with a fault or ""."""
        found = [(model, entry) for model, record in self._records() for entry in record.entries]
        for model, fault in (on_disk or {}).items():
            if self._record(model) is None:
                state = State.UNAVAILABLE if fault else None
                found.append((model, VersionEntry(version=None, state=state, reason=fault)))
        return sorted(found, key=lambda item: (item[0], item[1].version or 0))

    def recipes(self, model: ModelId) -> dict[int, Recipe]:
        """What the versions that serve were made from."""
        record = self._record(model) or _Record()
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
        record.stamps = stamps
        ended = []
        for version, new in loaded.items():
            entry = record.versions[version]
            if entry.loaded is not None:
                ended.append(entry.loaded)
            entry.loaded, entry.state, entry.reason = new, State.READY, ""
        for version in plan.unload:
            ended += _end(record.versions[version])
        # what failed once and is not wanted any more
        for version in record.versions.keys() - {*plan.load, *plan.keep}:
            if record.versions[version].hinders:
                del record.versions[version]
        self.generation += 1
        return ended

    def remake(self, model: ModelId, version: int, recipe: Recipe) -> None:
        """A version serves on, and is what another recipe makes."""
        entry = self._models[model.name][model.namespace].versions[version]
        if entry.loaded is not None:
            entry.loaded = replace(entry.loaded, recipe=recipe)

    def fail(self, model: ModelId, reasons: Mapping[int, str]) -> None:
        """A load has failed: what served goes on, the other versions are unavailable."""
        record = self._models[model.name][model.namespace]
        record.stamps = None
        for version, reason in reasons.items():
            entry = record.versions[version]
            if entry.loaded is None:
                entry.state, entry.reason = State.UNAVAILABLE, reason

    def fault(self, model: ModelId, reason: str) -> None:
        """A model cannot be told what it is: what served goes on."""
        record = self._make(model)
        record.stamps = None
        if not any(entry.loaded is not None for entry in record.versions.values()):
            record.fault = reason

    def suspend(self, model: ModelId, reason: str) -> list[Loaded]:
        """A model cannot serve until others do; returns what did."""
        record = self._models[model.name][model.namespace]
        ended = []
        for entry in record.versions.values():
            ended += _end(entry)
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
        record.fault, record.stamps = "", None
        if not record.versions:
            self._drop(model)
        ended = [loaded for entry in record.versions.values() for loaded in _end(entry)]
        for entry in record.versions.values():
            if entry.state is not State.UNLOADING:
                entry.state, entry.reason = State.UNAVAILABLE, UNLOADED
        self.generation += 1
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
        return (self._record(model) or _Record()).entries

    def loaded(self, model: ModelId, version: int) -> Loaded | None:
        """What serves a version."""
        record = self._record(model) or _Record()
        entry = record.versions.get(version)
        return entry.loaded if entry is not None else None

    def custody(self, model: ModelId) -> Custody | None:
        """In whose custody the versions of a model are that serve, if it is one for all."""
        record = self._record(model) or _Record()
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

    def _records(self) -> list[tuple[ModelId, _Record]]:
        return [
            (ModelId(name, namespace), record)
            for name, records in self._models.items()
            for namespace, record in records.items()
        ]

    def _record(self, model: ModelId) -> _Record | None:
        records = self._models.get(model.name)
        return None if records is None else records.get(model.namespace)

    def _make(self, model: ModelId) -> _Record:
        return self._models.setdefault(model.name, {}).setdefault(model.namespace, _Record())

    def _drop(self, model: ModelId) -> None:
        records = self._models[model.name]
        del records[model.namespace]
        if not records:
            del self._models[model.name]


def _serving(model: ModelId | str, record: _Record, version: str) -> Served:
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


def _end(entry: VersionEntry) -> list[Loaded]:
    """What served, which now only answers what it has taken."""
    if entry.loaded is None:
        return []
    ended = [entry.loaded]
    entry.loaded, entry.state, entry.reason = None, State.UNLOADING, ""
    return ended


def parse_version(text: str) -> int:
    """A version from the text of a request. Raises InvalidRequest."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 19 or int(digits) >= 2**63:
        # the details are those of the function that Triton reads it with
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
