"""What is known of one model: its versions, and their states."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from tpx.errors import InvalidRequest, NotFound, NotReady
from tpx.serving.model_id import ModelId
from tpx.serving.repository.agents.custody import Custody
from tpx.serving.repository.decisions import Recipe
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
    passed_over: bool = False
    """The model's directory is no model as far as readiness goes, as in Triton."""

    @property
    def hinders(self) -> bool:
        """Whether a server that is ready only with all its models is not, because of this one."""
        if self.passed_over:
            return False
        if self.loaded is not None and not self.loaded.served.healthy:
            return True
        gone = self.state is State.UNLOADING or self.reason.startswith(UNLOADED)
        return self.state is not State.READY and not gone


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptConfig:
    """The configuration that a load request brought, and the files that it was loaded with."""

    config: Any
    stamps: Stamps


@dataclass(slots=True)
class Record:
    """One model: its versions, and what they were loaded from."""

    versions: dict[int, VersionEntry] = field(default_factory=dict)
    fault: str = ""
    """Why no version could be named, while none is served."""
    passed_over: bool = False
    """The fault does not keep the server from being ready."""
    stamps: Stamps | None = None
    """Of the files that the last load was made from; None if it failed."""
    known: bool = False
    """Its first load has ended, and it was not unloaded since: its name stands for it."""
    has_served: bool = False
    kept: KeptConfig | None = None
    """For loads that bring no configuration, as long as the files stay the same."""

    @property
    def entries(self) -> list[VersionEntry]:
        found = [entry for _, entry in sorted(self.versions.items())]
        if self.fault:
            fault = VersionEntry(
                version=None, state=State.UNAVAILABLE, reason=self.fault, passed_over=self.passed_over
            )
            found.insert(0, fault)
        return found

    @property
    def coming(self) -> bool:
        return any(entry.state is State.LOADING for entry in self.versions.values())


def serving(model: ModelId | str, record: Record, version: str) -> Served:
    """The version that serves a model; an empty one is the latest that is ready.

    Raises NotFound, NotReady, and InvalidRequest for a version that is no positive number.
    """
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


def end(entry: VersionEntry) -> list[Loaded]:
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
