"""Requests over gRPC: each made beforehand, many in flight on one HTTP/2 connection."""

import ssl
from collections.abc import Sequence

from tpx.perf.clients.base import PLAIN, Failure, RequestFields, Slot
from tpx.perf.clients.endpoint import Connections, Endpoint
from tpx.perf.clients.grpc_control import GrpcControl
from tpx.perf.clients.grpc_encoding import (
    SERVICE,
    GrpcTemplate,
    flags_only,
    framed,
    header_block,
    infer_message,
)
from tpx.perf.clients.grpc_pool import SLOTS_PER_CONNECTION, GrpcSlots, call_failure
from tpx.perf.clients.tls import tls_context
from tpx.protocol.grpc.client_call import GrpcResponse, PreparedCall
from tpx.protocol.grpc.status import Status
from tpx.protocol.tensors import Tensor


def connect(endpoint: Endpoint) -> Connections:
    """Connections over gRPC."""
    tls = None if endpoint.tls is None else tls_context(endpoint.tls)
    if endpoint.wire.stream_per_request:
        from tpx.perf.clients.grpc_single import SingleStreamClient

        return Connections(SingleStreamClient(endpoint, tls), GrpcControl(endpoint, tls))
    if endpoint.wire.streaming:
        from tpx.perf.clients.grpc_stream import GrpcStreamClient

        return Connections(GrpcStreamClient(endpoint, tls), GrpcControl(endpoint, tls))
    return Connections(GrpcClient(endpoint, tls), GrpcControl(endpoint, tls))


class GrpcClient:
    """Implements Client."""

    success = int(Status.OK)
    streams = False
    slots_per_connection = float(SLOTS_PER_CONNECTION)

    def __init__(self, endpoint: Endpoint, tls: ssl.SSLContext | None = None) -> None:
        self._endpoint = endpoint
        self._slots = GrpcSlots(endpoint, tls)

    async def prepare(self, tensors: Sequence[Tensor], fields: RequestFields = PLAIN) -> PreparedCall:
        endpoint = self._endpoint
        message = infer_message(endpoint.model, tensors, fields, fields.all_parameters)
        block = header_block(endpoint, SERVICE + "ModelInfer")
        return PreparedCall(block, framed(message, endpoint.wire.compression))

    async def template(self, tensors: Sequence[Tensor], fields: RequestFields) -> GrpcTemplate:
        endpoint = self._endpoint
        message = infer_message(endpoint.model, tensors, fields, flags_only(fields))
        block = header_block(endpoint, SERVICE + "ModelInfer")
        return GrpcTemplate(block, message, endpoint.wire.compression)

    async def open(self, count: int) -> Sequence[Slot]:
        return await self._slots.open(count)

    async def renew(self, slot: Slot, call: object) -> None:
        await self._slots.renew(slot, call)

    def failure(self, response: GrpcResponse) -> Failure:
        return call_failure(response)

    async def close(self) -> None:
        self._slots.close()
