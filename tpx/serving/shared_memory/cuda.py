"""CUDA shared memory: GPU memory of another process, opened by its IPC handle through the CUDA driver."""

import ctypes
import logging
from collections.abc import Callable

import numpy as np

from tpx.cuda_driver import LIBRARY, CudaDriver
from tpx.errors import InvalidRequest, Unsupported
from tpx.protocol.tensors import Buffer

log = logging.getLogger(__name__)

HANDLE_BYTES = 64
"""The size of a cudaIpcMemHandle_t."""

_IPC_LAZY_ENABLE_PEER_ACCESS = 1


class _IpcHandle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_char * HANDLE_BYTES),)


class CudaRegionMemory:
    """An open IPC handle on a device, closed with its last reference."""

    __slots__ = ("_address", "_device", "_driver")

    def __init__(self, driver: CudaDriver, raw_handle: bytes, device: int, byte_size: int) -> None:
        """Open the handle. Raises InvalidRequest if it cannot be opened here, or is smaller than
        `byte_size`.
        """
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
                remaining = base.value + size.value - address.value
                if remaining < byte_size:
                    raise InvalidRequest(
                        f"the allocation has {remaining} bytes, {byte_size} were to be registered"
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

    def read_into(self, memory: memoryview, offset: int) -> None:
        size = len(memory)
        if size:
            with self._driver.on(self._device):
                self._driver.call(
                    "cuMemcpyDtoH_v2",
                    _get_host_pointer(memory),
                    self._compute_address(offset),
                    ctypes.c_size_t(size),
                )

    def write(self, offset: int, data: Buffer) -> None:
        if not len(data):
            return
        with self._driver.on(self._device):
            self._driver.call(
                "cuMemcpyHtoD_v2",
                self._compute_address(offset),
                _get_host_pointer(data),
                ctypes.c_size_t(len(data)),
            )
            # the copy may return before the data has arrived, and the client must not see old data; models
            # compute on streams of their own, and are not waited for
            self._driver.call("cuStreamSynchronize", ctypes.c_void_p(None))

    def gpu_address(self, offset: int) -> int:
        return self._address + offset

    def _compute_address(self, offset: int) -> ctypes.c_uint64:
        return ctypes.c_uint64(self.gpu_address(offset))


def _get_host_pointer(buffer: Buffer) -> ctypes.c_void_p:
    return ctypes.c_void_p(np.frombuffer(buffer, np.uint8).ctypes.data)


def opener(path: str = LIBRARY) -> Callable[[bytes, int, int], CudaRegionMemory]:
    """Return a function that opens handles with the driver, which is loaded on first use.

    Without a GPU every call raises Unsupported; the reason is logged once.
    """
    driver: CudaDriver | None = None
    missing: str = ""

    def open_handle(raw_handle: bytes, device: int, byte_size: int) -> CudaRegionMemory:
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
        return CudaRegionMemory(driver, raw_handle, device, byte_size)

    return open_handle
