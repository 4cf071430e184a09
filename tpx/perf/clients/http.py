"""Requests over HTTP/1.1, with one connection per slot; a request is encoded before the load starts, as
a JSON head followed by raw tensors.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import orjson

from tpx.errors import UsageError, WireError
from tpx.perf.clients.base import (
    PLAIN,
    Failure,
    OnResponse,
    Prepared,
    RequestFields,
    Slot,
    Template,
    brief,
    ignore_loss,
)
from tpx.perf.clients.control import (
    LIVE,
    HttpMethodCaller,
    V2Control,
    error_text,
    host_header,
    model_path,
    user_headers,
)
from tpx.perf.clients.endpoint import Connections, Endpoint
from tpx.perf.clients.transport import HttpDialer, http_dialer
from tpx.perf.clients.wire import WireSpec
from tpx.protocol.http1.client import HttpCarrier, HttpResponse, encode_request
from tpx.protocol.json_values import JsonObject, json_data
from tpx.protocol.tensors import Buffer, Tensor, decode_bytes
from tpx.protocol.v2 import RequestedOutput, SharedMemoryRange

log = logging.getLogger(__name__)
ANY_SEQUENCE = 2**64 - 1
"""Placeholder for the sequence id in a template: the longest number, which no generated sequence has."""
JOIN_BELOW_BYTES = 64 << 10
"""Requests below this size are copied into one buffer, which costs less than a write of several."""
CONNECTS_AT_ONCE = 64
"""Connections opened concurrently: below the listen backlog of common servers."""

Send = Callable[[Prepared, OnResponse], Any]


def connect(endpoint: Endpoint) -> Connections:
    """Return the connections to a v2 server over HTTP."""
    dialer = http_dialer(endpoint, opening_path=LIVE)
    return Connections(HttpClient(dialer, endpoint), V2Control(HttpMethodCaller(dialer, endpoint)))


class HttpSlots:
    """The common part of the clients over HTTP/1.1: one connection per slot, with one request in flight."""

    success = 200
    slots_per_connection = 1.0

    def __init__(self, dialer: HttpDialer, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._dialer = dialer
        self._slots: list[Slot] = []

    def send_on(self, connection: HttpCarrier) -> Send:
        """Return the connection's own method, so that no code of ours runs between the load and the wire."""
        return connection.send

    def encode(self, path: str, headers: dict[str, str], body: Sequence[Buffer]) -> list[Buffer]:
        """Return the parts of a request, with the user's headers added to `headers`."""
        return encode_request(
            "POST", path, host_header(self.endpoint), user_headers(self.endpoint) | headers, body
        )

    async def template(self, tensors: Sequence[Tensor], fields: RequestFields) -> Template:  # noqa: ARG002
        raise UsageError(f"--service-kind {self.endpoint.service.service_kind} does not support sequences")

    async def open(self, count: int) -> Sequence[Slot]:
        for slot in self._slots[count:]:
            slot.connection.close()
        del self._slots[count:]
        for slot in self._slots:
            # the owner of a slot in use renews it
            if slot.connection.closing and slot.on_lost is ignore_loss:
                await self.renew(slot, None)
        while missing := count - len(self._slots):
            batch = (self._add_slot() for _ in range(min(missing, CONNECTS_AT_ONCE)))
            # wait for all, so that no connection opens after the first error is raised
            for failed in await asyncio.gather(*batch, return_exceptions=True):
                if failed is not None:
                    raise failed
        return self._slots

    async def renew(self, slot: Slot, call: object) -> None:  # noqa: ARG002 (a connection carries one call at a time)
        slot.connection.close()
        self._attach_connection(slot, await self._dialer.connect())

    async def close(self) -> None:
        for slot in self._slots:
            slot.connection.close()
        self._slots.clear()

    async def _add_slot(self) -> None:
        connection = await self._dialer.connect()
        slot = Slot(connection, connection.send)
        self._attach_connection(slot, connection)
        self._slots.append(slot)

    def _attach_connection(self, slot: Slot, connection: HttpCarrier) -> None:
        def report_lost(error: WireError) -> None:
            # a connection that the slot has replaced is no longer of interest
            if slot.connection is connection:
                slot.unanswered = connection.unanswered
                slot.on_lost(error)

        slot.connection, slot.send = connection, self.send_on(connection)
        connection.on_lost = report_lost


