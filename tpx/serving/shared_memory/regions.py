"""The regions that clients have registered, by name."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tpx.errors import AlreadyExists, InvalidRequest, NotFound, Unsupported
from tpx.protocol.tensors import Buffer
from tpx.protocol.v2 import SharedMemoryRange
from tpx.serving.shared_memory.base import Memory
from tpx.serving.shared_memory.system import SystemMemory

_MAX_BYTES = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemRegion:
    """A region of system shared memory, as its status tells."""

    name: str
    key: str
    offset: int
    byte_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaRegion:
    """A region of GPU memory, as its status tells."""

    name: str
    device_id: int
    byte_size: int


_RegionT = TypeVar("_RegionT", SystemRegion, CudaRegion)
_KINDS: dict[type[object], str] = {SystemRegion: "system", CudaRegion: "CUDA"}


class Placement:
    """Where an output goes: held by its request, so that unregistering the region waits for it."""

    __slots__ = ("_memory", "_place")

    def __init__(self, memory: Memory, place: SharedMemoryRange) -> None:
        self._memory = memory
        self._place = place

    def put(self, output: str, data: Buffer) -> None:
        """Write an output. Raises InvalidRequest where it does not fit."""
        if len(data) > self._place.byte_size:
            raise InvalidRequest(
                f"shared memory size specified with the request for output '{output}' "
                f"({self._place.byte_size} bytes) should be at least {len(data)} bytes to hold the results"
            )
        self._memory.write(self._place.offset, data)


class SharedMemory:
    """The registered regions of both kinds, which share their names.

    `open_cuda` opens an IPC handle of CUDA; it raises Unsupported on a machine without a GPU.
    """

    def __init__(self, open_cuda: Callable[[bytes, int, int], Memory], *, allowed: bool = True) -> None:
        self._open_cuda = open_cuda
        self._allowed = allowed
        self._regions: dict[str, tuple[SystemRegion | CudaRegion, Memory]] = {}

    def register_system(self, region: SystemRegion) -> None:
        """Make a region of `/dev/shm` known. Raises InvalidRequest, AlreadyExists, Unsupported."""
        self._check_new(region)
        if not 0 <= region.offset <= _MAX_BYTES - region.byte_size:
            raise _invalid_arguments(region.name)
        memory = SystemMemory(region.name, region.key, region.offset, region.byte_size)
        self._regions[region.name] = region, memory

    def register_cuda(self, region: CudaRegion, raw_handle: bytes) -> None:
        """Make GPU memory of another process known by its 64-byte IPC handle. Raises InvalidRequest,
        AlreadyExists, Unsupported."""
        self._check_new(region)
        if len(raw_handle) != 64:
            raise InvalidRequest("'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t")
        try:
            memory = self._open_cuda(raw_handle, region.device_id, region.byte_size)
        except Unsupported as exc:
            raise InvalidRequest(
                f"failed to register CUDA shared memory region: '{region.name}', GPUs not supported: "
                f"{exc.message}"
            ) from exc
        self._regions[region.name] = region, memory

    def unregister(self, name: str, kind: type[SystemRegion | CudaRegion]) -> None:
        """Forget a region, or with an empty name all of a kind; requests in flight keep its memory. An
        unknown name is forgotten already. Raises InvalidRequest for a region of the other kind."""
        self._check_allowed()
        if not name:
            self._regions = {k: v for k, v in self._regions.items() if not isinstance(v[0], kind)}
        elif name in self._regions:
            self._of_kind(name, kind)
            del self._regions[name]

    def status(self, name: str, kind: type[_RegionT]) -> list[_RegionT]:
        """A region, or with an empty name all of a kind. Raises NotFound, and InvalidRequest for a region of
        the other kind."""
        if name:
            return [self._of_kind(name, kind)]
        return [region for region, _ in self._regions.values() if isinstance(region, kind)]

    def read(self, place: SharedMemoryRange) -> Buffer:
        """The bytes of a range. Raises NotFound, InvalidRequest."""
        return self._memory(place).read(place.offset, place.byte_size)

    def placement(self, place: SharedMemoryRange) -> Placement:
        """A range to write to later. Raises NotFound, InvalidRequest."""
        return Placement(self._memory(place), place)

    def _memory(self, place: SharedMemoryRange) -> Memory:
        known = self._regions.get(place.region)
        if known is None:
            raise NotFound(f"Unable to find shared memory region: '{place.region}'")
        region, memory = known
        if place.offset >= region.byte_size:
            raise InvalidRequest(f"Invalid offset for shared memory region: '{place.region}'")
        if place.byte_size > region.byte_size - place.offset:
            raise InvalidRequest(f"Invalid offset + byte size for shared memory region: '{place.region}'")
        return memory

    def _of_kind(self, name: str, kind: type[_RegionT]) -> _RegionT:
        known = self._regions.get(name)
        if known is None:
            raise NotFound(f"Unable to find {_KINDS[kind].lower()} shared memory region: '{name}'")
        region = known[0]
        if not isinstance(region, kind):
            raise InvalidRequest(
                f"The region named '{name}' is registered as {_KINDS[type(region)]} shared memory, not "
                f"{_KINDS[kind]} shared memory"
            )
        return region

    def _check_new(self, region: SystemRegion | CudaRegion) -> None:
        self._check_allowed()
        if not region.name:
            raise InvalidRequest(
                f"'region name' is necessary to register {_KINDS[type(region)]} shared memory region"
            )
        if region.name in self._regions:
            raise AlreadyExists(f"shared memory region '{region.name}' already in manager")
        if not 0 < region.byte_size <= _MAX_BYTES:
            raise _invalid_arguments(region.name)

    def _check_allowed(self) -> None:
        if not self._allowed:
            raise Unsupported(
                "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
            )


def _invalid_arguments(name: str) -> InvalidRequest:
    return InvalidRequest(f"failed to register shared memory region '{name}': invalid args")
