"""One instance of an engine: a stream, device memory, and one execution context per profile."""

import ctypes
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tpx.cuda_driver import CudaDriver, CudaError
from tpx.errors import ExecutionError, LoadError
from tpx.protocol.datatypes import BY_NAME
from tpx.protocol.tensors import Array
from tpx.serving.backends.contract import Arrays
from tpx.serving.backends.model_tensors import to_model
from tpx.serving.backends.tensorrt.engines import Engines, Priority
from tpx.serving.backends.tensorrt.profiles import EngineFacts, EngineTensor, check_values, suiting

if TYPE_CHECKING:
    import tensorrt

_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
_LEAST_BYTES = 256  # TensorRT needs an address for empty tensors, too


class DeviceBuffer:
    """Device memory that grows on demand; its device must be current in every call."""

    def __init__(self, driver: CudaDriver) -> None:
        self._driver = driver
        self._size = 0
        self.address = 0

    def hold(self, size_bytes: int) -> int:
        """Return the address of at least `size_bytes` bytes. Growing discards the content."""
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


class CudaStream:
    """Operations executed in order. Copies are asynchronous: arrays must stay alive until `wait` returns."""

    def __init__(self, driver: CudaDriver, priority: Priority) -> None:
        self._driver = driver
        least, greatest, handle = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p()
        driver.call("cuCtxGetStreamPriorityRange", ctypes.byref(least), ctypes.byref(greatest))
        chosen = {"DEFAULT": ctypes.c_int(0), "MAX": greatest, "MIN": least}[priority]
        driver.call("cuStreamCreateWithPriority", ctypes.byref(handle), ctypes.c_uint(_NON_BLOCKING), chosen)
        self._handle = handle

    @property
    def handle(self) -> int:
        """Stream handle as an integer, for TensorRT."""
        return self._handle.value or 0

    def copy(self, array: Array, address: int, *, to_device: bool) -> None:
        """Start copying a contiguous array to the device, or from it."""
        if not array.nbytes:
            return
        host, device = ctypes.c_void_p(array.ctypes.data), ctypes.c_uint64(address)
        size = ctypes.c_size_t(array.nbytes)
        if to_device:
            self._driver.call("cuMemcpyHtoDAsync_v2", device, host, size, self._handle)
        else:
            self._driver.call("cuMemcpyDtoHAsync_v2", host, device, size, self._handle)

    def wait(self) -> None:
        self._driver.call("cuStreamSynchronize", self._handle)

    def close(self) -> None:
        self._driver.call("cuStreamDestroy_v2", self._handle)


