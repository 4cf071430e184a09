"""Requests over HTTP/1.1: one connection per unit of concurrency, each request one run of bytes made
beforehand."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import quote

from tpx.errors import MeasurementError, WireError
from tpx.perf.clients.base import Failure, Lane
from tpx.perf.clients.endpoint import Connections, Endpoint
from tpx.perf.clients.model import (
    ModelCounters,
    ModelDescription,
    ModelKey,
    ServerDescription,
    model_counters,
    model_description,
    server_description,
)
from tpx.protocol.http1.client import HttpClientConnection, HttpConnector, HttpResponse, encode_request, fetch
from tpx.protocol.tensors import Tensor
from tpx.protocol.v2_json import encode_infer_request

CONNECTS_AT_ONCE = 64
"""Below the listen backlog of usual servers."""


def connect(endpoint: Endpoint) -> Connections:
    """Connections over HTTP."""
    connector = HttpConnector(endpoint.host, endpoint.port)
    return Connections(HttpClient(connector, endpoint), HttpControl(connector, endpoint))


def _headers(endpoint: Endpoint) -> dict[str, str]:
    """The user's headers without Host."""
    return {h.name: h.value.strip() for h in endpoint.headers if h.name.lower() != "host"}


def _host(endpoint: Endpoint) -> str:
    """What the Host header says: the user's word, else host:port, an IPv6 address in brackets."""
    for header in endpoint.headers:
        if header.name.lower() == "host":
            return header.value.strip()
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    return f"{host}:{endpoint.port}"


def model_path(model: ModelKey, verb: str = "") -> str:
    """`/v2/models/M/versions/V/infer`; names are quoted."""
    version = f"/versions/{quote(model.version, safe='')}" if model.version else ""
    return f"/v2/models/{quote(model.name, safe='')}{version}" + (f"/{verb}" if verb else "")


def _error_text(response: HttpResponse) -> str:
    """The `error` of a v2 error body, or the body as it is."""
    body = bytes(response.body)
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return body[:500].decode("utf-8", "replace").strip() or "(no message)"


class HttpClient:
    """Implements Client."""

    success = 200

    def __init__(self, connector: HttpConnector, endpoint: Endpoint) -> None:
        self._connector = connector
        self._endpoint = endpoint
        self._lanes: list[Lane] = []

    async def prepare(self, tensors: Sequence[Tensor]) -> bytes:
        head, parts = encode_infer_request(tensors)
        headers = _headers(self._endpoint)
        headers["Content-Type"] = "application/octet-stream"
        headers["Inference-Header-Content-Length"] = str(len(head))
        path = model_path(self._endpoint.model, "infer")
        request = encode_request("POST", path, _host(self._endpoint), headers, [head, *parts])
        return b"".join(request)

    async def open(self, count: int) -> Sequence[Lane]:
        for lane in self._lanes[count:]:
            lane.connection.close()
        del self._lanes[count:]
        for lane in self._lanes:
            if lane.connection.closing:
                await self.renew(lane, None)
        while missing := count - len(self._lanes):
            batch = (self._add_lane() for _ in range(min(missing, CONNECTS_AT_ONCE)))
            for failed in await asyncio.gather(*batch, return_exceptions=True):
                if failed is not None:
                    raise failed
        return self._lanes

    async def renew(self, lane: Lane, call: object) -> None:  # noqa: ARG002 (a connection has one call)
        lane.connection.close()
        self._attach(lane, await self._connector.connect())

    def failure(self, response: HttpResponse) -> Failure:
        return Failure(f"HTTP {response.status}", _error_text(response))

    async def close(self) -> None:
        for lane in self._lanes:
            lane.connection.close()
        self._lanes.clear()

    async def _add_lane(self) -> None:
        connection = await self._connector.connect()
        lane = Lane(connection, connection.send)
        self._attach(lane, connection)
        self._lanes.append(lane)

    def _attach(self, lane: Lane, connection: HttpClientConnection) -> None:
        lane.connection, lane.send = connection, connection.send
        connection.on_lost = partial(_lost, lane, connection)


def _lost(lane: Lane, connection: HttpClientConnection, error: WireError) -> None:
    if lane.connection is connection:
        lane.on_lost(error)


class HttpControl:
    """Implements Control."""

    def __init__(self, connector: HttpConnector, endpoint: Endpoint) -> None:
        self._connector = connector
        self._endpoint = endpoint
        self._connection: HttpClientConnection | None = None
        self._turn = asyncio.Lock()

    async def server(self) -> ServerDescription:
        return server_description(await self._get("/v2", "server metadata"))

    async def model(self, model: ModelKey) -> ModelDescription:
        metadata = await self._get(model_path(model), "model metadata")
        config = await self._fetch(model_path(model, "config"))
        return model_description(metadata, _parse(config) if config.status == 200 else None)

    async def statistics(self, model: ModelKey) -> tuple[ModelCounters, ...]:
        path = model_path(model, "stats") if model.name else "/v2/models/stats"
        return model_counters(await self._get(path, "model statistics"))

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    async def _get(self, path: str, what: str) -> Mapping[str, Any]:
        response = await self._fetch(path)
        if response.status != 200:
            raise MeasurementError(f"failed to get {what}: {_error_text(response)}")
        return _parse(response)

    async def _fetch(self, path: str) -> HttpResponse:
        request = encode_request("GET", path, _host(self._endpoint), _headers(self._endpoint))
        async with self._turn:
            if self._connection is None or self._connection.closing:
                self._connection = await self._connector.connect()
            return await fetch(self._connection, request)


def _parse(response: HttpResponse) -> Mapping[str, Any]:
    try:
        answer = json.loads(bytes(response.body))
    except ValueError as exc:
        raise MeasurementError(f"the server answered something that is not JSON: {exc}") from exc
    if not isinstance(answer, dict):
        raise MeasurementError("the server answered JSON that is not an object")
    return answer
