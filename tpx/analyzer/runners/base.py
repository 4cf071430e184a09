"""The interfaces of a trial: a server process, and the runner that loads a configuration into it and
measures it.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from tpx.analyzer.results.measurement import Configuration, LoadPoint, Measurement
from tpx.analyzer.values import Flags

STOP_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Command line and environment of a server; a model that needs a different one makes the server
    restart.
    """

    flags: Flags = field(default_factory=dict)
    """Options of the server program by name without dashes; several values repeat the option."""
    environment: Mapping[str, str] = field(default_factory=dict)
    docker_args: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Addresses of a server: host:port for each protocol, and the URL of its metrics, empty if it has
    none.
    """

    http: str
    grpc: str
    metrics_url: str = ""

    def of(self, protocol: Literal["http", "grpc"]) -> str:
        """Return the address for a protocol."""
        return self.http if protocol == "http" else self.grpc


class ServerProcess(Protocol):
    """A server that this run started, or one that already runs."""

    ours: bool
    """True if this run started the server and may stop and replace it."""

    @property
    def pid(self) -> int | None:
        """Process id of the server; None if it does not run on this machine."""

    @property
    def addresses(self) -> Addresses: ...

    def log_tail(self) -> tuple[str, ...]: ...

    async def died(self) -> str:
        """Wait until the server has ended and describe how; never return for a remote one."""
        ...

    async def stop(self, patience_s: float = STOP_TIMEOUT_S) -> None:
        """Terminate the server, and kill it if that takes longer than `patience_s`."""


StartServer = Callable[[Launch, float], Awaitable[ServerProcess]]
"""Starts a server without models of this run, and waits up to this many seconds until it responds.

Raises MeasurementError with the end of its log if it does not start, UsageError if it never can.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleServer:
    """The runner's current server, as far as it is visible from this machine."""

    pid: int | None
    """Process id; None if the process is not on this machine and cannot be monitored."""
    log_tail: tuple[str, ...] = ()
    metrics_url: str = ""
    """URL of its metrics page; empty if it has none."""
    http_address: str = ""
    """host:port for inference over HTTP; empty if it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """Record of how a configuration was brought onto the server."""

    how: Literal["loaded", "started", "restarted", "found"]
    """`loaded` into the running server, `started` or `restarted` with a server process; `found` means
    that nothing was necessary.
    """
    why: str = ""
    """Reason for a restart."""


class Runner(Protocol):
    """Prepares and measures one configuration after another; it remains usable after a TpxError."""

    @property
    def server(self) -> VisibleServer | None: ...

    async def default_config(self, model: str) -> dict[str, object]:
        """Return JSON of the model's own configuration as the server completes it."""
        ...

    async def prepare(self, configuration: Configuration | None, directory: Path) -> Preparation | None:
        """Load this configuration, whose files are in `directory`; None prepares a server without
        models.

        Returns how it was done, or None if the runner has no server. Raises ServerLost if the server is
        gone for good, another TpxError if it rejects the configuration.
        """

    async def measure(self, load: LoadPoint, *, one_window: bool = False) -> Measurement:
        """Measure the prepared configuration under load until its throughput is stable, or for a single
        window.
        """
        ...

    async def close(self) -> None: ...
