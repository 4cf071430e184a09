"""Health, metadata, configuration and statistics over gRPC."""

from typing import Any

from tpx.protocol import messages
from tpx.serving.dataplane import DataPlane, TensorMetadata
from tpx.serving.frontends.grpc_verbs import Rpc, rpc, rpc_later


class GrpcMetadata:
    """The verbs that only tell something."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane

    def rpcs(self) -> list[Rpc]:
        return [
            rpc("ServerLive", "health", self._live),
            rpc_later("ServerReady", "health", self._ready, self._plane.control.tasks),
            rpc_later("ModelReady", "health", self._model_ready, self._plane.control.tasks),
            rpc("ServerMetadata", "metadata", self._server_metadata),
            rpc("ModelMetadata", "metadata", self._model_metadata),
            rpc("ModelConfig", "model-config", self._model_config),
            rpc("ModelStatistics", "statistics", self._statistics),
        ]

    def _live(self, request: Any) -> Any:  # noqa: ARG002
        return messages.ServerLiveResponse(live=self._plane.live())

    async def _ready(self, request: Any) -> Any:  # noqa: ARG002
        return messages.ServerReadyResponse(ready=await self._plane.says_ready())

    async def _model_ready(self, request: Any) -> Any:
        ready = self._plane.model_ready(request.name, request.version)
        model = self._plane.has_readiness_hook(request.name, request.version)
        if model is not None:
            ready = await model.says_ready()
        return messages.ModelReadyResponse(ready=ready)

    def _server_metadata(self, request: Any) -> Any:  # noqa: ARG002
        metadata = self._plane.server_metadata()
        return messages.ServerMetadataResponse(
            name=metadata.name, version=metadata.version, extensions=metadata.extensions
        )

    def _model_metadata(self, request: Any) -> Any:
        metadata = self._plane.model_metadata(request.name, request.version)
        return messages.ModelMetadataResponse(
            name=metadata.name,
            versions=metadata.versions,
            platform=metadata.platform,
            inputs=[_tensor(tensor) for tensor in metadata.inputs],
            outputs=[_tensor(tensor) for tensor in metadata.outputs],
        )

    def _model_config(self, request: Any) -> Any:
        return messages.ModelConfigResponse(config=self._plane.model_config(request.name, request.version))

    def _statistics(self, request: Any) -> Any:
        return messages.ModelStatisticsResponse(
            model_stats=self._plane.statistics(request.name, request.version)
        )


def _tensor(tensor: TensorMetadata) -> dict[str, Any]:
    # as fields: the class is inside another one, where only protobuf's compiled half has it
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape}
