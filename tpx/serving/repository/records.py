"""The record of one model: its versions with their states, and what they were built from."""

from collections.abc import Callable, Mapping
from enum import Enum

import msgspec
from msgspec.structs import replace

from tpx.protocol.messages import ModelConfig
from tpx.serving.repository.agents.ownership import Ownership
from tpx.serving.repository.discovery import Stamps
from tpx.serving.served import Served

UNLOADED = "unloaded"


class Fingerprint(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a version is built from: equal fingerprints produce equal versions."""

    config: bytes
    """Serialized configuration, without the version policy: it selects versions but does not change them."""
    groups: bytes
    """Serialized instance groups, which can change while the version serves."""
    directory: str
    shared: str
    files: str


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Versions of a model, ascending: to load, to keep, and to unload after the loads succeed."""

    load: tuple[int, ...]
    keep: tuple[int, ...]
    regroup: tuple[int, ...] = ()
    """Kept versions whose instances change."""
    unload: tuple[int, ...]


def plan_load(
    wanted: Mapping[int, Fingerprint],
    served: Mapping[int, Fingerprint],
    may_regroup: Callable[[int], bool] = lambda version: True,  # noqa: ARG005
) -> Plan:
    """Plan the steps from the served fingerprints to the wanted ones; unchanged versions are kept, and those
    that differ only in instance groups change their instances if `may_regroup` allows it.
    """
    keep = {version for version, fingerprint in wanted.items() if served.get(version) == fingerprint}
    regroup = {
        version
        for version in wanted.keys() & served.keys() - keep
        if replace(served[version], groups=wanted[version].groups) == wanted[version] and may_regroup(version)
    }
    return Plan(
        load=tuple(sorted(wanted.keys() - keep - regroup)),
        keep=tuple(sorted(keep | regroup)),
        regroup=tuple(sorted(regroup)),
        unload=tuple(sorted(served.keys() - wanted.keys())),
    )


class VersionState(Enum):
    """States of a version, named as in the repository index."""

    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """A version that serves, its fingerprint, and the ownership of its load."""

    served: Served
    fingerprint: Fingerprint
    ownership: Ownership | None = None


class VersionEntry(msgspec.Struct, kw_only=True):
    """One version of a model. A fault of the whole model is an entry without a number; a model that was
    never loaded is an entry without a state.
    """

    version: int | None
    state: VersionState | None = VersionState.LOADING
    reason: str = ""
    loaded: Loaded | None = None
    skipped: bool = False
    """True if Triton would skip this model when polling: it does not affect the server's readiness."""

    @property
    def blocks_readiness(self) -> bool:
        """True if strict readiness fails because of the state of this version."""
        if self.skipped:
            return False
        gone = self.state is VersionState.UNLOADING or self.reason.startswith(UNLOADED)
        return self.state is not VersionState.READY and not gone

    def end(self) -> list[Loaded]:
        """Stop serving. Return what served; its requests in flight are still answered."""
        if self.loaded is None:
            return []
        ended = [self.loaded]
        self.loaded, self.state, self.reason = None, VersionState.UNLOADING, ""
        return ended


class KeptConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Configuration from a load request, and the stamps of the files it was loaded with."""

    config: ModelConfig
    stamps: Stamps


class Record(msgspec.Struct):
    """One model: its versions, and what they were loaded from."""

    versions: dict[int, VersionEntry] = msgspec.field(default_factory=dict)
    fault: VersionEntry | None = None
    """Reason why no version is known; only set while none serves."""
    stamps: Stamps | None = None
    """Stamps of the last load; None if it failed."""
    known: bool = False
    """True from the end of the first load until an unload: the name refers to this model."""
    polled: bool = False
    """True once a load got as far as its versions, even if these failed."""
    kept: KeptConfig | None = None
    """Configuration for loads that bring none, valid while the files are unchanged."""

    @property
    def entries(self) -> list[VersionEntry]:
        """Entry of the fault, if there is one, then those of the versions, ascending."""
        fault = [] if self.fault is None else [self.fault]
        return fault + [entry for _, entry in sorted(self.versions.items())]

    @property
    def blocks_readiness(self) -> bool:
        """True if strict readiness fails because of the states of this model."""
        return any(entry.blocks_readiness for entry in self.entries)

    @property
    def loaded(self) -> dict[int, Loaded]:
        """Versions that serve."""
        return {v: entry.loaded for v, entry in self.versions.items() if entry.loaded is not None}

    @property
    def loading(self) -> bool:
        """True if a version is being loaded."""
        return any(entry.state is VersionState.LOADING for entry in self.versions.values())

    @property
    def ownership(self) -> Ownership | None:
        """Ownership shared by all served versions; None if they come from different loads."""
        found = {loaded.ownership for loaded in self.loaded.values()}
        return found.pop() if len(found) == 1 else None

    def put(self, loaded: Mapping[int, Loaded]) -> list[Loaded]:
        """Serve these versions. Return those they replace."""
        ended = []
        for version, new in loaded.items():
            entry = self.versions.setdefault(version, VersionEntry(version=version))
            if entry.loaded is not None:
                ended.append(entry.loaded)
            entry.loaded, entry.state, entry.reason = new, VersionState.READY, ""
        return ended
