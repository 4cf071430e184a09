"""Registering regions of shared memory with a server, over either protocol."""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

from tpx.errors import MeasurementError, UsageError
from tpx.perf.clients.base import Control
from tpx.perf.clients.http_control import HttpControl, error_text

if TYPE_CHECKING:
    from tpx.perf.clients.grpc_control import GrpcControl


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """Shared memory that a server can open: a file of /dev/shm by its `key`, or a GPU's memory by the
    `handle` of CUDA's interprocess communication."""

    name: str
    byte_size: int
    key: str = ""
    handle: bytes = b""
    device: int = 0

    @property
    def kind(self) -> str:
        return "cuda" if self.handle else "system"


class Registrar(Protocol):
    """Tells a server of regions. Raises MeasurementError with its words where it refuses."""

    async def register(self, region: Region) -> None: ...

    async def unregister(self, region: Region) -> None:
        """Of this region only, never of all."""


def registrar_of(control: Control) -> Registrar:
    """What registers regions with the server of a control. Raises UsageError where there is none."""
    if isinstance(control, HttpControl):
        return HttpRegistrar(control)
    from tpx.perf.clients.grpc_control import GrpcControl  # late: HTTP needs no gRPC

    if isinstance(control, GrpcControl):
        return GrpcRegistrar(control)
    raise UsageError("--shared-memory: only servers of the v2 protocol have shared memory")


class HttpRegistrar:
    """Implements Registrar."""

    def __init__(self, control: HttpControl) -> None:
        self._control = control

    async def register(self, region: Region) -> None:
        document: dict[str, Any] = {"byte_size": region.byte_size}
        if region.handle:
            handle = {"b64": base64.b64encode(region.handle).decode()}
            document |= {"raw_handle": handle, "device_id": region.device}
        else:
            document |= {"key": region.key, "offset": 0}
        await self._post(region, "register", document)

    async def unregister(self, region: Region) -> None:
        await self._post(region, "unregister", {})

    async def _post(self, region: Region, verb: str, document: Mapping[str, Any]) -> None:
        path = f"/v2/{region.kind}sharedmemory/region/{quote(region.name, safe='')}/{verb}"
        response = await self._control.fetch(path, json.dumps(document).encode())
        if response.status != 200:
            raise MeasurementError(f"failed to {verb} shared memory: {error_text(response)}")


class GrpcRegistrar:
    """Implements Registrar."""

    def __init__(self, control: "GrpcControl") -> None:
        self._control = control

    async def register(self, region: Region) -> None:
        from tpx.protocol import messages  # late

        name, size = region.name, region.byte_size
        request: Any
        if region.handle:
            request = messages.CudaSharedMemoryRegisterRequest(
                name=name, byte_size=size, raw_handle=region.handle, device_id=region.device
            )
        else:
            request = messages.SystemSharedMemoryRegisterRequest(name=name, byte_size=size, key=region.key)
        await self._ask(region, "Register", request)

    async def unregister(self, region: Region) -> None:
        from tpx.protocol import messages  # late

        verb = f"{region.kind.capitalize()}SharedMemoryUnregisterRequest"
        await self._ask(region, "Unregister", getattr(messages, verb)(name=region.name))

    async def _ask(self, region: Region, verb: str, request: Any) -> None:
        from tpx.protocol import messages  # late

        method = f"{region.kind.capitalize()}SharedMemory{verb}"
        response = getattr(messages, method + "Response")
        await self._control.ask(method, request, response, f"{verb.lower()} shared memory")
