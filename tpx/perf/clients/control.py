"""Queries to a server about itself and its models, by the v2 protocol's methods; their form over HTTP."""

import asyncio
import base64
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol
from urllib.parse import quote

from tpx.errors import MeasurementError, ResponseError, WireError
from tpx.perf.clients.base import Region, brief
from tpx.perf.clients.endpoint import Endpoint
from tpx.perf.clients.model import (
    ModelDescription,
    ModelKey,
    ServerDescription,
    Snapshot,
    TensorDescription,
    index_entries,
    instead,
    model_counters,
    model_description,
    server_description,
)
from tpx.perf.clients.transport import HttpDialer
from tpx.protocol.http1.client import HttpCarrier, HttpResponse, encode_request, fetch
from tpx.protocol.json_values import JsonObject, parse_json
from tpx.protocol.tensors import Buffer

log = logging.getLogger(__name__)
ASK_S = 30.0
MAX_ANSWER_BYTES = 64 << 20
"""Maximum size of what a server tells about itself: it is read at once."""
_MAX_ERROR = 4000
"""Characters of an error message that are shown."""
UNNAMED = ModelKey("")
LIVE = "/v2/health/live"
_PATHS = {
    "ServerLive": "/health/live",
    "ServerMetadata": "",
    "ModelMetadata": "/models/{}",
    "ModelConfig": "/models/{}/config",
    "ModelStatistics": "/models/{}/stats",
    "RepositoryIndex": "/repository/index",
    "RepositoryModelLoad": "/repository/models/{}/load",
    "RepositoryModelUnload": "/repository/models/{}/unload",
    "TraceSetting": "/trace/setting",
    "SystemSharedMemoryRegister": "/systemsharedmemory/region/{}/register",
    "SystemSharedMemoryUnregister": "/systemsharedmemory/region/{}/unregister",
    "CudaSharedMemoryRegister": "/cudasharedmemory/region/{}/register",
    "CudaSharedMemoryUnregister": "/cudasharedmemory/region/{}/unregister",
}
_READ = ("ServerMetadata", "ModelMetadata", "ModelConfig", "ModelStatistics", "RepositoryIndex")
"""Methods whose response body is parsed."""


def user_headers(endpoint: Endpoint) -> dict[str, str]:
    """Return the user's headers except Host."""
    return {h.name: h.value.strip() for h in endpoint.headers if h.name.lower() != "host"}


def host_header(endpoint: Endpoint) -> str:
    """Return the Host header: the user's, else host:port with an IPv6 address in brackets."""
    for header in endpoint.headers:
        if header.name.lower() == "host":
            return header.value.strip()
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    return f"{host}:{endpoint.port}"


def model_path(model: ModelKey, verb: str) -> str:
    """Return a path such as `/v2/models/M/versions/V/infer`, with names quoted."""
    return f"/v2/models/{_quote_model_path(model)}/{verb}"


def _quote_model_path(key: ModelKey) -> str:
    return quote(key.name, safe="") + (f"/versions/{quote(key.version, safe='')}" if key.version else "")


def error_text(response: HttpResponse, *members: str) -> str:
    """Return the first of some members of an error body, or else the start of the body.

    By default the `error` of a v2 server, or the `detail` of FastAPI.
    """
    body = bytes(response.body)
    try:
        answer = parse_json(body)
        found = next(str(answer[name]) for name in members or ("error", "detail") if name in answer)
        return found if len(found) <= _MAX_ERROR else f"{found[:_MAX_ERROR]}..."
    except (ValueError, StopIteration, TypeError):
        return body[:500].decode("utf-8", "replace").strip() or "(no message)"


class HttpMethodCaller:
    """Implements MethodCaller, over a connection that is opened on first use."""

    def __init__(self, dialer: HttpDialer, endpoint: Endpoint) -> None:
        self.hint = f"is {host_header(endpoint)} its HTTP port?"
        self._dialer = dialer
        self._endpoint = endpoint
        self._connection: HttpCarrier | None = None
        self._turn = asyncio.Lock()

    async def ask(
        self, method: str, key: ModelKey = UNNAMED, body: JsonObject | None = None, timeout_s: float = ASK_S
    ) -> JsonObject:
        path = "/v2" + _PATHS[method].format(_quote_model_path(key)).replace("//", "/")
        verb, parts = ("GET", []) if body is None else ("POST", [json.dumps(body).encode()])
        host, headers = host_header(self._endpoint), user_headers(self._endpoint)
        request = encode_request(verb, path, host, headers, parts)
        # HTTP/1.1 without pipelining: one request at a time on the connection
        async with self._turn:
            response = await self._fetch(request, timeout_s)
        log.debug("%s %s: %d, %s", verb, path, response.status, brief(response.body))
        if response.status != 200:
            status = "" if bytes(response.body).startswith(b"{") else f"HTTP {response.status}: "
            raise ResponseError(status + error_text(response))
        if method not in _READ:
            return {}
        try:
            answer = parse_json(response.body)
        except ValueError as exc:
            raise MeasurementError(
                f"the server answered something that is not JSON ({exc}): is this its HTTP port?"
            ) from exc
        if isinstance(answer, list):
            return {"models": answer}
        if not isinstance(answer, dict):
            raise MeasurementError("the server answered JSON that is not an object")
        return answer

    async def _fetch(self, request: Sequence[Buffer], timeout_s: float) -> HttpResponse:
        """Return the response, on a new connection if the last was closed meanwhile. Raises WireError."""
        connection = await self._connect()
        try:
            return await fetch(connection, request, timeout_s)
        except WireError:
            if not connection.unanswered:
                raise
        return await fetch(await self._connect(), request, timeout_s)

    async def _connect(self) -> HttpCarrier:
        if self._connection is None or self._connection.closing:
            self._connection = await self._dialer.connect()
            self._connection.limit_response(MAX_ANSWER_BYTES)
        return self._connection

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


