"""Regions registered by clients, by name."""

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar

import msgspec

from tpx.errors import AlreadyExists, Code, InvalidRequest, NotFound, Overloaded, Unsupported
from tpx.protocol.memory_budget import MemoryBudget
from tpx.protocol.tensors import Buffer, Tensor, aligned
from tpx.protocol.v2 import HeldRegion, SharedMemoryRange
from tpx.serving.request import Bound, InferRequest, InferResponse, RequestHead
from tpx.serving.shared_memory.cuda import HANDLE_BYTES
from tpx.serving.shared_memory.system import FilledHoles, SystemRegionMemory


class RegionMemory(Protocol):
    """The memory of a region, open until the last reference is released. Ranges lie within it."""

    def read_into(self, memory: memoryview, offset: int) -> None:
        """Fill `memory` with the bytes from `offset` on. Raises InvalidRequest if they no longer exist."""

    def write(self, offset: int, data: Buffer) -> None:
        """Write bytes at `offset`. Raises InvalidRequest if they no longer fit."""

    def gpu_address(self, offset: int) -> int:
        """Return the address of the byte at `offset` in GPU memory, 0 if the region is in host memory."""


_MAX_BYTES = 2**63 - 1
_MAX_DEVICE = 2**31 - 1
_MAX_NAME = 8192
"""Maximum characters of a region's name, that of an HTTP path: names are kept and returned in the status."""
_STRINGS_LOOKED_AT = 4096
_HOLES_SHARE = 4
"""Part of the memory budget, as its inverse, that outputs may take in clients' sparse files besides."""
_UNCHARGED_BYTES = 64 << 10
"""Maximum size of inputs that the memory budget ignores, as it does bodies of one read."""


class SystemRegion(msgspec.Struct, frozen=True, kw_only=True):
    """A region of system shared memory, as in its status."""

    name: str
    key: str
    offset: int
    byte_size: int


class CudaRegion(msgspec.Struct, frozen=True, kw_only=True):
    """A region of GPU memory, as in its status."""

    name: str
    device_id: int
    byte_size: int


Region = SystemRegion | CudaRegion
Reply = Callable[[InferRequest, InferResponse], None]

_RegionT = TypeVar("_RegionT", bound=Region)
_KINDS: dict[type[object], str] = {SystemRegion: "system", CudaRegion: "CUDA"}


class SharedMemoryLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on shared memory of clients."""

    allowed: bool = True
    max_regions: int = 4096
    max_input_bytes: int = 2**31 - 1
    """Maximum bytes of all inputs of a request: they are copied, and a sparse file costs its client
    nothing.
    """


class Registration:
    """A registered region, its memory, and the number of requests in flight that use it."""

    __slots__ = ("__weakref__", "_forget", "gone", "memory", "region", "users")

    def __init__(self, region: Region, memory: RegionMemory) -> None:
        self.region = region
        self.memory = memory
        self.users = 0
        self.gone = False
        """True after it was unregistered."""
        self._forget: Callable[[], None] | None = None

    def hold(self) -> None:
        self.users += 1

    def release(self) -> None:
        self.users -= 1
        if not self.users and self._forget is not None:
            self._forget()

    def unregister(self, forget: Callable[[], None]) -> None:
        """Call `forget` when no request uses the region, now or later."""
        self._forget = forget
        if not self.users:
            forget()


class RegionPlacement:
    """Destination of an output.

    Its region stays registered while requests in flight use it (RegionsInUse); a cached head does not
    keep it open.
    """

    __slots__ = ("_extent", "reference")

    def __init__(self, registration: Registration, extent: SharedMemoryRange) -> None:
        self.reference = weakref.ref(registration)
        self._extent = extent

    @property
    def registration(self) -> Registration:
        """Return the region. Raises NotFound."""
        registration = self.reference()
        if registration is None:
            raise NotFound(f"Unable to find shared memory region: '{self._extent.region}'")
        return registration

    def put(self, output: str, data: Buffer) -> None:
        """Write an output. Raises InvalidRequest if it does not fit."""
        if len(data) > self._extent.byte_size:
            raise InvalidRequest(
                f"shared memory size specified with the request for output '{output}' "
                f"({self._extent.byte_size} bytes) should be at least {len(data)} bytes to hold the results"
            )
        self.registration.memory.write(self._extent.offset, data)


class RegionsInUse:
    """Reply of a request that uses regions: they stay registered until its last response."""

    __slots__ = ("_registrations", "_reply")

    def __init__(self, registrations: Sequence[HeldRegion], reply: Reply) -> None:
        self._registrations = registrations
        self._reply = reply
        for registration in registrations:
            registration.hold()

    def __call__(self, request: InferRequest, response: InferResponse) -> None:
        try:
            self._reply(request, response)
        finally:
            if response.final:
                self.end()

    def end(self) -> None:
        """Release the regions after the last response, or if there will be none."""
        for registration in self._registrations:
            registration.release()
        self._registrations = ()


class SharedInput:
    """Input of a request in a region, which it keeps open, and the buffer that it is copied to.

    Regions are never mapped: their client could truncate the file, and reading would end this process.
    """

    __slots__ = ("extent", "memory", "registration")

    def __init__(self, registration: Registration, extent: SharedMemoryRange, budget: MemoryBudget) -> None:
        """Reserve the region, and charge the buffer to the budget until it is freed. Raises Overloaded."""
        self.registration = registration
        self.extent = extent
        try:
            charge = budget.hold_until_freed if extent.byte_size > _UNCHARGED_BYTES else None
            self.memory = aligned(extent.byte_size, track=charge)
            """Not filled before `read`."""
        except MemoryError as exc:
            raise Overloaded(
                f"no memory for {extent.byte_size} bytes of shared memory region '{extent.region}'",
                code=Code.RESOURCE_EXHAUSTED,
            ) from exc

    @property
    def gpu_address(self) -> int:
        return self.registration.memory.gpu_address(self.extent.offset)

    def read(self) -> None:
        """Copy the data; in any thread. Raises InvalidRequest."""
        self.read_into(self.memory)

    def read_into(self, memory: memoryview) -> None:
        self.registration.memory.read_into(memory, self.extent.offset)

    def check_strings(self, name: str, model: str, count: int) -> None:
        """Raise InvalidRequest unless the data is `count` BYTES elements; very many are not checked here."""
        if count > _STRINGS_LOOKED_AT:
            return
        at, end, length = 0, len(self.memory), memoryview(bytearray(4))
        what = f"for inference input '{name}' for model '{model}'"
        for number in range(count):
            if at == end:
                raise InvalidRequest(f"expected {count} string elements {what}, got {number}")
            if end - at < 4:
                raise InvalidRequest(
                    f"incomplete string length indicator {what}, expecting 4 bytes but only {end - at} bytes "
                    "available. Please make sure the string length indicator is in one buffer."
                )
            self.registration.memory.read_into(length, self.extent.offset + at)
            size = int.from_bytes(length, "little")
            at += 4
            if size > end - at:
                raise InvalidRequest(
                    f"incomplete string data {what}, expecting {size} bytes but only {end - at} bytes "
                    "available"
                )
            at += size
        if at < end:
            raise InvalidRequest(
                f"unexpected number of string elements {count + 1} {what}, expecting {count}"
            )


class SharedHead:
    """Implements SharedTensors for a head whose inputs are all in shared memory, while its regions stay
    registered.
    """

    __slots__ = ("_extents", "_fill", "_memory", "_regions", "_size")

    def __init__(
        self,
        memory: "SharedMemory",
        inputs: Sequence[SharedInput],
        outputs: Sequence[RegionPlacement],
        fill: Callable[[RequestHead, Sequence[SharedInput]], Sequence[SharedInput]],
    ) -> None:
        """Create it; `fill` reads inputs, and returns those that the instance must read."""
        self._memory = memory
        self._extents = [each.extent for each in inputs]
        self._size = sum(extent.byte_size for extent in self._extents)
        self._regions = [
            *(weakref.ref(each.registration) for each in inputs),
            *(o.reference for o in outputs),
        ]
        """Regions of the inputs, then those of the outputs."""
        self._fill = fill

    def rebind(self, head: RequestHead) -> Bound | None:
        if not self._memory.has_room(self._size):
            return None  # it waits when it is bound again
        regions: list[Registration] = []
        for reference in self._regions:
            registration = reference()
            if registration is None or registration.gone:
                return None
            regions.append(registration)
        budget = self._memory.budget
        inputs = [
            SharedInput(region, extent, budget)
            for region, extent in zip(regions, self._extents, strict=False)  # the outputs' regions follow
        ]
        return Bound(head, [each.memory for each in inputs], regions, self._fill(head, inputs))


class SharedMemory:
    """The registered regions of both kinds, which share one namespace.

    `open_cuda` opens a CUDA IPC handle; it raises Unsupported on a machine without a GPU. Copies of inputs
    are charged to the `budget`.
    """

    def __init__(
        self,
        open_cuda: Callable[[bytes, int, int], RegionMemory],
        limits: SharedMemoryLimits | None = None,
        budget: MemoryBudget | None = None,
    ) -> None:
        self._open_cuda = open_cuda
        self._limits = limits or SharedMemoryLimits()
        self.budget = budget or MemoryBudget()
        self._holes = FilledHoles(self.budget.limit_bytes // _HOLES_SHARE)
        self._regions: dict[str, Registration] = {}

    def check_registrable(self, name: str, kind: type[Region]) -> None:
        """Raise Unsupported, InvalidRequest, AlreadyExists, Overloaded unless a region may have a name."""
        self._check_allowed()
        if not name:
            raise InvalidRequest(
                f"'region name' is necessary to register {_KINDS[kind].lower()} shared memory region"
            )
        if len(name) > _MAX_NAME:
            raise InvalidRequest(
                f"failed to register a shared memory region: its name has {len(name)} characters, and may "
                f"have {_MAX_NAME}"
            )
        if name in self._regions:
            raise AlreadyExists(f"shared memory region '{name}' already in manager")
        if len(self._regions) >= self._limits.max_regions:
            raise Overloaded(
                f"cannot register shared memory region '{name}': there are {len(self._regions)} already, the "
                "most that this server can have; unregister some",
                code=Code.RESOURCE_EXHAUSTED,
            )

    def register_system(self, region: SystemRegion) -> None:
        """Register a region of `/dev/shm`. Raises RequestError."""
        self.check_registrable(region.name, SystemRegion)
        _check_size(region)
        if not 0 <= region.offset <= _MAX_BYTES - region.byte_size:
            raise _make_region_error(region, "invalid args")
        memory = SystemRegionMemory(region.name, region.key, region.offset, region.byte_size, self._holes)
        self._regions[region.name] = Registration(region, memory)

    def register_cuda(self, region: CudaRegion, raw_handle: bytes) -> None:
        """Register GPU memory of another process by its IPC handle. Raises RequestError."""
        self.check_registrable(region.name, CudaRegion)
        _check_size(region)
        if len(raw_handle) != HANDLE_BYTES:
            raise InvalidRequest("'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t")
        if not 0 <= region.device_id <= _MAX_DEVICE:
            raise _make_region_error(region, f"there is no device {region.device_id}")
        try:
            memory = self._open_cuda(raw_handle, region.device_id, region.byte_size)
        except Unsupported as exc:
            raise InvalidRequest(
                f"failed to register CUDA shared memory region: '{region.name}', GPUs not supported"
            ) from exc
        except InvalidRequest as exc:
            raise _make_region_error(region, f"invalid args: {exc.message}") from exc
        self._regions[region.name] = Registration(region, memory)

    def unregister(self, name: str, kind: type[Region]) -> None:
        """Unregister a region, or with an empty name all of a kind; one in use after its last request.

        An unknown name is ignored. Raises Unsupported.
        """
        self._check_allowed()
        for key in [name] if name else list(self._regions):
            known = self._regions.get(key)
            if known is not None and isinstance(known.region, kind):
                known.unregister(partial(self._forget, key))

    def _forget(self, name: str) -> None:
        self._regions.pop(name).gone = True

    def status(self, name: str, kind: type[_RegionT]) -> list[_RegionT]:
        """Return a region, or with an empty name all of a kind, by name. Raises NotFound."""
        if not name:
            regions = [each.region for each in self._regions.values() if isinstance(each.region, kind)]
            return sorted(regions, key=lambda region: region.name)
        known = self._regions.get(name)
        if known is None:
            raise NotFound(f"Unable to find {_KINDS[kind].lower()} shared memory region: '{name}'")
        region = known.region
        if not isinstance(region, kind):
            raise NotFound(
                f"The region named '{name}' is registered as {_KINDS[type(region)]} shared memory, not "
                f"{_KINDS[kind]} shared memory"
            )
        return [region]

    def check_inputs(self, inputs: Sequence[tuple[Tensor, SharedMemoryRange]]) -> int:
        """Return the bytes of the inputs in shared memory. Raises NotFound, InvalidRequest."""
        for _, extent in inputs:
            self._find_registration(extent)
        total = sum(extent.byte_size for _, extent in inputs)
        if total > self._limits.max_input_bytes:
            raise InvalidRequest(
                f"inputs in shared memory have a byte_size ({total} bytes) that exceeds the maximum allowed "
                f"value of {self._limits.max_input_bytes} bytes. Use --client-shm-max-input-size to increase "
                "the limit."
            )
        if total > self.budget.limit_bytes:
            raise InvalidRequest(
                f"inputs in shared memory have a byte_size ({total} bytes) that exceeds the memory for "
                f"requests and answers, {self.budget.limit_bytes} bytes. Use --max-buffered-bytes to "
                "increase the limit."
            )
        return total

    def has_room(self, total: int) -> bool:
        """Return True if there is memory for copies of inputs of `total` bytes."""
        return total <= _UNCHARGED_BYTES or self.budget.has_room(total)

    def inputs(self, inputs: Sequence[tuple[Tensor, SharedMemoryRange]]) -> list[SharedInput]:
        """Return the inputs in shared memory, unread. Raises NotFound, InvalidRequest, Overloaded."""
        return [SharedInput(self._find_registration(extent), extent, self.budget) for _, extent in inputs]

    def placement(self, extent: SharedMemoryRange) -> RegionPlacement:
        """Return a range to write to later. Raises NotFound, InvalidRequest."""
        return RegionPlacement(self._find_registration(extent), extent)

    def _find_registration(self, extent: SharedMemoryRange) -> Registration:
        known = self._regions.get(extent.region)
        if known is None:
            raise NotFound(f"Unable to find shared memory region: '{extent.region}'")
        region = known.region
        if not 0 <= extent.offset < region.byte_size:
            raise InvalidRequest(f"Invalid offset for shared memory region: '{extent.region}'")
        if not 0 <= extent.byte_size <= region.byte_size - extent.offset:
            raise InvalidRequest(f"Invalid offset + byte size for shared memory region: '{extent.region}'")
        return known

    def _check_allowed(self) -> None:
        if not self._limits.allowed:
            raise Unsupported(
                "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
            )


def _check_size(region: Region) -> None:
    if not 0 < region.byte_size <= _MAX_BYTES:
        raise _make_region_error(region, "invalid args")


def _make_region_error(region: Region, why: str) -> InvalidRequest:
    return InvalidRequest(f"failed to register shared memory region '{region.name}': {why}")
