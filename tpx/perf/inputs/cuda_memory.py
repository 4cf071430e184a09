"""Memory of the first GPU that a server on the same machine opens by CUDA's interprocess communication."""

import ctypes
import mmap
import os

from tpx.cuda_driver import LIBRARY, CudaDriver, CudaError
from tpx.errors import MeasurementError, Unsupported, UsageError
from tpx.perf.clients.base import Region
from tpx.protocol.tensors import Buffer

DEVICE = 0
HANDLE_BYTES = 64


class _IpcHandle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_char * HANDLE_BYTES),)


class CudaMemory:
    """Implements Memory: gathered in memory of this machine, and copied when its size is known."""

    def __init__(self, name: str, library: str = LIBRARY) -> None:
        """Raises UsageError on a machine without a driver or a GPU."""
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
        view = memoryview(data).cast("B")
        while len(view):
            count = os.pwrite(self._fd, view, offset)
            view, offset = view[count:], offset + count

    def region(self, byte_size: int) -> Region:
        os.ftruncate(self._fd, byte_size)
        try:
            with mmap.mmap(self._fd, byte_size) as host, self._driver.on(DEVICE):
                handle = self._copied(host, byte_size)
        except (CudaError, OSError) as exc:
            raise MeasurementError(
                f"--shared-memory cuda: {byte_size} bytes cannot be shared: {exc}"
            ) from exc
        return Region(name=self._name, byte_size=byte_size, handle=handle, device=DEVICE)

    def _copied(self, host: mmap.mmap, byte_size: int) -> bytes:
        driver, address, handle = self._driver, ctypes.c_uint64(), _IpcHandle()
        driver.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(byte_size))
        self._address = address.value
        source = ctypes.c_char.from_buffer(host)
        try:
            driver.call("cuMemcpyHtoD_v2", address, ctypes.byref(source), ctypes.c_size_t(byte_size))
            # the copy returns when it has taken the data; the server must not look before they are there
            driver.call("cuCtxSynchronize")
            driver.call("cuIpcGetMemHandle", ctypes.byref(handle), address)
        finally:
            del source  # or the mapping could not be closed
        return bytes(handle)

    def registered(self) -> None:
        """The handle has no name that could be taken away."""

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        address, self._address = self._address, 0
        if address:
            with self._driver.on(DEVICE):
                self._driver.call("cuMemFree_v2", ctypes.c_uint64(address))