class MethodCaller(Protocol):
    """Calls the methods of the v2 protocol on one server; implemented for HTTP and for gRPC."""

    hint: str
    """Advice to append to the error if the first query fails."""

    async def ask(
        self, method: str, key: ModelKey = UNNAMED, body: JsonObject | None = None, timeout_s: float = ASK_S
    ) -> JsonObject:
        """Call a method by its gRPC name; `key` names a model or a region, `body` has HTTP's members.

        Raises ResponseError with the server's message, WireError if there is no response,
        MeasurementError for a response that does not follow the protocol.
        """
        ...

    async def close(self) -> None: ...


@contextmanager
def refusals(what: str) -> Iterator[None]:
    """Raise a server's error as a MeasurementError that says what failed."""
    try:
        yield
    except ResponseError as exc:
        raise MeasurementError(f"failed to {what}: {exc.message}") from exc


class V2Control:
    """Implements Control and Registrar."""

    def __init__(self, method_caller: MethodCaller) -> None:
        self._method_caller = method_caller

    async def server(self) -> ServerDescription:
        try:
            with refusals("get server metadata"):
                return server_description(await self._method_caller.ask("ServerMetadata"))
        except WireError as exc:
            if not self._method_caller.hint or str(exc).startswith("cannot connect"):
                raise
            raise WireError(f"failed to get server metadata: {exc} ({self._method_caller.hint})") from exc

    async def model(self, model: ModelKey) -> ModelDescription:
        try:
            metadata = await self._method_caller.ask("ModelMetadata", model)
        except ResponseError as exc:
            index: JsonObject = {}
            with suppress(MeasurementError, ResponseError):  # the server need not list its models
                index = await self._method_caller.ask("RepositoryIndex", body={})
            near = instead(model, index_entries(index.get("models", ())))
            if "did you mean" in exc.message:  # the server has said it
                near = near[max(near.find(";"), 0) :]
            words = exc.message + near
            raise MeasurementError(f"failed to get model metadata: {words}") from exc
        config: JsonObject | None = None
        with suppress(ResponseError):  # the server may lack this extension
            config = await self._method_caller.ask("ModelConfig", model)
        return model_description(metadata, config)

    async def statistics(self, model: ModelKey) -> Snapshot:
        with refusals("get model statistics"):
            return model_counters(await self._method_caller.ask("ModelStatistics", model))

    async def set_trace(self, settings: Mapping[str, Sequence[str]]) -> None:
        # in the protocol's JSON only trace_level is a list
        members = {name: list(v) if name == "trace_level" else v[0] for name, v in settings.items()}
        with refusals("set trace settings"):
            await self._method_caller.ask("TraceSetting", body=members)

    async def register(self, region: Region) -> None:
        body: JsonObject = {"byte_size": region.byte_size}
        if region.handle:
            handle = base64.b64encode(region.handle).decode()
            body |= {"raw_handle": {"b64": handle}, "device_id": region.device}
        else:
            body |= {"key": region.key, "offset": 0}
        with refusals("register shared memory"):
            method = f"{region.kind.capitalize()}SharedMemoryRegister"
            await self._method_caller.ask(method, ModelKey(region.name), body)

    async def unregister(self, region: Region) -> None:
        with refusals("unregister shared memory"):
            method = f"{region.kind.capitalize()}SharedMemoryUnregister"
            await self._method_caller.ask(method, ModelKey(region.name), {})

    async def close(self) -> None:
        await self._method_caller.close()


class StaticControl:
    """Implements Control for a service that does not describe its models: all have the inputs of its API."""

    def __init__(self, dialer: HttpDialer, kind: str, *inputs: TensorDescription) -> None:
        self._dialer = dialer
        self._kind = kind
        self._inputs = inputs

    async def server(self) -> ServerDescription:
        """Return a description with the service's kind. Raises WireError if nothing listens."""
        (await self._dialer.connect()).close()
        return ServerDescription(name=self._kind, version="", extensions=frozenset())

    async def model(self, model: ModelKey) -> ModelDescription:
        return ModelDescription(name=model.name, platform=self._kind, inputs=self._inputs)

    async def statistics(self, model: ModelKey) -> Snapshot:  # noqa: ARG002 (there are none)
        return {}

    async def set_trace(self, settings: Mapping[str, Sequence[str]]) -> None:  # noqa: ARG002
        raise MeasurementError(f"a service of kind {self._kind} has no trace settings")

    async def close(self) -> None:
        """Do nothing: no connection stays open."""
