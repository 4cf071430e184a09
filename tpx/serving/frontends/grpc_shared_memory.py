"""Registering shared memory over gRPC."""

from dataclasses import asdict
from typing import Any

from tpx.protocol import messages
from tpx.serving.dataplane import DataPlane
from tpx.serving.frontends.grpc_verbs import Rpc, rpc
from tpx.serving.shared_memory.regions import CudaRegion, SystemRegion


class GrpcSharedMemory:
    """Status, register and unregister, of system and of CUDA shared memory."""

    def __init__(self, plane: DataPlane) -> None:
        self._regions = plane.shared_memory

    def rpcs(self) -> list[Rpc]:
        verbs = {
            "SystemSharedMemoryStatus": self._system_status,
            "SystemSharedMemoryRegister": self._system_register,
            "SystemSharedMemoryUnregister": self._system_unregister,
            "CudaSharedMemoryStatus": self._cuda_status,
            "CudaSharedMemoryRegister": self._cuda_register,
            "CudaSharedMemoryUnregister": self._cuda_unregister,
        }
        return [rpc(name, "shared-memory", verb) for name, verb in verbs.items()]

    def _system_status(self, request: Any) -> Any:
        response = messages.SystemSharedMemoryStatusResponse()
        for region in self._regions.status(request.name, SystemRegion):
            response.regions[region.name].MergeFrom(response.RegionStatus(**asdict(region)))
        return response

    def _system_register(self, request: Any) -> Any:
        self._regions.register_system(
            SystemRegion(
                name=request.name, key=request.key, offset=request.offset, byte_size=request.byte_size
            )
        )
        return messages.SystemSharedMemoryRegisterResponse()

    def _system_unregister(self, request: Any) -> Any:
        self._regions.unregister(request.name, SystemRegion)
        return messages.SystemSharedMemoryUnregisterResponse()

    def _cuda_status(self, request: Any) -> Any:
        response = messages.CudaSharedMemoryStatusResponse()
        for region in self._regions.status(request.name, CudaRegion):
            response.regions[region.name].MergeFrom(response.RegionStatus(**asdict(region)))
        return response

    def _cuda_register(self, request: Any) -> Any:
        region = CudaRegion(name=request.name, device_id=request.device_id, byte_size=request.byte_size)
        self._regions.register_cuda(region, request.raw_handle)
        return messages.CudaSharedMemoryRegisterResponse()

    def _cuda_unregister(self, request: Any) -> Any:
        self._regions.unregister(request.name, CudaRegion)
        return messages.CudaSharedMemoryUnregisterResponse()
