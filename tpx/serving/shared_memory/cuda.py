"""CUDA shared memory: GPU memory of another process, opened by its IPC handle through the CUDA driver.

Only the driver library is needed, which every machine with a GPU has; no toolkit and no Python package.
"""

import ctypes
from collections.abc import Callable

import numpy as np

from tpx.errors import InvalidRequest, Unsupported
from tpx.protocol.buffers import aligned
from tpx.protocol.tensors import Buffer

_IPC_LAZY_ENABLE_PEER_ACCESS = 1
_SUCCESS = 0


class _IpcHandle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_char * 64),)


class CudaDriver:
    """The functions of libcuda that are needed, each of which raises InvalidRequest where it fails."""

    def __init__(self) -> None:
        """Raises Unsupported on a machine without a driver or a GPU."""
        try:
            self._library = ctypes.CDLL("libcuda.so.1")
        except OSError as exc:
            raise Unsupported(f"no CUDA driver: {exc}") from exc
        code = self._library.cuInit(0)
        if code != _SUCCESS:
            raise Unsupported(f"the CUDA driver does not start: {self._name(code)}")
        self._contexts: dict[int, ctypes.c_void_p] = {}

    def call(self, function: str, *arguments: object) -> None:
        code = getattr(self._library, function)(*arguments)
        if code != _SUCCESS:
            raise InvalidRequest(f"{function} failed: {self._name(code)}")

    def enter(self, device: int) -> None:
        """Make the primary context of a device current in this thread."""
        context = self._contexts.get(device)
        if context is None:
            context = ctypes.c_void_p()
            self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), ctypes.c_int(device))
            self._contexts[device] = context
        self.call("cuCtxSetCurrent", context)

    def _name(self, code: int) -> str:
        text = ctypes.c_char_p()
        self._library.cuGetErrorName(code, ctypes.byref(text))
        return (text.value or b"CUDA error %d" % code).decode()


class CudaMemory:
    """An open IPC handle on a device."""

    def __init__(self, driver: CudaDriver, raw_handle: bytes, device: int, byte_size: int) -> None:
        """Raises InvalidRequest for a handle that cannot be opened here, or with less than these bytes."""
        self._driver = driver
        self._device = device
        self._address = ctypes.c_uint64()
        driver.enter(device)
        handle = _IpcHandle.from_buffer_copy(raw_handle)
        flags = ctypes.c_uint(_IPC_LAZY_ENABLE_PEER_ACCESS)
        driver.call("cuIpcOpenMemHandle_v2", ctypes.byref(self._address), handle, flags)
        base, size = ctypes.c_uint64(), ctypes.c_size_t()
        driver.call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), self._address)
        if base.value + size.value - self._address.value < byte_size:
            raise InvalidRequest(
                f"the CUDA allocation has {size.value} bytes, {byte_size} were to be registered"
            )

    def __del__(self) -> None:
        if self._address.value:
            self._driver.enter(self._device)
            self._driver.call("cuIpcCloseMemHandle", self._address)

    def read(self, offset: int, size: int) -> Buffer:
        buffer = aligned(size)
        self._driver.enter(self._device)
        target = (ctypes.c_char * size).from_buffer(buffer)
        self._driver.call("cuMemcpyDtoH_v2", target, self._at(offset), ctypes.c_size_t(size))
        return buffer

    def write(self, offset: int, data: Buffer) -> None:
        self._driver.enter(self._device)
        source = np.frombuffer(data, np.uint8)
        size = ctypes.c_size_t(source.nbytes)
        self._driver.call("cuMemcpyHtoD_v2", self._at(offset), ctypes.c_void_p(source.ctypes.data), size)

    def _at(self, offset: int) -> ctypes.c_uint64:
        return ctypes.c_uint64(self._address.value + offset)


def opener() -> Callable[[bytes, int, int], CudaMemory]:
    """Opens handles with the driver, which is loaded when the first one comes. Raises Unsupported then."""
    driver: CudaDriver | None = None

    def open_handle(raw_handle: bytes, device: int, byte_size: int) -> CudaMemory:
        nonlocal driver
        if driver is None:
            driver = CudaDriver()
        return CudaMemory(driver, raw_handle, device, byte_size)

    return open_handle
