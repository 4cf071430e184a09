"""The CUDA driver, through its C functions.

Needs only the driver library, which every machine with a GPU has; no toolkit and no Python package.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

from tpx.errors import InvalidRequest, Unsupported

LIBRARY = "libcuda.so.1"

_SUCCESS = 0
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_...


class CudaError(InvalidRequest):
    """A driver function failed."""


class CudaDriver:
    """Functions of libcuda; each raises CudaError on failure."""

    def __init__(self, path: str) -> None:
        """Load the driver. Raises Unsupported on a machine without a driver or a GPU."""
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
            raise CudaError(f"{function} failed: {self._name(code)}")

    @contextmanager
    def on(self, device: int) -> Iterator[None]:
        """Make a device's primary context current in this thread, and restore the previous one afterwards."""
        self.call("cuCtxPushCurrent_v2", self._context(device))
        try:
            yield
        finally:
            self.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def device_count(self) -> int:
        """Return the number of devices."""
        count = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(count))
        return count.value

    @classmethod
    def devices(cls, path: str = LIBRARY) -> list[int]:
        """Return the devices; none on a machine without a driver."""
        try:
            return list(range(cls(path).device_count()))
        except (Unsupported, CudaError):
            return []

    def compute_capability(self, device: int) -> str:
        """Return the compute capability of a device, such as `8.6`."""
        handle, value = ctypes.c_int(), ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(handle), ctypes.c_int(device))
        numbers = []
        for attribute in (_MAJOR, _MINOR):
            self.call("cuDeviceGetAttribute", ctypes.byref(value), ctypes.c_int(attribute), handle)
            numbers.append(value.value)
        return f"{numbers[0]}.{numbers[1]}"

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
