"""The model repository over gRPC: what there is, loading and unloading."""

from typing import Any

from tpx.errors import InvalidRequest, Unsupported
from tpx.protocol import messages
from tpx.serving.dataplane import DataPlane
from tpx.serving.frontends.grpc_verbs import Rpc, rpc_later


class GrpcControl:
    """Index, load and unload."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane

    def rpcs(self) -> list[Rpc]:
        tasks, explicit = self._plane.control.tasks, self._plane.control.check_explicit
        return [
            rpc_later("RepositoryIndex", "model-repository", self._index, tasks),
            rpc_later("RepositoryModelLoad", "model-repository", self._load, tasks, explicit),
            rpc_later("RepositoryModelUnload", "model-repository", self._unload, tasks, explicit),
        ]

    async def _index(self, request: Any) -> Any:
        _refuse_repository(request)
        response = messages.RepositoryIndexResponse()
        plane = self._plane
        for entry in plane.index(ready_only=True) if request.ready else await plane.complete_index():
            response.models.add(
                name=entry.name, version=entry.version, state=entry.state, reason=entry.reason
            )
        return response

    async def _load(self, request: Any) -> Any:
        _refuse_repository(request)
        parameters = {key: _value(parameter) for key, parameter in request.parameters.items()}
        await self._plane.load(request.model_name, parameters)
        return messages.RepositoryModelLoadResponse()

    async def _unload(self, request: Any) -> Any:
        _refuse_repository(request)
        dependents = False
        for key, parameter in request.parameters.items():
            if key != "unload_dependents":
                raise InvalidRequest(f"unrecognized unload parameter '{key}'.")
            if parameter.WhichOneof("parameter_choice") != "bool_param":
                raise InvalidRequest(
                    "invalid value type for 'unload_dependents' parameter, expected bool_param."
                )
            dependents = parameter.bool_param
        await self._plane.unload(request.model_name, unload_dependents=dependents)
        return messages.RepositoryModelUnloadResponse()


def _value(parameter: Any) -> Any:
    choice = parameter.WhichOneof("parameter_choice")
    return None if choice is None else getattr(parameter, choice)


def _refuse_repository(request: Any) -> None:
    if request.repository_name:
        raise Unsupported("'repository_name' specification is not supported")
