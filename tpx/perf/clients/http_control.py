"""Asking a server about itself and its models over HTTP."""

import asyncio
import base64
import json
import logging
from collections.abc import Mapping, Sequence
from urllib.parse import quote

from tpx.errors import MeasurementError, WireError
from tpx.perf.clients.base import Region, brief
from tpx.perf.clients.endpoint import Endpoint
from tpx.perf.clients.model import (
    ModelCounters,
    ModelDescription,
    ModelKey,
    ServerDescription,
    TensorSpec,
    index_entries,
    instead,
    model_counters,
    model_description,
    server_description,
)
from tpx.protocol.http1.client import HttpClientConnection, HttpConnector, HttpResponse, encode_request, fetch
from tpx.protocol.json_values import JsonObject

log = logging.getLogger(__name__)


def user_headers(endpoint: Endpoint) -> dict[str, str]:
    """The user's headers without Host."""
    return {h.name: h.value.strip() for h in endpoint.headers if h.name.lower() != "host"}


def host_header(endpoint: Endpoint) -> str:
    """Return the Host header: the user's, else host:port with an IPv6 address in brackets."""
    for header in endpoint.headers:
        if header.name.lower() == "host":
            return header.value.strip()
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    return f"{host}:{endpoint.port}"


def model_path(model: ModelKey, verb: str = "") -> str:
    """`/v2/models/M/versions/V/infer`; names are quoted."""
    version = f"/versions/{quote(model.version, safe='')}" if model.version else ""
    return f"/v2/models/{quote(model.name, safe='')}{version}" + (f"/{verb}" if verb else "")


def error_text(response: HttpResponse) -> str:
    """The `error` of a v2 error body, the `detail` of one by FastAPI, or the body as it is."""
    body = bytes(response.body)
    try:
        answer = json.loads(body)
        return str(answer["error"] if "error" in answer else answer["detail"])
    except (ValueError, KeyError, TypeError):
        return body[:500].decode("utf-8", "replace").strip() or "(no message)"


class HttpControl:
    """Implements Control and Registrar."""

    def __init__(self, connector: HttpConnector, endpoint: Endpoint) -> None:
        self._connector = connector
        self._endpoint = endpoint
        self._connection: HttpClientConnection | None = None
        self._turn = asyncio.Lock()

    async def server(self) -> ServerDescription:
        try:
            return server_description(await self._get("/v2", "server metadata"))
        except WireError as exc:
            if str(exc).startswith("cannot connect"):
                raise
            raise WireError(
                f"failed to get server metadata: {exc} (is {host_header(self._endpoint)} its HTTP port?)"
            ) from exc

    async def model(self, model: ModelKey) -> ModelDescription:
        metadata = await self._fetch(model_path(model))
        if metadata.status != 200:
            words = error_text(metadata) + await self._instead(model)
            raise MeasurementError(f"failed to get model metadata: {words}")
        config = await self._fetch(model_path(model, "config"))
        return model_description(_parse(metadata), _parse(config) if config.status == 200 else None)

    async def statistics(self, model: ModelKey) -> tuple[ModelCounters, ...]:
        path = model_path(model, "stats") if model.name else "/v2/models/stats"
        return model_counters(await self._get(path, "model statistics"))

    async def set_trace(self, settings: Mapping[str, Sequence[str]]) -> None:
        # only the levels are a list in this protocol's JSON
        members = {name: list(v) if name == "trace_level" else v[0] for name, v in settings.items()}
        response = await self._fetch("/v2/trace/setting", json.dumps(members).encode())
        if response.status != 200:
            raise MeasurementError(f"failed to set trace settings: {error_text(response)}")

    async def register(self, region: Region) -> None:
        document: JsonObject = {"byte_size": region.byte_size}
        if region.handle:
            handle = {"b64": base64.b64encode(region.handle).decode()}
            document |= {"raw_handle": handle, "device_id": region.device}
        else:
            document |= {"key": region.key, "offset": 0}
        await self._post(region, "register", document)

    async def unregister(self, region: Region) -> None:
        await self._post(region, "unregister", {})

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    async def _post(self, region: Region, verb: str, document: JsonObject) -> None:
        path = f"/v2/{region.kind}sharedmemory/region/{quote(region.name, safe='')}/{verb}"
        response = await self._fetch(path, json.dumps(document).encode())
        if response.status != 200:
            raise MeasurementError(f"failed to {verb} shared memory: {error_text(response)}")

    async def _instead(self, model: ModelKey) -> str:
        """Which models there are; empty where the server does not tell."""
        response = await self._fetch("/v2/repository/index", b"{}")
        try:
            models = json.loads(bytes(response.body))
        except ValueError:
            return ""
        return instead(model, index_entries(models)) if isinstance(models, list) else ""

    async def _get(self, path: str, what: str) -> JsonObject:
        response = await self._fetch(path)
        if response.status != 200:
            said = f"HTTP {response.status}, {error_text(response)}"
            raise MeasurementError(f"failed to get {what}: {said}")
        return _parse(response)

    async def _fetch(self, path: str, body: bytes = b"") -> HttpResponse:
        """Ask for a path, with a body to change something; whatever the status is."""
        method, parts = ("POST", [body]) if body else ("GET", [])
        host, headers = host_header(self._endpoint), user_headers(self._endpoint)
        request = encode_request(method, path, host, headers, parts)
        async with self._turn:
            if self._connection is None or self._connection.closing:
                self._connection = await self._connector.connect()
            response = await fetch(self._connection, request)
        log.debug("%s %s: %d, %s", method, path, response.status, brief(response.body))
        return response


def _parse(response: HttpResponse) -> JsonObject:
    try:
        answer = json.loads(bytes(response.body))
    except ValueError as exc:
        raise MeasurementError(
            f"the server answered something that is not JSON ({exc}): is this its HTTP port?"
        ) from exc
    if not isinstance(answer, dict):
        raise MeasurementError("the server answered JSON that is not an object")
    return answer


class StaticControl:
    """Implements Control of a service that says nothing about its models: all have the inputs of its API."""

    def __init__(self, connector: HttpConnector, kind: str, *inputs: TensorSpec) -> None:
        self._connector = connector
        self._kind = kind
        self._inputs = inputs

    async def server(self) -> ServerDescription:
        """Raises WireError where nobody listens."""
        (await self._connector.connect()).close()
        return ServerDescription(name=self._kind, version="", extensions=frozenset())

    async def model(self, model: ModelKey) -> ModelDescription:
        return ModelDescription(name=model.name, platform=self._kind, inputs=self._inputs)

    async def statistics(self, model: ModelKey) -> tuple[ModelCounters, ...]:  # noqa: ARG002 (there are none)
        return ()

    async def set_trace(self, settings: Mapping[str, Sequence[str]]) -> None:  # noqa: ARG002
        raise MeasurementError(f"a service of kind {self._kind} has no trace settings")

    async def close(self) -> None:
        """Nothing stays open."""
