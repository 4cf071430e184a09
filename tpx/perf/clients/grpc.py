"""Requests over gRPC: each made beforehand, many in flight on one HTTP/2 connection."""

import ssl
from collections.abc import Sequence
from typing import cast

from tpx.perf.clients.base import PLAIN, Failure, Lane, RequestFields
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
from tpx.perf.clients.grpc_pool import GrpcPool, spread
from tpx.perf.clients.tls import tls_context
from tpx.protocol.grpc.client import GrpcClientConnection
from tpx.protocol.grpc.client_call import GrpcResponse, PreparedCall
from tpx.protocol.grpc.status import Status
from tpx.protocol.tensors import Tensor

LANES_PER_CONNECTION = 16
"""Fewer connections cost the client less, more of them let a server with a thread for each use its cores."""


def connect(endpoint: Endpoint) -> Connections:
    """Connections over gRPC."""
    tls = None if endpoint.tls is None else tls_context(endpoint.tls)
    if endpoint.wire.streaming:
        from tpx.perf.clients.grpc_stream import GrpcStreamClient

        return Connections(GrpcStreamClient(endpoint, tls), GrpcControl(endpoint, tls))
    return Connections(GrpcClient(endpoint, tls), GrpcControl(endpoint, tls))


class GrpcClient:
    """Implements Client."""

    success = int(Status.OK)
    streams = False

    def __init__(self, endpoint: Endpoint, tls: ssl.SSLContext | None = None) -> None:
        self._endpoint = endpoint
        self._pool = GrpcPool(endpoint, tls)
        self._lanes: list[Lane] = []

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

    async def open(self, count: int) -> Sequence[Lane]:
        await self._pool.resize(-(-count // LANES_PER_CONNECTION))
        connections = self._pool.connections
        del self._lanes[count:]
        while len(self._lanes) < count:
            self._lanes.append(Lane(None, connections[0].call))
        for lane, connection in spread(self._lanes, connections):
            _attach(lane, cast("GrpcClientConnection", connection))
        return self._lanes

    async def renew(self, lane: Lane, call: object) -> None:
        """A call in flight is cancelled; a connection that ended is replaced for all of its lanes."""
        broken: GrpcClientConnection = lane.connection
        if isinstance(call, int):
            broken.cancel(call)
        if broken.closing:
            fresh = await self._pool.instead_of(broken)
            for each in self._lanes:
                if each.connection is broken:
                    _attach(each, fresh)

    def failure(self, response: GrpcResponse) -> Failure:
        return Failure(f"gRPC {Status(response.status).name}", response.message or "(no message)")

    async def close(self) -> None:
        self._pool.close()


def _attach(lane: Lane, connection: GrpcClientConnection) -> None:
    lane.connection, lane.send = connection, connection.call
