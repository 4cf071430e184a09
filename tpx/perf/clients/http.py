"""Requests over HTTP/1.1: one connection per unit of concurrency, each request one run of bytes made
beforehand."""

from collections.abc import Sequence

from tpx.perf.clients.base import PLAIN, Failure, Prepared, RequestFields, Slot
from tpx.perf.clients.endpoint import Connections, Endpoint
from tpx.perf.clients.http_control import HttpControl, error_text, host_header, model_path, user_headers
from tpx.perf.clients.http_encoding import HttpTemplate, cut_template, infer_body, of_any_sequence
from tpx.perf.clients.http_slots import HttpSlots, plain_send
from tpx.perf.clients.tls import tls_context
from tpx.protocol.http1.client import HttpConnector, HttpResponse, encode_request
from tpx.protocol.tensors import Buffer, Tensor


def connect(endpoint: Endpoint) -> Connections:
    """Connections over HTTP."""
    connector = http_connector(endpoint)
    return Connections(HttpClient(connector, endpoint), HttpControl(connector, endpoint))


def http_connector(endpoint: Endpoint) -> HttpConnector:
    """What opens connections to an endpoint."""
    tls = None if endpoint.tls is None else tls_context(endpoint.tls)
    return HttpConnector(endpoint.host, endpoint.port, tls=tls, at_once=endpoint.at_once)


class HttpClient:
    """Implements Client."""

    success = 200
    streams = False
    slots_per_connection = 1.0

    def __init__(self, connector: HttpConnector, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._slots = HttpSlots(connector, plain_send)

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

    async def open(self, count: int) -> Sequence[Slot]:
        return await self._slots.open(count)

    async def renew(self, slot: Slot, call: object) -> None:  # noqa: ARG002 (a connection has one call)
        await self._slots.renew(slot)

    def failure(self, response: HttpResponse) -> Failure:
        return Failure(f"HTTP {response.status}", error_text(response))

    async def close(self) -> None:
        self._slots.close()
