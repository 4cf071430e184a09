"""Requests over gRPC: each made beforehand, many in flight on one HTTP/2 connection."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.json_format import MessageToDict

from tpx.errors import MeasurementError, ResponseError
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
from tpx.protocol import messages, model_config
from tpx.protocol.grpc import client as wire
from tpx.protocol.grpc.client import GrpcClientConnection
from tpx.protocol.grpc.client_call import GrpcResponse, PreparedCall
from tpx.protocol.grpc.status import Status
from tpx.protocol.tensors import Tensor
from tpx.protocol.v2_protobuf import encode_infer_request

SERVICE = "/inference.GRPCInferenceService/"
LANES_PER_CONNECTION = 16
"""Fewer connections cost the client less, more of them let a server with a thread for each use its cores."""


def connect(endpoint: Endpoint) -> Connections:
    """Connections over gRPC."""
    return Connections(GrpcClient(endpoint), GrpcControl(endpoint))


def _metadata(endpoint: Endpoint) -> dict[str, str | bytes]:
    """Names of metadata are lower case, values carry no blanks at their ends; `-bin` ones are bytes."""
    pairs = ((h.name.lower(), h.value.strip()) for h in endpoint.headers)
    return {name: value.encode() if name.endswith("-bin") else value for name, value in pairs}


class GrpcClient:
    """Implements Client."""

    success = int(Status.OK)

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._lanes: list[Lane] = []
        self._connections: list[GrpcClientConnection] = []
        self._replacing = asyncio.Lock()

    async def prepare(self, tensors: Sequence[Tensor]) -> PreparedCall:
        model = self._endpoint.model
        message = encode_infer_request(model.name, model.version, tensors)
        if not self._connections:
            self._connections.append(await self._connect())
        return self._connections[0].prepare(SERVICE + "ModelInfer", message, _metadata(self._endpoint))

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
        return await wire.connect(self._endpoint.host, self._endpoint.port)


class GrpcControl:
    """Implements Control."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._connection: GrpcClientConnection | None = None

    async def server(self) -> ServerDescription:
        request = messages.ServerMetadataRequest()
        answer = await self._ask(
            "ServerMetadata", request, messages.ServerMetadataResponse, "server metadata"
        )
        return server_description(_as_mapping(answer))

    async def model(self, model: ModelKey) -> ModelDescription:
        request = messages.ModelMetadataRequest(name=model.name, version=model.version)
        metadata = await self._ask("ModelMetadata", request, messages.ModelMetadataResponse, "model metadata")
        return model_description(_as_mapping(metadata), await self._config(model))

    async def statistics(self, model: ModelKey) -> tuple[ModelCounters, ...]:
        request = messages.ModelStatisticsRequest(name=model.name, version=model.version)
        answer = await self._ask(
            "ModelStatistics", request, messages.ModelStatisticsResponse, "model statistics"
        )
        return model_counters(_as_mapping(answer))

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    async def _config(self, model: ModelKey) -> Mapping[str, Any] | None:
        """None where the server has no such extension."""
        request = messages.ModelConfigRequest(name=model.name, version=model.version)
        try:
            data = await self._call("ModelConfig", request)
        except ResponseError:
            return None
        return model_config.to_json(messages.ModelConfigResponse.FromString(bytes(data)).config)

    async def _ask(self, method: str, request: Any, response: Any, what: str) -> Any:
        try:
            return response.FromString(bytes(await self._call(method, request)))
        except ResponseError as exc:
            raise MeasurementError(f"failed to get {what}: {exc.message}") from exc

    async def _call(self, method: str, request: Any) -> Any:
        if self._connection is None or self._connection.closing:
            self._connection = await wire.connect(self._endpoint.host, self._endpoint.port)
        return await self._connection.unary(
            SERVICE + method, request.SerializeToString(), _metadata(self._endpoint)
        )


def _as_mapping(message: Any) -> Mapping[str, Any]:
    """The message as HTTP's JSON has it, but for 64-bit integers, which are text."""
    answer: Mapping[str, Any] = MessageToDict(message, preserving_proto_field_name=True)
    return answer