class EngineExecutor:
    """Computes on one device; used by one thread at a time."""

    def __init__(self, engines: Engines, facts: EngineFacts, device: int, profiles: tuple[int, ...]) -> None:
        """Use the engine that is loaded on the device. Raises LoadError."""
        self._facts, self._model, self._profiles = facts, engines.model, profiles
        self._logger = engines.logger
        self._current = partial(engines.driver.on, device)
        self._inputs = {each.name: each for each in facts.inputs}
        self._buffers = {each.name: DeviceBuffer(engines.driver) for each in (*facts.inputs, *facts.outputs)}
        self._allocators = {
            each.name: _make_allocator(engines.trt, self._buffers[each.name]) for each in facts.outputs
        }
        self._contexts: dict[int, Any] = {}
        with self._current():
            try:
                self._stream = CudaStream(engines.driver, engines.settings.priority)
            except CudaError as exc:
                raise LoadError(
                    f"model '{self._model}' has no stream on GPU {device}: {exc.message}"
                ) from exc
            with ExitStack() as undoing:
                undoing.callback(self._stream.close)
                undoing.callback(self._contexts.clear)
                for profile in profiles:
                    self._contexts[profile] = self._create_context(engines, device, profile)
                self._stream.wait()
                undoing.pop_all()

    def execute(self, inputs: Arrays) -> Arrays:
        given = {
            name: np.asarray(to_model(array, self._inputs[name]), order="C") for name, array in inputs.items()
        }
        shapes = {name: array.shape for name, array in given.items()}
        profile = suiting(self._facts, self._profiles, shapes, self._model)
        context = self._contexts[profile]
        with self._current():
            try:
                for each in self._facts.inputs:
                    self._feed_input(context, profile, each, given[each.name])
                missing: Sequence[str] = context.infer_shapes()
                if missing:
                    raise self._make_error(f"tell the shapes of its outputs without {', '.join(missing)}")
                hosted = {each.name: self._prepare_output(context, each) for each in self._facts.outputs}
                if not context.execute_async_v3(self._stream.handle):
                    raise self._make_error("execute")
                outputs = {
                    each.name: self._fetch_output(each, hosted[each.name]) for each in self._facts.outputs
                }
            except CudaError as exc:
                raise ExecutionError(exc.message) from exc
            except RuntimeError as exc:
                raise ExecutionError(f"tensorrt error: {exc}") from exc
            finally:
                self._stream.wait()  # copies must end before their arrays are freed
        return {name: np.atleast_1d(array) for name, array in outputs.items()}

    def close(self) -> None:
        with self._current():
            self._contexts.clear()
            for buffer in self._buffers.values():
                with suppress(CudaError):  # the instance may have failed already
                    buffer.free()
            self._stream.close()

    def _create_context(self, engines: Engines, device: int, profile: int) -> Any:
        strategies = engines.trt.ExecutionContextAllocationStrategy
        strategy = getattr(strategies, engines.settings.strategy)
        context = engines.loaded[device].create_execution_context(strategy)
        if context is None or not context.set_optimization_profile_async(profile, self._stream.handle):
            raise LoadError(
                f"tensorrt cannot create an execution context of model '{self._model}' for profile "
                f"{profile}: {self._logger.last or 'no reason given (is there enough memory?)'}"
            )
        return context

    def _feed_input(
        self, context: "tensorrt.IExecutionContext", profile: int, each: EngineTensor, array: Array
    ) -> None:
        """Set the shape and address of an input, and start copying its data."""
        if -1 in each.shape and not context.set_input_shape(each.name, tuple(array.shape)):
            raise self._make_error(f"take input '{each.name}' with shape {list(array.shape)}")
        if each.is_shape:
            check_values(each, profile, array.reshape(-1).tolist(), self._model)
            address = array.ctypes.data
        else:
            address = self._buffers[each.name].hold(array.nbytes)
            self._stream.copy(array, address, to_device=True)
        if not context.set_tensor_address(each.name, address):
            raise self._make_error(f"take the memory of input '{each.name}'")

    def _prepare_output(self, context: "tensorrt.IExecutionContext", each: EngineTensor) -> Array | None:
        """Set the address of an output; return the array to copy it to, None if its shape depends on data."""
        shape = tuple(context.get_tensor_shape(each.name))
        if -1 in shape:  # depends on data: TensorRT allocates it during the run
            allocator = self._allocators[each.name]
            allocator.shape = None
            if not context.set_output_allocator(each.name, allocator):
                raise self._make_error(f"take an allocator for output '{each.name}'")
            return None
        array: Array = np.empty(shape, BY_NAME[each.datatype].numpy)
        address = array.ctypes.data if each.is_shape else self._buffers[each.name].hold(array.nbytes)
        if not context.set_tensor_address(each.name, address):
            raise self._make_error(f"take memory for output '{each.name}'")
        return array

    def _fetch_output(self, each: EngineTensor, array: Array | None) -> Array:
        if array is None:
            self._stream.wait()
            shape = self._allocators[each.name].shape
            if shape is None:
                raise self._make_error(f"tell the shape of output '{each.name}'")
            array = np.empty(shape, BY_NAME[each.datatype].numpy)
        if not each.is_shape:
            self._stream.copy(array, self._buffers[each.name].address, to_device=False)
        return array

    def _make_error(self, what: str) -> ExecutionError:
        logger = self._logger
        why, logger.last = logger.last or "no reason given", ""
        return ExecutionError(f"tensorrt cannot {what}: {why}")


def _make_allocator(trt: Any, buffer: DeviceBuffer) -> Any:
    """Return the allocator for an output whose shape depends on data."""

    class Allocator(trt.IOutputAllocator):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IOutputAllocator.__init__(self)
            self.shape: tuple[int, ...] | None = None

        def reallocate_output(self, tensor_name: str, memory: int, size: int, alignment: int) -> int:  # noqa: ARG002
            try:
                return buffer.hold(size)
            except CudaError:
                return 0  # makes TensorRT's execution fail

        def reallocate_output_async(
            self,
            tensor_name: str,
            memory: int,
            size: int,
            alignment: int,
            stream: int,  # noqa: ARG002
        ) -> int:
            return self.reallocate_output(tensor_name, memory, size, alignment)

        def notify_shape(self, tensor_name: str, shape: Sequence[int]) -> None:  # noqa: ARG002
            self.shape = tuple(shape)

    return Allocator()
