"""All gRPC verbs except inference: health, metadata, statistics, repository, shared memory, settings."""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any, TypeAlias

import msgspec
from google.protobuf.message import Message

from tpx.protocol import messages
from tpx.protocol.v2 import LoadParameter
from tpx.serving.dataplane import DataPlane
from tpx.serving.frontends.grpc_verbs import Rpc, Verb, rpc, rpc_later
from tpx.serving.offload import Coalesced, in_steps
from tpx.serving.shared_memory.regions import CudaRegion, Region, SystemRegion

_Parameter: TypeAlias = "messages.ModelRepositoryParameter | messages.LogSettingsRequest.SettingValue"
_StatusRequest: TypeAlias = (
    "messages.SystemSharedMemoryStatusRequest | messages.CudaSharedMemoryStatusRequest"
)
_UnregisterRequest: TypeAlias = (
    "messages.SystemSharedMemoryUnregisterRequest | messages.CudaSharedMemoryUnregisterRequest"
)
_REGION_KINDS: dict[type[Region], Any] = {
    SystemRegion: messages.SystemSharedMemoryStatusResponse,
    CudaRegion: messages.CudaSharedMemoryStatusResponse,
}


class GrpcControlPlane:
    """Decodes requests, calls the data plane and encodes the results."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane
        self._every_statistic = Coalesced(self._make_statistics)
        self._indexes = {ready: Coalesced(partial(self._make_index, ready)) for ready in (False, True)}
        """The index of all versions, and that of the ready ones."""
        self._regions = {kind: Coalesced(partial(self._encode_regions, kind, "")) for kind in _REGION_KINDS}

    def rpcs(self) -> list[Rpc]:
        """Return the methods, each with its API category."""
        tasks, explicit = self._plane.tasks, lambda: self._plane.check_explicit()
        regions: dict[str, Verb] = {
            "SystemSharedMemoryRegister": self._register_system,
            "SystemSharedMemoryUnregister": partial(self._unregister_region, SystemRegion),
            "CudaSharedMemoryRegister": self._register_cuda,
            "CudaSharedMemoryUnregister": partial(self._unregister_region, CudaRegion),
        }
        return [
            rpc("ServerLive", "health", self._check_live),
            rpc_later("ServerReady", "health", self._check_ready, tasks),
            rpc_later("ModelReady", "health", self._check_model_ready, tasks),
            rpc("ServerMetadata", "metadata", self._get_server_metadata),
            rpc("ModelMetadata", "metadata", self._get_model_metadata),
            rpc("ModelConfig", "model-config", self._get_model_config),
            rpc_later("ModelStatistics", "statistics", self._get_statistics, tasks),
            rpc_later("RepositoryIndex", "model-repository", self._get_index, tasks),
            rpc_later("RepositoryModelLoad", "model-repository", self._load_model, tasks, explicit),
            rpc_later("RepositoryModelUnload", "model-repository", self._unload_model, tasks, explicit),
            *(
                rpc_later(
                    f"{word}SharedMemoryStatus",
                    "shared-memory",
                    partial(self._get_region_status, kind),
                    tasks,
                )
                for word, kind in (("System", SystemRegion), ("Cuda", CudaRegion))
            ),
            *(rpc(name, "shared-memory", verb) for name, verb in regions.items()),
            rpc("TraceSetting", "trace", self._update_trace),
            rpc("LogSettings", "logging", self._update_log),
        ]

    # health, metadata, statistics

    def _check_live(self, request: messages.ServerLiveRequest) -> Message:  # noqa: ARG002
        return messages.ServerLiveResponse(live=self._plane.live())

    async def _check_ready(self, request: messages.ServerReadyRequest) -> Message:  # noqa: ARG002
        return messages.ServerReadyResponse(ready=await self._plane.check_ready())

    async def _check_model_ready(self, request: messages.ModelReadyRequest) -> Message:
        ready = await self._plane.check_model_ready(request.name, request.version)
        return messages.ModelReadyResponse(ready=ready)

    def _get_server_metadata(self, request: messages.ServerMetadataRequest) -> Message:  # noqa: ARG002
        return messages.ServerMetadataResponse(**msgspec.to_builtins(self._plane.server_metadata()))

    def _get_model_metadata(self, request: messages.ModelMetadataRequest) -> Message:
        metadata = self._plane.model_metadata(request.name, request.version)
        return messages.ModelMetadataResponse(**msgspec.to_builtins(metadata))

    def _get_model_config(self, request: messages.ModelConfigRequest) -> Message:
        return messages.ModelConfigResponse(config=self._plane.model_config(request.name, request.version))

    async def _get_statistics(self, request: messages.ModelStatisticsRequest) -> Message | bytes:
        if not request.name:
            return await self._every_statistic.get()
        return messages.ModelStatisticsResponse(
            model_stats=self._plane.statistics(request.name, request.version)
        )

    async def _make_statistics(self) -> bytes:
        # concatenated protobuf messages merge: one message per model forms the complete one
        one = messages.ModelStatisticsResponse
        members = self._plane.statistics("", "")
        return b"".join(await in_steps(one(model_stats=[each]).SerializeToString() for each in members))

    # the model repository

    async def _get_index(self, request: messages.RepositoryIndexRequest) -> bytes:
        self._plane.refuse_repository(request.repository_name)
        return await self._indexes[request.ready].get()

    async def _make_index(self, ready: bool) -> bytes:
        response = messages.RepositoryIndexResponse()
        for each in self._plane.index(ready_only=True) if ready else await self._plane.complete_index():
            response.models.add(name=each.name, version=each.version, state=each.state, reason=each.reason)
        return response.SerializeToString()

    async def _load_model(self, request: messages.RepositoryModelLoadRequest) -> Message:
        self._plane.refuse_repository(request.repository_name)
        # copies the files
        parameters = await asyncio.to_thread(_read_parameters, request.parameters)
        await self._plane.load(request.model_name, parameters)
        return messages.RepositoryModelLoadResponse()

    async def _unload_model(self, request: messages.RepositoryModelUnloadRequest) -> Message:
        self._plane.refuse_repository(request.repository_name)
        parameters = _read_parameters(request.parameters)
        wrong_type = "invalid value type for 'unload_dependents' parameter, expected bool_param."
        await self._plane.unload(request.model_name, parameters, wrong_type)
        return messages.RepositoryModelUnloadResponse()

    # shared memory

    async def _get_region_status(self, kind: type[Region], request: _StatusRequest) -> bytes:
        return await (self._encode_regions(kind, request.name) if request.name else self._regions[kind].get())

    async def _encode_regions(self, kind: type[Region], name: str) -> bytes:
        regions = self._plane.shared_memory.status(name, kind)
        return b"".join(await in_steps(_encode_region(_REGION_KINDS[kind](), region) for region in regions))

    def _register_system(self, request: messages.SystemSharedMemoryRegisterRequest) -> Message:
        region = SystemRegion(
            name=request.name, key=request.key, offset=request.offset, byte_size=request.byte_size
        )
        self._plane.shared_memory.register_system(region)
        return messages.SystemSharedMemoryRegisterResponse()

    def _register_cuda(self, request: messages.CudaSharedMemoryRegisterRequest) -> Message:
        region = CudaRegion(name=request.name, device_id=request.device_id, byte_size=request.byte_size)
        self._plane.shared_memory.register_cuda(region, request.raw_handle)
        return messages.CudaSharedMemoryRegisterResponse()

    def _unregister_region(self, kind: type[Region], request: _UnregisterRequest) -> Message:
        self._plane.shared_memory.unregister(request.name, kind)
        if kind is SystemRegion:
            return messages.SystemSharedMemoryUnregisterResponse()
        return messages.CudaSharedMemoryUnregisterResponse()

    # settings

    def _update_trace(self, request: messages.TraceSettingRequest) -> Message:
        """Update the trace settings and return them; an empty list of values clears a setting."""
        given = {name: list(setting.value) or None for name, setting in request.settings.items()}
        response = messages.TraceSettingResponse()
        for name, texts in self._plane.trace_setting(request.model_name, given).items():
            response.settings[name].value.extend(texts)
        return response

    def _update_log(self, request: messages.LogSettingsRequest) -> Message:
        if request.settings:
            given = {name: _read_value(setting) for name, setting in request.settings.items()}
            self._plane.logs.change(given, "GRPC")
        response = messages.LogSettingsResponse()
        for name, value in msgspec.to_builtins(self._plane.logs.settings).items():
            setting = response.settings[name]
            if isinstance(value, bool):
                setting.bool_param = value
            elif isinstance(value, int):
                setting.uint32_param = value
            else:
                setting.string_param = value
        return response


def _encode_region(response: Any, region: Region) -> bytes:
    """Return the entry of one region. Concatenated entries form the complete message."""
    response.regions[region.name].MergeFrom(response.RegionStatus(**msgspec.to_builtins(region)))
    data: bytes = response.SerializeToString()
    return data


def _read_parameters(
    parameters: Mapping[str, messages.ModelRepositoryParameter],
) -> dict[str, LoadParameter]:
    return {key: _read_value(parameter) for key, parameter in parameters.items()}


def _read_value(parameter: _Parameter) -> Any:
    """Return the value of a parameter or setting, or None if it has none."""
    choice = parameter.WhichOneof("parameter_choice")
    return None if choice is None else getattr(parameter, choice)