class HttpClient(HttpSlots):
    """Implements Client."""

    streams = False

    async def prepare(self, tensors: Sequence[Tensor], fields: RequestFields = PLAIN) -> Prepared:
        return b"".join(self._encode_request(tensors, fields))

    async def template(self, tensors: Sequence[Tensor], fields: RequestFields) -> "HttpTemplate":
        return cut_template(self._encode_request(tensors, replace(fields, sequence=ANY_SEQUENCE)))

    def failure(self, response: HttpResponse) -> Failure:
        return Failure(f"HTTP {response.status}", error_text(response))

    def _encode_request(self, tensors: Sequence[Tensor], fields: RequestFields) -> list[Buffer]:
        head, tail = infer_body(tensors, fields, self.endpoint.wire)
        headers = {"Content-Type": "application/octet-stream" if tail else "application/json"}
        if tail:
            headers["Inference-Header-Content-Length"] = str(len(head))
        return self.encode(model_path(self.endpoint.model, "infer"), headers, [head, *tail])


def infer_body(
    tensors: Sequence[Tensor], fields: RequestFields, wire: WireSpec
) -> tuple[bytes, list[Buffer]]:
    """Return the JSON head of a request, and the raw tensors that follow it.

    Raises UsageError for a tensor that JSON cannot represent.
    """
    head: JsonObject = {}
    parameters, binary_outputs = fields.all_parameters, wire.output_tensor_format != "json"
    if binary_outputs and not fields.outputs:
        parameters = {"binary_data_output": True} | parameters
    if parameters:
        head["parameters"] = parameters
    tail: list[Buffer] = []
    head["inputs"] = []
    for tensor in tensors:
        item: JsonObject = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
        head["inputs"].append(item)
        if (place := fields.shared_inputs.get(tensor.name)) is not None:
            item["parameters"] = _build_region(place)
        elif wire.input_tensor_format != "json":
            item["parameters"] = {"binary_data_size": len(tensor.data)}
            tail.append(tensor.data)
        else:
            item["data"] = orjson.Fragment(_encode_json_data(tensor))
    if fields.outputs:
        head["outputs"] = [_build_output(output, binary=binary_outputs) for output in fields.outputs]
    words = orjson.dumps(head)
    log.debug("request: %s, %d bytes of tensors behind it", brief(words), sum(map(len, tail)))
    return words, tail


def _encode_json_data(tensor: Tensor) -> bytes:
    what = f"--input-tensor-format json: input '{tensor.name}'"
    if tensor.datatype in ("FP16", "BF16"):
        raise UsageError(
            f"{what} is {tensor.datatype}, which has no JSON form in the v2 protocol; use binary"
        )
    if tensor.datatype == "BYTES":
        try:
            for element in decode_bytes(tensor.data, math.prod(tensor.shape)):
                element.decode()
        except UnicodeDecodeError as exc:
            raise UsageError(f"{what} contains bytes that are not text, which JSON cannot represent") from exc
    return json_data(tensor)


def _build_output(output: RequestedOutput, *, binary: bool) -> JsonObject:
    place = output.shared_memory
    return {"name": output.name, "parameters": _build_region(place) if place else {"binary_data": binary}}


def _build_region(place: SharedMemoryRange) -> JsonObject:
    out: JsonObject = {"shared_memory_region": place.region, "shared_memory_byte_size": place.byte_size}
    return out | ({"shared_memory_offset": place.offset} if place.offset else {})


class HttpTemplate:
    """Implements Template: the id is padded with blanks to 20 characters, so that no length changes."""

    __slots__ = ("_before", "_behind", "_small")

    def __init__(self, before: bytes, behind: list[Buffer]) -> None:
        self._before = before
        self._small = sum(len(part) for part in behind) < JOIN_BELOW_BYTES
        self._behind: list[Buffer] = [b"".join(behind)] if self._small else behind

    def fill(self, sequence: int) -> Buffer | list[Buffer]:
        before = b"%b%-20d" % (self._before, sequence)
        return b"".join((before, *self._behind)) if self._small else [before, *self._behind]


def cut_template(request: Sequence[Buffer]) -> HttpTemplate:
    """Return the template of an encoded request whose sequence is ANY_SEQUENCE."""
    number = b"%d" % ANY_SEQUENCE
    for i, part in enumerate(request):
        before, found, behind = bytes(part).partition(b'"sequence_id":' + number)
        if found:
            parts = [*request[:i], before + b'"sequence_id":']
            return HttpTemplate(b"".join(parts), [behind, *request[i + 1 :]])
    raise UsageError("a request without a sequence has no template")
