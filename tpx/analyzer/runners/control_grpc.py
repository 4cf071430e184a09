"""Model control over gRPC."""

import json
from collections.abc import Mapping
from typing import Any

from tpx.analyzer.runners.control import REQUEST_TIMEOUT_S, ModelState, is_gone, refused
from tpx.errors import MeasurementError, ResponseError, WireError
from tpx.perf.clients.endpoint import parse_address
from tpx.protocol import messages, model_config
from tpx.protocol.grpc.client import connect

SERVICE = "/inference.GRPCInferenceService/"


class GrpcModelControl:
    """Implements ModelControl, on a connection of its own for each request."""

    def __init__(self, address: str) -> None:
        self._where = parse_address(address, "grpc")

    async def live(self) -> bool:
        try:
            answer = await self._call("ServerLive", messages.ServerLiveRequest())
        except WireError:
            return False
        return bool(messages.ServerLiveResponse.FromString(answer).live)

    async def index(self) -> tuple[ModelState, ...]:
        try:
            answer = await self._call("RepositoryIndex", messages.RepositoryIndexRequest())
        except ResponseError as exc:
            if is_gone(exc):
                raise
            raise MeasurementError(f"the server does not tell which models it has: {exc.message}") from exc
        found = messages.RepositoryIndexResponse.FromString(answer)
        return tuple(ModelState(name=m.name, state=m.state, reason=m.reason) for m in found.models)

    async def load(self, model: str, config: Mapping[str, Any] | None, timeout_s: float) -> None:
        request = messages.RepositoryModelLoadRequest(model_name=model)
        if config is not None:
            request.parameters["config"].string_param = json.dumps(config)
        await self._change(model, "load", request, timeout_s)

    async def unload(self, model: str) -> None:
        request = messages.RepositoryModelUnloadRequest(model_name=model)
        await self._change(model, "unload", request, REQUEST_TIMEOUT_S)

    async def config(self, model: str) -> dict[str, Any]:
        try:
            answer = await self._call("ModelConfig", messages.ModelConfigRequest(name=model))
        except ResponseError as exc:
            if is_gone(exc):
                raise
            raise MeasurementError(
                f"the server does not tell the configuration of '{model}': {exc.message}"
            ) from exc
        return model_config.to_json(messages.ModelConfigResponse.FromString(answer).config)

    async def _change(self, model: str, verb: str, request: Any, timeout_s: float) -> None:
        try:
            await self._call(f"RepositoryModel{verb.capitalize()}", request, timeout_s)
        except ResponseError as exc:
            if is_gone(exc):
                raise
            raise refused(model, verb, exc.message) from exc

    async def _call(self, method: str, request: Any, timeout_s: float = REQUEST_TIMEOUT_S) -> bytes:
        connection = await connect(self._where.host, self._where.port)
        try:
            answer = await connection.unary(
                SERVICE + method, request.SerializeToString(), timeout_s=timeout_s
            )
            return bytes(answer)
        finally:
            connection.close()
