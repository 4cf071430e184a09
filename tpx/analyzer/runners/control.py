"""Model control of a server over HTTP or gRPC: what it has, and loading a model with a configuration."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import quote

from tpx.analyzer.runners.base import Addresses, Launch
from tpx.errors import Code, MeasurementError, ResponseError, ServerLost, UsageError, WireError
from tpx.perf.clients.endpoint import parse_address
from tpx.protocol import messages, model_config
from tpx.protocol.grpc.client import connect
from tpx.protocol.http1.client import HttpConnector, HttpResponse, encode_request, fetch

REQUEST_TIMEOUT_S = 10.0
POLL_S = 0.5
SERVICE = "/inference.GRPCInferenceService/"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelState:
    """A model of the server's index; an empty state is one that was never loaded."""

    name: str
    state: str


class ModelControl(Protocol):
    """Raises WireError where nothing answers, MeasurementError with the server's words where it refuses."""

    async def live(self) -> bool:
        """Return whether the server answers; never raises."""

    async def index(self) -> tuple[ModelState, ...]: ...

    async def load(self, model: str, config: Mapping[str, Any] | None, timeout_s: float) -> None:
        """Load a model, under this configuration if there is one; it serves when this returns."""

    async def unload(self, model: str) -> None:
        """Begin to unload; what the server still does for the model ends later."""

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


