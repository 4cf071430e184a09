"""The gRPC endpoint: every method of GRPCInferenceService, and the health service."""

from collections.abc import Callable
from typing import Any

from google.protobuf.message import DecodeError

from tpx.errors import InvalidRequest, NotReady, TpxError, Unsupported
from tpx.protocol import messages
from tpx.protocol.grpc.server_call import Method, ServerCall
from tpx.protocol.tensors import Buffer
from tpx.serving.dataplane import DataPlane, TensorMetadata
from tpx.serving.frontends.grpc_answers import answer, fail, fail_internally
from tpx.serving.frontends.grpc_infer import GrpcInference
from tpx.serving.frontends.grpc_stream import InferStream

_SERVICE = "/inference.GRPCInferenceService/"
_UNSUPPORTED = (
    "SystemSharedMemoryStatus",
    "SystemSharedMemoryRegister",
    "SystemSharedMemoryUnregister",
    "CudaSharedMemoryStatus",
    "CudaSharedMemoryRegister",
    "CudaSharedMemoryUnregister",
    "TraceSetting",
    "LogSettings",
)

Verb = Callable[[Any], Any]


class GrpcFrontend:
    """Makes the methods; each verb takes a request message and returns a response message."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane
        self._inference = GrpcInference(plane)

    def methods(self) -> list[Method]:
        verbs: dict[str, Verb] = {
            "ServerLive": lambda _: messages.ServerLiveResponse(live=self._plane.live()),
            "ServerReady": lambda _: messages.ServerReadyResponse(ready=self._plane.ready()),
            "ModelReady": self._model_ready,
            "ServerMetadata": self._server_metadata,
            "ModelMetadata": self._model_metadata,
            "ModelConfig": self._model_config,
            "ModelStatistics": self._statistics,
            "RepositoryIndex": self._index,
            "RepositoryModelLoad": _no_model_control,
            "RepositoryModelUnload": _no_model_control,
        }
        return [
            Method(_SERVICE + "ModelInfer", unary=self._inference.serve),
            *(_method(_SERVICE + name, f"{name}Request", verb) for name, verb in verbs.items()),
            *(_method(_SERVICE + name, "ServerLiveRequest", _unsupported(name)) for name in _UNSUPPORTED),
            Method(
                _SERVICE + "ModelStreamInfer",
                stream=lambda call: InferStream(call, self._plane, self._inference),
            ),
            _method("/grpc.health.v1.Health/Check", "HealthCheckRequest", self._health),
        ]

    def _health(self, request: Any) -> Any:  # noqa: ARG002 (one service: its name does not matter)
        response = messages.HealthCheckResponse
        return response(status=response.SERVING if self._plane.ready() else response.NOT_SERVING)

    def _model_ready(self, request: Any) -> Any:
        ready = self._plane.model_ready(request.name, request.version)
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

    def _index(self, request: Any) -> Any:
        if request.repository_name:
            raise Unsupported("'repository_name' specification is not supported")
        response = messages.RepositoryIndexResponse()
        for entry in self._plane.index(ready_only=request.ready):
            response.models.add(
                name=entry.name, version=entry.version, state=entry.state, reason=entry.reason
            )
        return response


def _method(path: str, request_type: str, verb: Verb) -> Method:
    """A unary method around a verb: decode, call, encode, and map errors."""
    request_class = getattr(messages, request_type)

    def serve(call: ServerCall, message: Buffer) -> None:
        try:
            answer(call, verb(request_class.FromString(bytes(message))))
        except DecodeError:
            fail(call, InvalidRequest(f"Unable to parse request: it is not a {request_type}"))
        except TpxError as exc:
            fail(call, exc)
        except Exception as exc:  # noqa: BLE001 (one request's boundary)
            fail_internally(call, path, exc)

    return Method(path, unary=serve)


def _tensor(tensor: TensorMetadata) -> Any:
    return messages.ModelMetadataResponse.TensorMetadata(
        name=tensor.name, datatype=tensor.datatype, shape=tensor.shape
    )


def _no_model_control(request: Any) -> Any:  # noqa: ARG001
    raise NotReady("explicit model load / unload is not allowed if polling is enabled")


def _unsupported(name: str) -> Verb:
    def refuse(request: Any) -> Any:  # noqa: ARG001
        raise Unsupported(f"'{name}' is not supported by this version of tpx")

    return refuse
