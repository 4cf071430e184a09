"""CUDA shared memory: GPU memory of another process, opened by its IPC handle through the CUDA driver.

Only the driver library is needed, which every machine with a GPU has; no toolkit and no Python package.
"""

import ctypes
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from tpx.errors import InvalidRequest, Unsupported
from tpx.protocol.buffers import aligned
from tpx.protocol.tensors import Buffer

log = logging.getLogger(__name__)

HANDLE_BYTES = 64
"""The size of a cudaIpcMemHandle_t."""

_IPC_LAZY_ENABLE_PEER_ACCESS = 1
_SUCCESS = 0


class _IpcHandle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_char * HANDLE_BYTES),)


class CudaDriver:
    """The functions of libcuda that are needed, each of which raises InvalidRequest where it fails."""

    def __init__(self, path: str) -> None:
        """Raises Unsupported on a machine without a driver or a GPU."""
        try:
            self._library = ctypes.CDLL(path)
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

    @contextmanager
    def on(self, device: int) -> Iterator[None]:
        """Work on a device: its primary context is this thread's until the end, then again the one before."""
        self.call("cuCtxPushCurrent_v2", self._context(device))
        try:
            yield
        finally:
            self.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def _context(self, device: int) -> ctypes.c_void_p:
        context = self._contexts.get(device)
        if context is None:
            handle, context = ctypes.c_int(), ctypes.c_void_p()
            self.call("cuDeviceGet", ctypes.byref(handle), ctypes.c_int(device))
            self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), handle)
            self._contexts[device] = context
        return context

    def _name(self, code: int) -> str:
        text = ctypes.c_char_p()
        self._library.cuGetErrorName(code, ctypes.byref(text))
        return (text.value or b"CUDA error %d" % code).decode()


class CudaMemory:
    """An open IPC handle on a device; it closes with the last reference."""

    __slots__ = ("_address", "_device", "_driver")

    def __init__(self, driver: CudaDriver, raw_handle: bytes, device: int, byte_size: int) -> None:
        """Raises InvalidRequest for a handle that cannot be opened here, or with less than these bytes."""
        self._driver = driver
        self._device = device
        self._address = 0
        handle = _IpcHandle.from_buffer_copy(raw_handle)
        address, base, size = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_size_t()
        flags = ctypes.c_uint(_IPC_LAZY_ENABLE_PEER_ACCESS)
        with driver.on(device):
            driver.call("cuIpcOpenMemHandle_v2", ctypes.byref(address), handle, flags)
            self._address = address.value
            try:
                driver.call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), address)
                there = base.value + size.value - address.value
                if there < byte_size:
                    raise InvalidRequest(
                        f"the allocation has {there} bytes, {byte_size} were to be registered"
                    )
            except InvalidRequest:
                self._close()
                raise

    def __del__(self) -> None:
        self._close()

    def _close(self) -> None:
        address, self._address = self._address, 0
        if not address:
            return
        try:
            with self._driver.on(self._device):
                self._driver.call("cuIpcCloseMemHandle", ctypes.c_uint64(address))
        except InvalidRequest as exc:
            log.warning("closing CUDA shared memory: %s", exc.message)

    def read(self, offset: int, size: int) -> Buffer:
        buffer = aligned(size)
        if size:
            with self._driver.on(self._device):
                self._driver.call("cuMemcpyDtoH_v2", _host(buffer), self._at(offset), ctypes.c_size_t(size))
        return buffer

    def write(self, offset: int, data: Buffer) -> None:
        if not len(data):
            return
        with self._driver.on(self._device):
            self._driver.call("cuMemcpyHtoD_v2", self._at(offset), _host(data), ctypes.c_size_t(len(data)))
            # the copy returns when it has taken the data; the client must not look before they have arrived
            self._driver.call("cuCtxSynchronize")

    def _at(self, offset: int) -> ctypes.c_uint64:
        return ctypes.c_uint64(self._address + offset)


def _host(buffer: Buffer) -> ctypes.c_void_p:
    return ctypes.c_void_p(np.frombuffer(buffer, np.uint8).ctypes.data)


def opener(path: str = "libcuda.so.1") -> Callable[[bytes, int, int], CudaMemory]:
    """Opens handles with the driver, which is loaded when the first one comes.

    On a machine without a GPU every call raises Unsupported; the log says once what is missing.
    """
    driver: CudaDriver | None = None
    missing: str = ""

    def open_handle(raw_handle: bytes, device: int, byte_size: int) -> CudaMemory:
        nonlocal driver, missing
        if missing:
            raise Unsupported(missing)
        if driver is None:
            try:
                driver = CudaDriver(path)
            except Unsupported as exc:
                missing = exc.message
                log.info("CUDA shared memory can not be used: %s", missing)
                raise
        return CudaMemory(driver, raw_handle, device, byte_size)

    return open_handle
