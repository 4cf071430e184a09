"""Tensors in memory shared with the server: written once, registered under unique names, and
unregistered by those names only.
"""

import asyncio
import ctypes
import logging
import math
import mmap
import os
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

from tpx.cuda_driver import LIBRARY, CudaDriver, CudaError
from tpx.errors import MeasurementError, TpxError, Unsupported, UsageError, WireError
from tpx.perf.clients.base import Control, Region, Registrar
from tpx.perf.clients.model import ModelDescription
from tpx.perf.inputs.base import SharedMemoryKind
from tpx.protocol.datatypes import BY_NAME
from tpx.protocol.tensors import Buffer, Tensor
from tpx.protocol.v2 import RequestedOutput, SharedMemoryRange

log = logging.getLogger(__name__)

DIRECTORY = Path("/dev/shm")
ALIGNMENT = 64
PREFIX = "tpx_perf_"
ATTEMPTS = 20
RETRY_S = 0.1
CLOSING_S = 5.0
"""Maximum time for which an interrupted run waits for the server to unregister its regions."""


class ShareableMemory(Protocol):
    """Memory that a server can open, filled before it is registered."""

    def write(self, offset: int, data: Buffer) -> None:
        """Copy `data` to `offset`. Raises UsageError if it does not fit."""

    def region(self, byte_size: int) -> Region:
        """Return the region to register, after the last write. Raises UsageError if it does not fit."""

    def registered(self) -> None:
        """Note that the server has opened the region."""

    def close(self) -> None:
        """Free the memory."""


class SystemMemory:
    """Implements ShareableMemory with a file in /dev/shm.

    The file is unlinked once the server has opened it, so that nothing remains however this process
    ends.
    """

    def __init__(self, name: str, directory: Path = DIRECTORY) -> None:
        self._name = name
        self._path = directory / name
        try:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as exc:
            raise UsageError(f"--shared-memory: cannot create {self._path}: {exc.strerror}") from exc

    def write(self, offset: int, data: Buffer) -> None:
        try:
            _write_all(self._fd, offset, data)
        except OSError as exc:
            raise self._make_full_error(offset + len(data), exc) from exc

    def region(self, byte_size: int) -> Region:
        try:
            # allocate now: on a full /dev/shm, later writes of the server would end in SIGBUS
            os.posix_fallocate(self._fd, 0, byte_size)
        except OSError as exc:
            raise self._make_full_error(byte_size, exc) from exc
        return Region(name=self._name, byte_size=byte_size, key=f"/{self._name}")

    def registered(self) -> None:
        self._path.unlink(missing_ok=True)

    def close(self) -> None:
        self._path.unlink(missing_ok=True)
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _make_full_error(self, size: int, error: OSError) -> UsageError:
        return UsageError(
            f"--shared-memory: {self._path} cannot hold {size} bytes: {error.strerror}; use fewer steps, or "
            "a larger /dev/shm"
        )


def _write_all(fd: int, offset: int, data: Buffer) -> None:
    view = memoryview(data).cast("B")
    while len(view):
        count = os.pwrite(fd, view, offset)
        view, offset = view[count:], offset + count


