"""What an inspection finds."""

from dataclasses import dataclass
from enum import Enum


class State(Enum):
    """Whether something can be used here."""

    USABLE = "usable"
    MISSING = "missing"
    """Its package is not installed."""
    UNUSABLE = "unusable"
    """It is installed, but lacks something on this machine."""
    BROKEN = "broken"
    """It is installed, but fails, crashes or hangs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A backend or a feature, and whether it can be used."""

    name: str
    state: State
    what: str = ""
    """Of a feature: what it is for."""
    origin: str = ""
    """Of a backend: who brings it, if it is not tpx."""
    version: str = ""
    providers: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    why: str = ""
    """It cannot be used."""
    remedy: str = ""
    """The command that would enable it, or tell more of what is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What tpx runs on."""

    tpx: str
    python: str
    executable: str
    system: str
    processor: str
    cores: int
    """That this process may use."""
    memory_bytes: int
    memory_available_bytes: int
    gpus: tuple[str, ...] = ()
    gpu_note: str = ""
    """Why none is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """Everything that was found."""

    machine: Machine
    backends: tuple[Finding, ...]
    features: tuple[Finding, ...]

    def finding(self, name: str) -> Finding | None:
        """A backend or a feature."""
        return next((each for each in (*self.backends, *self.features) if each.name == name), None)
