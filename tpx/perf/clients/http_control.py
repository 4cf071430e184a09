"""The methods of the v2 protocol over HTTP, and the paths and headers that its requests share."""

import asyncio
import json
import logging
from urllib.parse import quote

from tpx.errors import MeasurementError, ResponseError
from tpx.perf.clients.base import brief
from tpx.perf.clients.control import ASK_S
from tpx.perf.clients.endpoint import Endpoint
from tpx.perf.clients.model import ModelKey
from tpx.protocol.http1.client import HttpClientConnection, HttpConnector, HttpResponse, encode_request, fetch
from tpx.protocol.json_values import JsonObject

log = logging.getLogger(__name__)
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
    return f"/v2/models/{_quoted(model.name, model.version)}/{verb}"


def _quoted(name: str, version: str) -> str:
    return quote(name, safe="") + (f"/versions/{quote(version, safe='')}" if version else "")


def error_text(response: HttpResponse) -> str:
    """Return the `error` of a v2 error body, the `detail` of a FastAPI one, or else the start of the body."""
    body = bytes(response.body)
    try:
        answer = json.loads(body)
        return str(answer["error"] if "error" in answer else answer["detail"])
    except (ValueError, KeyError, TypeError):
        return body[:500].decode("utf-8", "replace").strip() or "(no message)"


class HttpAsker:
    """Implements Asker, over a connection that is opened on first use."""

    def __init__(self, connector: HttpConnector, endpoint: Endpoint) -> None:
        self.hint = f"is {host_header(endpoint)} its HTTP port?"
        self._connector = connector
        self._endpoint = endpoint
        self._connection: HttpClientConnection | None = None
        self._turn = asyncio.Lock()

    async def ask(
        self,
        method: str,
        name: str = "",
        version: str = "",
        body: JsonObject | None = None,
        timeout_s: float = ASK_S,
    ) -> JsonObject:
        path = "/v2" + _PATHS[method].format(_quoted(name, version)).replace("//", "/")
        verb, parts = ("GET", []) if body is None else ("POST", [json.dumps(body).encode()])
        host, headers = host_header(self._endpoint), user_headers(self._endpoint)
        request = encode_request(verb, path, host, headers, parts)
        # HTTP/1.1 without pipelining: one request at a time on the connection
        async with self._turn:
            if self._connection is None or self._connection.closing:
                self._connection = await self._connector.connect()
            response = await fetch(self._connection, request, timeout_s)
        log.debug("%s %s: %d, %s", verb, path, response.status, brief(response.body))
        if response.status != 200:
            raise ResponseError(error_text(response))
        return _parsed(response) if method in _READ else {}

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


def _parsed(response: HttpResponse) -> JsonObject:
    """Return the JSON object of a response; a list is returned as the object's `models`."""
    try:
        answer = json.loads(bytes(response.body))
    except ValueError as exc:
        raise MeasurementError(
            f"the server answered something that is not JSON ({exc}): is this its HTTP port?"
        ) from exc
    if isinstance(answer, list):
        return {"models": answer}
    if not isinstance(answer, dict):
        raise MeasurementError("the server answered JSON that is not an object")
    return answer
