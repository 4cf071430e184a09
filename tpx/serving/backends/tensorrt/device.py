"""Memory and a stream on a GPU, by the CUDA driver."""

import ctypes
from typing import Any

import numpy.typing as npt

from tpx.cuda_driver import CudaDriver, CudaError
from tpx.serving.backends.tensorrt.settings import Priority

_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
_LEAST_BYTES = 256  # an address is wanted of empty tensors, too

Array = npt.NDArray[Any]


class DeviceBuffer:
    """Memory that grows with what it is asked to hold; its device is current wherever it is used."""

    def __init__(self, driver: CudaDriver) -> None:
        self._driver = driver
        self._size = 0
        self.address = 0

    def hold(self, size_bytes: int) -> int:
        """Have room for so many bytes; returns the address. What was there is lost where it grows."""
        if not self.address or size_bytes > self._size:
            self.free()
            self._size = max(size_bytes, _LEAST_BYTES)
            address = ctypes.c_uint64()
            self._driver.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(self._size))
            self.address = address.value
        return self.address

    def free(self) -> None:
        address, self.address = self.address, 0
        if address:
            self._driver.call("cuMemFree_v2", ctypes.c_uint64(address))


class Stream:
    """What is done in turn. Copies are done when `wait` returns; until then their arrays must live."""

    def __init__(self, driver: CudaDriver, priority: Priority) -> None:
        self._driver = driver
        least, greatest, handle = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p()
        driver.call("cuCtxGetStreamPriorityRange", ctypes.byref(least), ctypes.byref(greatest))
        chosen = {"DEFAULT": ctypes.c_int(0), "MAX": greatest, "MIN": least}[priority]
        driver.call("cuStreamCreateWithPriority", ctypes.byref(handle), ctypes.c_uint(_NON_BLOCKING), chosen)
        self._handle = handle

    @property
    def handle(self) -> int:
        """As TensorRT wants it."""
        return self._handle.value or 0

    def copy_in(self, address: int, array: Array) -> None:
        """From a contiguous array to the device."""
        if array.nbytes:
            self._driver.call(
                "cuMemcpyHtoDAsync_v2",
                ctypes.c_uint64(address),
                ctypes.c_void_p(array.ctypes.data),
                ctypes.c_size_t(array.nbytes),
                self._handle,
            )

    def copy_out(self, array: Array, address: int) -> None:
        """From the device to a contiguous array."""
        if array.nbytes:
            self._driver.call(
                "cuMemcpyDtoHAsync_v2",
                ctypes.c_void_p(array.ctypes.data),
                ctypes.c_uint64(address),
                ctypes.c_size_t(array.nbytes),
                self._handle,
            )

    def wait(self) -> None:
        self._driver.call("cuStreamSynchronize", self._handle)

    def close(self) -> None:
        self._driver.call("cuStreamDestroy_v2", self._handle)


def free_quietly(*buffers: DeviceBuffer) -> None:
    """Free what can be freed, when something else has gone wrong already."""
    for buffer in buffers:
        try:
            buffer.free()
        except CudaError:
            continue
