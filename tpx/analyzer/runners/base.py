"""The seams of a trial: a server process, and the runner that puts a configuration on it under load."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from tpx.analyzer.results.measurement import Configuration, LoadPoint, Measurement
from tpx.analyzer.values import Flags

STOP_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The command and environment of a server; a model that wants others has the server restarted."""

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
        """Return the address of a protocol."""
        return self.http if protocol == "http" else self.grpc


class ServerProcess(Protocol):
    """A server that was started here, or one that runs already."""

    ours: bool
    """Started by this run, so that it may be stopped and replaced."""

    @property
    def pid(self) -> int | None:
        """The server's process id; None where it is no process of this machine."""

    @property
    def addresses(self) -> Addresses: ...

    def log_tail(self) -> tuple[str, ...]: ...

    async def died(self) -> str:
        """Return when the server has ended, with what there is to say about it; never for a remote one."""
        ...

    async def stop(self, patience_s: float = STOP_TIMEOUT_S) -> None:
        """End it: gently, and by force when that takes longer than `patience_s`."""


StartServer = Callable[[Launch, float], Awaitable[ServerProcess]]
"""Starts a server and waits, for that many seconds at most, until it answers; it has no models of ours.

Raises MeasurementError with its last words when it does not come up, UsageError when it never will.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleServer:
    """The server that a runner uses at present, as far as this machine can see it."""

    pid: int | None
    """None where the process is not one of this machine; then nothing of it can be watched here."""
    log_tail: tuple[str, ...] = ()
    metrics_url: str = ""
    """Its metrics page, empty where there is none."""
    http_address: str = ""
    """host:port that answers inferences over HTTP, empty where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """How a configuration came onto the server."""

    how: Literal["loaded", "started", "restarted", "found"]
    """`loaded` on the server that ran already; `found`: nothing had to be done."""
    why: str = ""
    """Of a restart: what made it necessary."""


class Runner(Protocol):
    """Prepares one configuration after another and measures it; after a TpxError it can go on."""

    @property
    def server(self) -> VisibleServer | None: ...

    async def default_config(self, model: str) -> dict[str, object]:
        """Return JSON of the model's own configuration as the server completes it."""
        ...

    async def prepare(self, configuration: Configuration | None, directory: Path) -> Preparation | None:
        """Have this configuration ready, whose files lie in `directory`; None is a server without a model.

        Returns how it was done, None where nothing stands behind the runner. Raises ServerLost when the
        server is gone for good, another TpxError when it does not take this configuration.
        """

    async def measure(self, load: LoadPoint, *, one_window: bool = False) -> Measurement:
        """Put the prepared configuration under load until its throughput is known, or for a single window."""
        ...

    async def close(self) -> None: ...