class HttpModelControl:
    """Implements ModelControl, on a connection of its own for each request."""

    def __init__(self, address: str) -> None:
        where = parse_address(address, "http")
        self._host = f"[{where.host}]:{where.port}" if ":" in where.host else f"{where.host}:{where.port}"
        self._connector = HttpConnector(where.host, where.port)

    async def live(self) -> bool:
        try:
            return (await self._fetch("GET", "/v2/health/live")).status == 200
        except WireError:
            return False

    async def index(self) -> tuple[ModelState, ...]:
        response = await self._fetch("POST", "/v2/repository/index", {})
        entries = _json(response)
        if response.status != 200 or not isinstance(entries, list):
            raise MeasurementError(f"the server does not tell which models it has: {_words(response)}")
        return tuple(ModelState(name=e["name"], state=e.get("state", "")) for e in entries)

    async def load(self, model: str, config: Mapping[str, Any] | None, timeout_s: float) -> None:
        body = {} if config is None else {"parameters": {"config": json.dumps(config)}}
        await self._change(model, "load", body, timeout_s)

    async def unload(self, model: str) -> None:
        await self._change(model, "unload", {}, REQUEST_TIMEOUT_S)

    async def config(self, model: str) -> dict[str, Any]:
        response = await self._fetch("GET", f"/v2/models/{quote(model, safe='')}/config")
        body = _json(response)
        if response.status != 200 or not isinstance(body, dict):
            raise MeasurementError(
                f"the server answered {response.status} when asked for the configuration of '{model}': "
                f"{_words(response)}"
            )
        return body

    async def _change(self, model: str, verb: str, body: Mapping[str, object], timeout_s: float) -> None:
        path = f"/v2/repository/models/{quote(model, safe='')}/{verb}"
        response = await self._fetch("POST", path, body, timeout_s)
        if response.status != 200:
            raise refused(model, verb, _words(response))

    async def _fetch(
        self,
        method: str,
        path: str,
        body: Mapping[str, object] | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> HttpResponse:
        parts = [] if body is None else [json.dumps(body).encode()]
        headers = {"Content-Type": "application/json"} if parts else {}
        connection = await self._connector.connect()
        try:
            request = encode_request(method, path, self._host, headers, parts)
            return await fetch(connection, request, timeout_s)
        finally:
            connection.close()


def _json(response: HttpResponse) -> object:
    try:
        return json.loads(bytes(response.body))
    except ValueError:
        return None


def _words(response: HttpResponse) -> str:
    body = _json(response)
    if isinstance(body, dict) and "error" in body:
        return str(body["error"])
    return f"status {response.status}"


class GrpcModelControl:
    """Implements ModelControl, on a connection of its own for each request."""

    def __init__(self, address: str) -> None:
        self._where = parse_address(address, "grpc")

    async def live(self) -> bool:
        try:
            answer = await self._call("ServerLive", messages.ServerLiveRequest())
        except WireError:
            return False
        return bool(messages.ServerLiveResponse.FromString(answer).live)

    async def index(self) -> tuple[ModelState, ...]:
        try:
            answer = await self._call("RepositoryIndex", messages.RepositoryIndexRequest())
        except ResponseError as exc:
            _raise_if_gone(exc)
            raise MeasurementError(f"the server does not tell which models it has: {exc.message}") from exc
        found = messages.RepositoryIndexResponse.FromString(answer)
        return tuple(ModelState(name=m.name, state=m.state) for m in found.models)

    async def load(self, model: str, config: Mapping[str, Any] | None, timeout_s: float) -> None:
        request = messages.RepositoryModelLoadRequest(model_name=model)
        if config is not None:
            request.parameters["config"].string_param = json.dumps(config)
        await self._change(model, "load", request, timeout_s)

    async def unload(self, model: str) -> None:
        request = messages.RepositoryModelUnloadRequest(model_name=model)
        await self._change(model, "unload", request, REQUEST_TIMEOUT_S)

    async def config(self, model: str) -> dict[str, Any]:
        try:
            answer = await self._call("ModelConfig", messages.ModelConfigRequest(name=model))
        except ResponseError as exc:
            _raise_if_gone(exc)
            raise MeasurementError(
                f"the server does not tell the configuration of '{model}': {exc.message}"
            ) from exc
        return model_config.to_json(messages.ModelConfigResponse.FromString(answer).config)

    async def _change(self, model: str, verb: str, request: object, timeout_s: float) -> None:
        try:
            await self._call(f"RepositoryModel{verb.capitalize()}", request, timeout_s)
        except ResponseError as exc:
            _raise_if_gone(exc)
            raise refused(model, verb, exc.message) from exc

    async def _call(self, method: str, request: Any, timeout_s: float = REQUEST_TIMEOUT_S) -> bytes:
        connection = await connect(self._where.host, self._where.port)
        try:
            message = request.SerializeToString()
            return bytes(await connection.unary(SERVICE + method, message, timeout_s=timeout_s))
        finally:
            connection.close()


def _raise_if_gone(error: ResponseError) -> None:
    """Raise the error again where it says that nothing is there, rather than what the server thinks."""
    if error.code is Code.UNAVAILABLE and "connection" in error.message.lower():
        raise error


class RemoteServer:
    """Implements ServerProcess for a server that runs already, of which only the models are touched."""

    ours = False
    pid = None

    def __init__(self, addresses: Addresses, control: ModelControl, address: str) -> None:
        """`address` is the one of `addresses` that is used, for messages."""
        self.addresses = addresses
        self._control = control
        self._address = address
        self._met = False

    async def start(self, launch: Launch, timeout_s: float) -> "RemoteServer":
        """Wait until it answers. Raises UsageError where it never did, ServerLost where it has."""
        if launch.flags or launch.environment:
            raise UsageError(
                "triton_server_flags and triton_server_environment are for a server that is started here; "
                "with --triton-launch-mode remote, start the server with them"
            )
        loop = asyncio.get_running_loop()
        ends = loop.time() + timeout_s
        while not await self._control.live():
            if loop.time() > ends:
                raise self._absent(timeout_s)
            await asyncio.sleep(POLL_S)
        self._met = True
        return self

    def log_tail(self) -> tuple[str, ...]:
        return ()

    async def died(self) -> str:
        """Never return: a server that is gone shows when it is asked."""
        never: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        return await never

    async def stop(self, patience_s: float = 0) -> None:
        """Leave it running."""

    def _absent(self, timeout_s: float) -> ServerLost | UsageError:
        if self._met:
            return ServerLost(
                f"the server at {self._address} does not answer any more (for {timeout_s:g} s); when it "
                "does again, --resume goes on from here"
            )
        return UsageError(
            f"no server answers at {self._address} (tried for {timeout_s:g} s): start it, or say where it is "
            "with --triton-http-endpoint and --triton-grpc-endpoint; --client-protocol chooses between them"
        )
