"""The model repository over gRPC: what there is."""

from typing import Any

from tpx.errors import NotReady, Unsupported
from tpx.protocol import messages
from tpx.serving.dataplane import DataPlane
from tpx.serving.frontends.grpc_verbs import Rpc, rpc


class GrpcControl:
    """Index, load and unload."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane

    def rpcs(self) -> list[Rpc]:
        return [
            rpc("RepositoryIndex", "model-repository", self._index),
            rpc("RepositoryModelLoad", "model-repository", _no_model_control),
            rpc("RepositoryModelUnload", "model-repository", _no_model_control),
        ]

    def _index(self, request: Any) -> Any:
        if request.repository_name:
            raise Unsupported("'repository_name' specification is not supported")
        response = messages.RepositoryIndexResponse()
        for entry in self._plane.index(ready_only=request.ready):
            response.models.add(
                name=entry.name, version=entry.version, state=entry.state, reason=entry.reason
            )
        return response


def _no_model_control(request: Any) -> Any:
    if request.repository_name:
        raise Unsupported("'repository_name' specification is not supported")
    raise NotReady("explicit model load / unload is not allowed if polling is enabled")
