"""The interfaces of a trial (server process, runner), and model control of a server over HTTP or gRPC."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from tpx.errors import MeasurementError, ResponseError, ServerLost, UsageError, WireError
from tpx.perf.clients.control import HttpMethodCaller, MethodCaller
from tpx.perf.clients.endpoint import PLAIN_WIRE, Endpoint, parse_address
from tpx.perf.clients.grpc_control import GrpcMethodCaller
from tpx.perf.clients.model import IndexEntry, ModelKey, index_entries
from tpx.perf.clients.transport import ClientName, choose_route, http_dialer
from tpx.perf.clients.wire import WireSpec
from tpx.protocol.json_values import JsonObject

if TYPE_CHECKING:  # these import all that measures: a cluster's actors only start servers
    from tpx.analyzer.results.measurement import Configuration, LoadPoint, Measurement
    from tpx.analyzer.runners.outputs import Outputs
    from tpx.analyzer.values import Flags

STOP_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Command line and environment of a server; a model with other ones makes the server restart."""

    flags: "Flags" = field(default_factory=dict)
    """Options of the server program by name without dashes; several values repeat the option."""
    environment: Mapping[str, str] = field(default_factory=dict)
    docker_args: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Addresses of a server: host:port for each protocol, and its metrics URL, empty without one."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """Record of how a configuration was brought onto the server."""

    how: Literal["loaded", "started", "restarted", "found"]
    """`loaded` into the running server, or with a server that was `started`; `found`: nothing was needed."""
    why: str = ""
    """Reason for a restart."""


class Runner(Protocol):
    """Prepares and measures one configuration after another; it remains usable after a TpxError."""

    @property
    def server(self) -> VisibleServer | None: ...

    async def default_config(self, model: str) -> dict[str, object]:
        """Return JSON of the model's own configuration as the server completes it."""
        ...

    async def prepare(self, configuration: "Configuration | None", directory: Path) -> Preparation | None:
        """Load this configuration, whose files are in `directory`; None prepares a server without models.

        Returns how, or None without a server. Raises ServerLost if it is gone, TpxError if it refuses.
        """

    async def measure(self, load: "LoadPoint", *, windows: int = 0) -> "Measurement":
        """Measure the prepared configuration for this many windows, or until its throughput is stable."""
        ...

    async def outputs(self, model: str) -> "Outputs":
        """Return the outputs of a loaded model for seeded requests, always the same ones."""
        ...

    async def close(self) -> None: ...


REQUEST_TIMEOUT_S = 10.0
POLL_S = 0.5


class ModelControl(Protocol):
    """Controls a server's models. Raises WireError without an answer, MeasurementError for a refusal."""

    async def live(self) -> bool:
        """Return True if the server responds; never raises."""

    async def index(self) -> tuple[IndexEntry, ...]: ...

    async def load(self, model: str, config: Mapping[str, Any] | None, timeout_s: float) -> None:
        """Load a model, with this configuration if given; the model is ready when this returns."""

    async def unload(self, model: str) -> None:
        """Start to unload a model; the server may still finish its requests after this returns."""

    async def config(self, model: str) -> dict[str, Any]:
        """Return JSON of the configuration that the model is served with."""
        ...


def refused(model: str, verb: str, words: str) -> MeasurementError:
    """Return the error for a server's refusal; `verb` is load or unload."""
    reason = words.removeprefix(f"failed to {verb} '{model}', ")
    if "polling is enabled" in words:
        return MeasurementError(
            f"the server does not {verb} models by request ({reason}): start it with "
            "--model-control-mode=explicit, or measure what it serves with --reload-model-disable"
        )
    return MeasurementError(f"the server could not {verb} model '{model}': {reason}")


