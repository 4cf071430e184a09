"""The seam of the launch modes: where a server runs, how it is started there, and what can be seen of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

STOP_TIMEOUT_S = 10.0

Flags = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What a server is started with; a model that wants another has the server started anew."""

    flags: Flags = field(default_factory=dict)
    """Options of the server program by name without dashes; one with several values is repeated."""
    environment: Mapping[str, str] = field(default_factory=dict)
    docker_args: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Where a server listens: host:port of each protocol, and its metrics page, empty where there is none."""

    http: str
    grpc: str
    metrics_url: str = ""

    def of(self, protocol: Literal["http", "grpc"]) -> str:
        return self.http if protocol == "http" else self.grpc


class Running(Protocol):
    """A server that was started, or found."""

    @property
    def pid(self) -> int | None:
        """Of its process, where it is one of this machine."""

    @property
    def addresses(self) -> Addresses: ...

    def log_tail(self) -> tuple[str, ...]: ...

    async def died(self) -> str:
        """Returns when the server has ended, with what there is to say about it; never for a remote one."""
        ...

    async def stop(self, patience_s: float = STOP_TIMEOUT_S) -> None:
        """End it: gently, and by force when that takes longer than `patience_s`."""


class Host(Protocol):
    """Where servers run."""

    restarts: bool
    """Whether a server can be started here again; otherwise there is one, and it is not ours."""

    async def start(self, launch: Launch, timeout_s: float) -> Running:
        """A server that answers and has no models of ours.

        Raises MeasurementError with its last words when it does not come up, UsageError when it never will.
        """
        ...

    def close(self) -> None:
        """Remove what was needed on disk."""
