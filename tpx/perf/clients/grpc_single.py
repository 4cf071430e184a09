"""Requests over streams that carry one each: the end of the stream is that of the answer.

So servers have it whose models are asked once by a call, as MLServer's are.
"""

import ssl
from collections.abc import Sequence
from time import perf_counter_ns

from tpx.perf.clients.base import PLAIN, Failure, OnResponse, RequestFields, Slot
from tpx.perf.clients.endpoint import Endpoint
from tpx.perf.clients.grpc_encoding import SERVICE, metadata
from tpx.perf.clients.grpc_pool import SLOTS_PER_CONNECTION, GrpcSlots, Send
from tpx.perf.clients.grpc_stream import (
    StreamedRequest,
    StreamMessage,
    StreamTemplate,
    enveloped,
    is_bare,
    scan,
    stream_failure,
    stream_message,
    stream_template,
)
from tpx.protocol.grpc.client import GrpcClientConnection
from tpx.protocol.grpc.client_call import GrpcResponse
from tpx.protocol.grpc.status import Status
from tpx.protocol.tensors import Buffer, Tensor

_ID = b"%08x" % 1
"""Nothing else is on the stream that it could be confused with."""


class _Exchange:
    """One stream: what comes on it belongs to its request."""

    __slots__ = ("_request",)

    def __init__(self, on_response: OnResponse) -> None:
        self._request = StreamedRequest(on_response)

    def on_message(self, data: Buffer) -> None:
        now_ns = perf_counter_ns()
        data = enveloped(data) if is_bare(data) else data
        _, _, null, error = scan(data)
        self._request.take(data, error, null=null, now_ns=now_ns)

    def on_end(self, response: GrpcResponse) -> None:
        request, now_ns = self._request, perf_counter_ns()
        if response.status != Status.OK:
            request.fail(int(response.status), response.message, now_ns)
        elif not request.end_ns:
            request.first_byte_ns = request.end_ns = now_ns
        request.on_response(request)


class SingleStreamClient:
    """Implements Client."""

    success = int(Status.OK)
    streams = True
    slots_per_connection = float(SLOTS_PER_CONNECTION)

    def __init__(self, endpoint: Endpoint, tls: ssl.SSLContext | None = None) -> None:
        self._endpoint = endpoint
        self._metadata = metadata(endpoint)
        self._slots = GrpcSlots(endpoint, tls, self._sends)

    async def prepare(self, tensors: Sequence[Tensor], fields: RequestFields = PLAIN) -> StreamMessage:
        return stream_message(self._endpoint, tensors, fields)

    async def template(self, tensors: Sequence[Tensor], fields: RequestFields) -> StreamTemplate:
        return stream_template(self._endpoint, tensors, fields)

    async def open(self, count: int) -> Sequence[Slot]:
        return await self._slots.open(count)

    async def renew(self, slot: Slot, call: object) -> None:
        await self._slots.renew(slot, call)

    def failure(self, response: StreamedRequest) -> Failure:
        return stream_failure(response)

    async def close(self) -> None:
        self._slots.close()

    def _sends(self, connection: GrpcClientConnection) -> Send:
        path, pairs, encoding = SERVICE + "ModelStreamInfer", self._metadata, self._endpoint.wire.compression

        def send(message: StreamMessage, on_response: OnResponse) -> int:
            exchange = _Exchange(on_response)
            call = connection.open(path, exchange.on_message, exchange.on_end, pairs, encoding=encoding)
            call.send_framed(message.framed(_ID))
            call.half_close()
            return call.id

        return send
