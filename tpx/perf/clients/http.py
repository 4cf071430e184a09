"""Requests over HTTP/1.1: one connection per unit of concurrency, each request one run of bytes made
beforehand."""

import asyncio
from collections.abc import Sequence
from functools import partial

from tpx.errors import WireError
from tpx.perf.clients.base import PLAIN, Failure, Lane, Prepared, RequestFields, nobody_listens
from tpx.perf.clients.endpoint import Connections, Endpoint
from tpx.perf.clients.http_control import HttpControl, error_text, host_header, model_path, user_headers
from tpx.perf.clients.http_encoding import HttpTemplate, cut_template, infer_body, of_any_sequence
from tpx.perf.clients.tls import tls_context
from tpx.protocol.http1.client import HttpClientConnection, HttpConnector, HttpResponse, encode_request
from tpx.protocol.tensors import Buffer, Tensor

CONNECTS_AT_ONCE = 64
"""Below the listen backlog of usual servers."""


def connect(endpoint: Endpoint) -> Connections:
    """Connections over HTTP."""
    connector = http_connector(endpoint)
    return Connections(HttpClient(connector, endpoint), HttpControl(connector, endpoint))


def http_connector(endpoint: Endpoint) -> HttpConnector:
    """What opens connections to an endpoint."""
    tls = None if endpoint.tls is None else tls_context(endpoint.tls)
    return HttpConnector(endpoint.host, endpoint.port, tls=tls)


class HttpClient:
    """Implements Client."""

    success = 200
    streams = False

    def __init__(self, connector: HttpConnector, endpoint: Endpoint) -> None:
        self._connector = connector
        self._endpoint = endpoint
        self._lanes: list[Lane] = []

    async def prepare(self, tensors: Sequence[Tensor], fields: RequestFields = PLAIN) -> Prepared:
        return b"".join(self._encode(tensors, fields))

    async def template(self, tensors: Sequence[Tensor], fields: RequestFields) -> HttpTemplate:
        return cut_template(self._encode(tensors, of_any_sequence(fields)))

    def _encode(self, tensors: Sequence[Tensor], fields: RequestFields) -> list[Buffer]:
        endpoint, wire = self._endpoint, self._endpoint.wire
        head, tail = infer_body(
            tensors, fields, input_binary=wire.input_binary, output_binary=wire.output_binary
        )
        headers = user_headers(endpoint)
        headers["Content-Type"] = "application/octet-stream" if tail else "application/json"
        if tail:
            headers["Inference-Header-Content-Length"] = str(len(head))
        path = model_path(endpoint.model, "infer")
        return encode_request("POST", path, host_header(endpoint), headers, [head, *tail])

    async def open(self, count: int) -> Sequence[Lane]:
        for lane in self._lanes[count:]:
            lane.connection.close()
        del self._lanes[count:]
        for lane in self._lanes:
            if lane.connection.closing and lane.on_lost is nobody_listens:
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
        return Failure(f"HTTP {response.status}", error_text(response))

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
