"""Model control over HTTP."""

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from tpx.analyzer.runners.control import REQUEST_TIMEOUT_S, ModelState, refused
from tpx.errors import MeasurementError, WireError
from tpx.perf.clients.endpoint import parse_address
from tpx.protocol.http1.client import HttpConnector, HttpResponse, encode_request, fetch


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
        return tuple(
            ModelState(name=e["name"], state=e.get("state", ""), reason=e.get("reason", "")) for e in entries
        )

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

    async def _change(self, model: str, verb: str, body: Mapping[str, Any], timeout_s: float) -> None:
        path = f"/v2/repository/models/{quote(model, safe='')}/{verb}"
        response = await self._fetch("POST", path, body, timeout_s)
        if response.status != 200:
            raise refused(model, verb, _words(response))

    async def _fetch(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> HttpResponse:
        parts = [] if body is None else [json.dumps(body).encode()]
        headers = {"Content-Type": "application/json"} if parts else {}
        connection = await self._connector.connect()
        try:
            return await fetch(
                connection, encode_request(method, path, self._host, headers, parts), timeout_s
            )
        finally:
            connection.close()


def _json(response: HttpResponse) -> Any:
    try:
        return json.loads(bytes(response.body))
    except ValueError:
        return None


def _words(response: HttpResponse) -> str:
    body = _json(response)
    if isinstance(body, dict) and "error" in body:
        return str(body["error"])
    return f"status {response.status}"
