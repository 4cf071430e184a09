"""Asking a server about itself and its models over gRPC."""

import logging
import ssl
from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.json_format import MessageToDict

from tpx.errors import MeasurementError, ResponseError
from tpx.perf.clients.base import Region, brief
from tpx.perf.clients.endpoint import Endpoint
from tpx.perf.clients.model import (
    ModelCounters,
    ModelDescription,
    ModelKey,
    ServerDescription,
    index_entries,
    instead,
    model_counters,
    model_description,
    server_description,
)
from tpx.protocol import messages, model_config
from tpx.protocol.grpc import client as wire
from tpx.protocol.grpc.client import GrpcClientConnection
from tpx.protocol.json_values import JsonObject

log = logging.getLogger(__name__)
SERVICE = "/inference.GRPCInferenceService/"


def metadata(endpoint: Endpoint) -> dict[str, str | bytes]:
    """Names of metadata are lower case, values carry no blanks at their ends; `-bin` ones are bytes."""
    pairs = ((h.name.lower(), h.value.strip()) for h in endpoint.headers)
    return {name: value.encode() if name.endswith("-bin") else value for name, value in pairs}


class GrpcAsker:
    """Calls methods of one service, over a connection that is opened when it is first needed."""

    def __init__(self, endpoint: Endpoint, tls: ssl.SSLContext | None = None, service: str = SERVICE) -> None:
        self.endpoint = endpoint
        self._tls = tls
        self._service = service
        self._connection: GrpcClientConnection | None = None

    async def connected(self) -> GrpcClientConnection:
        """Return the connection. Raises WireError where nothing listens."""
        if self._connection is None or self._connection.closing:
            self._connection = await wire.connect(self.endpoint.host, self.endpoint.port, tls=self._tls)
        return self._connection

    async def call(self, method: str, request: Any, response: Any) -> Any:
        """Return the answer, a message of type `response`. Raises ResponseError with the server's words."""
        connection, pairs = await self.connected(), metadata(self.endpoint)
        try:
            data = await connection.unary(self._service + method, request.SerializeToString(), pairs)
        except ResponseError as exc:
            log.debug("%s(%s): %s, %s", method, brief(str(request)), exc.code.value, exc.message)
            raise
        answer = response.FromString(bytes(data))
        log.debug("%s(%s): %s", method, brief(str(request)), brief(str(answer)))
        return answer

    async def ask(self, method: str, request: Any, response: Any, what: str) -> Any:
        """Call a method. Raises MeasurementError saying that `what` has failed."""
        try:
            return await self.call(method, request, response)
        except ResponseError as exc:
            raise MeasurementError(f"failed to {what}: {exc.message}") from exc

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


class GrpcControl(GrpcAsker):
    """Implements Control and Registrar."""

    async def server(self) -> ServerDescription:
        request = messages.ServerMetadataRequest()
        answer = await self.ask(
            "ServerMetadata", request, messages.ServerMetadataResponse, "get server metadata"
        )
        return server_description(_as_mapping(answer))

    async def model(self, model: ModelKey) -> ModelDescription:
        request = messages.ModelMetadataRequest(name=model.name, version=model.version)
        try:
            answer = await self.call("ModelMetadata", request, messages.ModelMetadataResponse)
        except ResponseError as exc:
            words = exc.message + await self._instead(model)
            raise MeasurementError(f"failed to get model metadata: {words}") from exc
        return model_description(_as_mapping(answer), await self._config(model))

    async def statistics(self, model: ModelKey) -> tuple[ModelCounters, ...]:
        request = messages.ModelStatisticsRequest(name=model.name, version=model.version)
        answer = await self.ask(
            "ModelStatistics", request, messages.ModelStatisticsResponse, "get model statistics"
        )
        return model_counters(_as_mapping(answer))

    async def set_trace(self, settings: Mapping[str, Sequence[str]]) -> None:
        request = messages.TraceSettingRequest()
        for name, values in settings.items():
            request.settings[name].value.extend(values)
        await self.ask("TraceSetting", request, messages.TraceSettingResponse, "set trace settings")

    async def register(self, region: Region) -> None:
        name, size = region.name, region.byte_size
        request: Any
        if region.handle:
            request = messages.CudaSharedMemoryRegisterRequest(
                name=name, byte_size=size, raw_handle=region.handle, device_id=region.device
            )
        else:
            request = messages.SystemSharedMemoryRegisterRequest(name=name, byte_size=size, key=region.key)
        await self._share(region, "Register", request)

    async def unregister(self, region: Region) -> None:
        kind = f"{region.kind.capitalize()}SharedMemoryUnregisterRequest"
        await self._share(region, "Unregister", getattr(messages, kind)(name=region.name))

    async def _share(self, region: Region, verb: str, request: Any) -> None:
        method = f"{region.kind.capitalize()}SharedMemory{verb}"
        response = getattr(messages, method + "Response")
        await self.ask(method, request, response, f"{verb.lower()} shared memory")

    async def _instead(self, model: ModelKey) -> str:
        """Which models there are; empty where the server does not tell."""
        try:
            answer = await self.call(
                "RepositoryIndex", messages.RepositoryIndexRequest(), messages.RepositoryIndexResponse
            )
        except ResponseError:
            return ""
        return instead(model, index_entries(_as_mapping(answer).get("models", ())))

    async def _config(self, model: ModelKey) -> JsonObject | None:
        """None where the server has no such extension."""
        request = messages.ModelConfigRequest(name=model.name, version=model.version)
        try:
            answer = await self.call("ModelConfig", request, messages.ModelConfigResponse)
        except ResponseError:
            return None
        return model_config.to_json(answer.config)


def _as_mapping(message: Any) -> JsonObject:
    """The message as HTTP's JSON has it, but for 64-bit integers, which are text."""
    answer: JsonObject = MessageToDict(message, preserving_proto_field_name=True)
    return answer
