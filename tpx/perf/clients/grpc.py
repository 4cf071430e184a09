"""Requests over gRPC: each made beforehand, many in flight on one HTTP/2 connection."""

import asyncio
import ssl
from collections.abc import Sequence

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
from tpx.perf.clients.tls import tls_context
from tpx.protocol.grpc import client as wire
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
        self._tls = tls
        self._lanes: list[Lane] = []
        self._connections: list[GrpcClientConnection] = []
        self._replacing = asyncio.Lock()

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
        wanted = -(-count // LANES_PER_CONNECTION)
        for surplus in self._connections[wanted:]:
            surplus.close()
        del self._connections[wanted:]
        while len(self._connections) < wanted:
            self._connections.append(await self._connect())
        for i, connection in enumerate(self._connections):
            if connection.closing:
                self._connections[i] = await self._connect()
        # dealt out in turn, so that every connection carries the same load
        turns = [self._connections[i % wanted] for i in range(count)]
        self._lanes = [Lane(connection, connection.call) for connection in turns]
        return self._lanes

    async def renew(self, lane: Lane, call: object) -> None:
        """A call in flight is cancelled; a connection that ended is replaced for all of its lanes."""
        broken = lane.connection
        if isinstance(call, int):
            broken.cancel(call)
        async with self._replacing:
            if lane.connection.closing:
                fresh = await self._connect()
                self._connections = [fresh if c is broken else c for c in self._connections]
                for each in self._lanes:
                    if each.connection is broken:
                        each.connection, each.send = fresh, fresh.call

    def failure(self, response: GrpcResponse) -> Failure:
        return Failure(f"gRPC {Status(response.status).name}", response.message or "(no message)")

    async def close(self) -> None:
        for connection in self._connections:
            connection.close()
        self._connections.clear()

    async def _connect(self) -> GrpcClientConnection:
        return await wire.connect(self._endpoint.host, self._endpoint.port, tls=self._tls)