class ServerControl:
    """Implements ModelControl over HTTP or gRPC, with a new connection per request.

    It goes through the proxy that `wire` or the environment names for the server, as the load does.
    """

    def __init__(
        self, address: str, protocol: Literal["http", "grpc"] = "http", wire: WireSpec = PLAIN_WIRE
    ) -> None:
        where = parse_address(address, protocol)
        client: ClientName | None = "tpx" if wire.client == "tpx" else None
        route = choose_route(where.host, where.port, protocol, client=client, proxy=wire.proxy)
        self._endpoint = Endpoint(host=where.host, port=where.port, model=ModelKey(""), library=route.library)
        self._protocol = protocol

    async def live(self) -> bool:
        try:
            answer = await self._send_request("ServerLive")
        except WireError:
            return False
        # HTTP answers with status 200 and no body; a gRPC answer without the field means false
        return bool(answer.get("live", self._protocol == "http"))

    async def index(self) -> tuple[IndexEntry, ...]:
        with _convert_refusal("the server does not tell which models it has"):
            return index_entries((await self._send_request("RepositoryIndex", body={})).get("models", ()))

    async def load(self, model: str, config: Mapping[str, Any] | None, timeout_s: float) -> None:
        body = {} if config is None else {"parameters": {"config": json.dumps(config)}}
        await self._change_model(model, "load", body, timeout_s)

    async def unload(self, model: str) -> None:
        await self._change_model(model, "unload", {}, REQUEST_TIMEOUT_S)

    async def config(self, model: str) -> dict[str, Any]:
        with _convert_refusal(f"the server does not tell the configuration of '{model}'"):
            return await self._send_request("ModelConfig", model)

    async def _change_model(self, model: str, verb: str, body: JsonObject, timeout_s: float) -> None:
        try:
            await self._send_request(f"RepositoryModel{verb.capitalize()}", model, body, timeout_s)
        except ResponseError as exc:
            raise refused(model, verb, exc.message) from exc

    async def _send_request(
        self,
        method: str,
        model: str = "",
        body: JsonObject | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> JsonObject:
        endpoint = self._endpoint
        http = self._protocol == "http"
        method_caller: MethodCaller = (
            HttpMethodCaller(http_dialer(endpoint), endpoint) if http else GrpcMethodCaller(endpoint)
        )
        try:
            return await method_caller.ask(method, ModelKey(model), body, timeout_s)
        finally:
            await method_caller.close()


@contextmanager
def _convert_refusal(what: str) -> Iterator[None]:
    """Convert a server's refusal into a MeasurementError with its message."""
    try:
        yield
    except ResponseError as exc:
        raise MeasurementError(f"{what}: {exc.message}") from exc


class RemoteServer:
    """Implements ServerProcess for a server that already runs; only its models are changed."""

    ours = False
    pid = None

    def __init__(self, addresses: Addresses, control: ModelControl, address: str) -> None:
        """`address` is the one of `addresses` in use, for messages."""
        self.addresses = addresses
        self._control = control
        self._address = address
        self._met = False

    async def start(self, launch: Launch, timeout_s: float) -> "RemoteServer":
        """Wait until the server responds. Raises UsageError if it never has, ServerLost if it has before."""
        if launch.flags or launch.environment:
            raise UsageError(
                "triton_server_flags and triton_server_environment apply to a server that tpx starts; "
                "with --triton-launch-mode remote, start the server with them"
            )
        loop = asyncio.get_running_loop()
        ends = loop.time() + timeout_s
        while not await self._control.live():
            if loop.time() > ends and self._met:
                raise ServerLost(
                    f"the server at {self._address} no longer responds (for {timeout_s:g} s); when it "
                    "does again, continue with --resume"
                )
            if loop.time() > ends:
                raise UsageError(
                    f"no server answers at {self._address} (tried for {timeout_s:g} s): start it, or say "
                    "where it is with --triton-http-endpoint and --triton-grpc-endpoint; --client-protocol "
                    "chooses between them"
                )
            await asyncio.sleep(POLL_S)
        self._met = True
        return self

    def log_tail(self) -> tuple[str, ...]:
        return ()

    async def died(self) -> str:
        """Never return: the loss of a remote server shows in failed requests."""
        never: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        return await never

    async def stop(self, patience_s: float = 0) -> None:
        """Do nothing: a remote server outlives the run."""
