"""The gRPC endpoint: every method of GRPCInferenceService, health and reflection."""

from typing import Any

from tpx.errors import Unsupported
from tpx.protocol.grpc.server_call import Method
from tpx.serving.dataplane import DataPlane
from tpx.serving.frontends.grpc_control import GrpcControl
from tpx.serving.frontends.grpc_health import GrpcHealth
from tpx.serving.frontends.grpc_infer import GrpcInference
from tpx.serving.frontends.grpc_metadata import GrpcMetadata
from tpx.serving.frontends.grpc_reflection import GrpcReflection
from tpx.serving.frontends.grpc_shared_memory import GrpcSharedMemory
from tpx.serving.frontends.grpc_stream import GrpcStreams
from tpx.serving.frontends.grpc_verbs import SERVICE, Verb, unary

_UNSUPPORTED = ("TraceSetting", "LogSettings")


class GrpcFrontend:
    """Makes the methods."""

    def __init__(self, plane: DataPlane) -> None:
        inference = GrpcInference(plane)
        extensions = (
            inference,
            GrpcStreams(plane, inference),
            GrpcHealth(plane),
            GrpcMetadata(plane),
            GrpcControl(plane),
            GrpcSharedMemory(plane),
        )
        self._rpcs = [rpc for extension in extensions for rpc in extension.rpcs()]
        self._rpcs += GrpcReflection(self._rpcs).rpcs()

    def methods(self) -> list[Method]:
        return [
            *(rpc.method for rpc in self._rpcs),
            *(unary(SERVICE + name, "ServerLiveRequest", _unsupported(name)) for name in _UNSUPPORTED),
        ]


def _unsupported(name: str) -> Verb:
    def refuse(request: Any) -> Any:  # noqa: ARG001
        raise Unsupported(f"'{name}' is not supported by this version of tpx")

    return refuse