class TensorRegions:
    """One region with the inputs of all requests, and one for outputs, which all requests overwrite."""

    def __init__(self, registrar: Registrar, kind: SharedMemoryKind, output_bytes: int) -> None:
        """`output_bytes` is the space reserved for an output of unknown size."""
        self._registrar = registrar
        self._kind = kind
        self._output_bytes = output_bytes
        prefix = f"{PREFIX}{secrets.token_hex(8)}"
        self._names = {"inputs": f"{prefix}_inputs", "outputs": f"{prefix}_outputs"}
        self._memory: dict[str, ShareableMemory] = {}
        self._sizes = {"inputs": 0, "outputs": 0}
        self._registered: list[Region] = []

    def place_inputs(self, tensors: Sequence[Tensor]) -> Mapping[str, SharedMemoryRange]:
        """Write the inputs of a request and return their locations; empty inputs stay in the request."""
        places = {t.name: self._reserve_range("inputs", len(t.data)) for t in tensors if len(t.data)}
        for tensor in tensors:
            if tensor.name in places:
                self._memory["inputs"].write(places[tensor.name].offset, tensor.data)
        return places

    def place_outputs(
        self, model: ModelDescription, wanted: Sequence[RequestedOutput], batch_size: int
    ) -> tuple[RequestedOutput, ...]:
        """Reserve space for each output, or for those that are `wanted`, according to its shape."""
        names = [output.name for output in wanted]
        out = []
        for spec in model.outputs:
            if names and spec.name not in names:
                continue
            size = BY_NAME[spec.datatype].size if spec.datatype in BY_NAME else 0
            count = math.prod(spec.shape) * (batch_size if model.max_batch_size else 1)
            unknown = -1 in spec.shape or not size
            place = self._reserve_range("outputs", self._output_bytes if unknown else count * size)
            out.append(RequestedOutput(name=spec.name, shared_memory=place))
        return tuple(out)

    async def publish(self) -> None:
        """Register the regions. Raises MeasurementError with the server's message if it refuses."""
        for part, memory in self._memory.items():
            region = memory.region(self._sizes[part])
            await self._registrar.register(region)
            self._registered.append(region)
            memory.registered()

    async def close(self) -> None:
        """Unregister the regions and free the memory, even if cancelled."""
        work = asyncio.ensure_future(self._unregister_regions())
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            await asyncio.wait([work], timeout=CLOSING_S)
            raise
        finally:
            for memory in self._memory.values():
                memory.close()
            self._memory.clear()

    async def _unregister_regions(self) -> None:
        """Unregister the regions; servers refuse while an abandoned request is in flight, so retry."""
        while self._registered:
            region = self._registered.pop()
            for attempt in range(1, ATTEMPTS + 1):
                try:
                    await self._registrar.unregister(region)
                    break
                except TpxError as exc:
                    # without a connection, another attempt cannot succeed
                    if attempt == ATTEMPTS or isinstance(exc, WireError):
                        log.warning("the region '%s' stays registered: %s", region.name, exc.message)
                        break
                    await asyncio.sleep(RETRY_S)

    def _reserve_range(self, part: str, size: int) -> SharedMemoryRange:
        if part not in self._memory:
            memory = CudaMemory if self._kind == "cuda" else SystemMemory
            self._memory[part] = memory(self._names[part])
        offset = self._sizes[part]
        self._sizes[part] = offset + -(-max(size, 1) // ALIGNMENT) * ALIGNMENT
        return SharedMemoryRange(region=self._names[part], offset=offset, byte_size=size)


@asynccontextmanager
async def shared_tensors(
    control: Control, kind: SharedMemoryKind, output_bytes: int
) -> AsyncIterator[TensorRegions | None]:
    """Provide regions for shared tensors until the context ends; None for the kind `none`."""
    if kind == "none":
        yield None
        return
    if not isinstance(control, Registrar):
        raise UsageError("--shared-memory: only servers of the v2 protocol have shared memory")
    shared = TensorRegions(control, kind, output_bytes)
    try:
        yield shared
    finally:
        await shared.close()


DEVICE = 0
HANDLE_BYTES = 64


class _GpuMemoryHandle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_char * HANDLE_BYTES),)


class CudaMemory:
    """Implements ShareableMemory on the first GPU, which a server on this machine opens by CUDA IPC.

    Data is gathered in host memory, and copied to the GPU once its size is known.
    """

    def __init__(self, name: str, library: str = LIBRARY) -> None:
        """Raise UsageError on a machine without a driver or a GPU."""
        self._name = name
        self._address = 0
        self._fd = -1
        try:
            self._driver = CudaDriver(library)
        except Unsupported as exc:
            raise UsageError(
                f"--shared-memory cuda: {exc.message}; this machine needs an NVIDIA GPU and its driver"
            ) from exc
        self._fd = os.memfd_create(name, os.MFD_CLOEXEC)

    def write(self, offset: int, data: Buffer) -> None:
        _write_all(self._fd, offset, data)

    def region(self, byte_size: int) -> Region:
        os.ftruncate(self._fd, byte_size)
        try:
            with mmap.mmap(self._fd, byte_size) as host, self._driver.on(DEVICE):
                handle = self._copy_to_gpu(host, byte_size)
        except (CudaError, OSError) as exc:
            raise MeasurementError(
                f"--shared-memory cuda: {byte_size} bytes cannot be shared: {exc}"
            ) from exc
        return Region(name=self._name, byte_size=byte_size, handle=handle, device=DEVICE)

    def _copy_to_gpu(self, host: mmap.mmap, byte_size: int) -> bytes:
        driver, address, handle = self._driver, ctypes.c_uint64(), _GpuMemoryHandle()
        driver.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(byte_size))
        self._address = address.value
        source = ctypes.c_char.from_buffer(host)
        try:
            driver.call("cuMemcpyHtoD_v2", address, ctypes.byref(source), ctypes.c_size_t(byte_size))
            # the copy may return before the data is on the GPU, where the server reads it
            driver.call("cuStreamSynchronize", ctypes.c_void_p(None))
            driver.call("cuIpcGetMemHandle", ctypes.byref(handle), address)
        finally:
            del source  # a mapping with exported buffers cannot be closed
        return bytes(handle)

    def registered(self) -> None:
        """Do nothing: a handle has no file to unlink."""

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        address, self._address = self._address, 0
        if address:
            with self._driver.on(DEVICE):
                self._driver.call("cuMemFree_v2", ctypes.c_uint64(address))
