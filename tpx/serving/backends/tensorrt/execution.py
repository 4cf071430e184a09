"""An instance of an engine: a stream, memory on its device, an execution context for each of its profiles."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tpx.cuda_driver import CudaDriver, CudaError
from tpx.errors import ExecutionError, LoadError
from tpx.protocol.datatypes import BY_NAME
from tpx.serving.backends.contract import Arrays
from tpx.serving.backends.tensorrt.device import DeviceBuffer, Stream, free_quietly
from tpx.serving.backends.tensorrt.facts import EngineFacts, EngineTensor
from tpx.serving.backends.tensorrt.profiles import check_values, suiting
from tpx.serving.backends.tensorrt.settings import TensorRtSettings

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where an instance computes, and with what."""

    trt: Any
    """The module tensorrt."""
    driver: CudaDriver
    device: int
    profiles: tuple[int, ...]
    settings: TensorRtSettings
    model: str
    logger: Any
    """TensorRT's, which knows the last error."""


class EngineExecutor:
    """Computes in one thread at a time, on one device."""

    def __init__(self, engine: Any, facts: EngineFacts, place: Place) -> None:
        self._facts = facts
        self._place = place
        self._inputs = {each.name: each for each in facts.inputs}
        self._buffers = {each.name: DeviceBuffer(place.driver) for each in (*facts.inputs, *facts.outputs)}
        self._allocators = {
            each.name: _allocator(place.trt, self._buffers[each.name]) for each in facts.outputs
        }
        self._contexts: dict[int, Any] = {}
        with place.driver.on(place.device):
            try:
                self._stream = Stream(place.driver, place.settings.priority)
            except CudaError as exc:
                raise LoadError(
                    f"model '{place.model}' has no stream on GPU {place.device}: {exc.message}"
                ) from exc
            with ExitStack() as undoing:
                undoing.callback(self._stream.close)
                undoing.callback(self._contexts.clear)
                for profile in place.profiles:
                    self._contexts[profile] = self._context(engine, profile)
                self._stream.wait()
                undoing.pop_all()

    def execute(self, inputs: Arrays) -> Arrays:
        given = {name: _as_model_has_it(self._inputs[name], array) for name, array in inputs.items()}
        shapes = {name: array.shape for name, array in given.items()}
        profile = suiting(self._facts, self._place.profiles, shapes, self._place.model)
        context = self._contexts[profile]
        with self._place.driver.on(self._place.device):
            try:
                for each in self._facts.inputs:
                    self._feed(context, profile, each, given[each.name])
                missing: Sequence[str] = context.infer_shapes()
                if missing:
                    raise self._failed(f"tell the shapes of its outputs without {', '.join(missing)}")
                hosted = {each.name: self._prepare(context, each) for each in self._facts.outputs}
                if not context.execute_async_v3(self._stream.handle):
                    raise self._failed("execute")
                outputs = {each.name: self._fetch(each, hosted[each.name]) for each in self._facts.outputs}
            except CudaError as exc:
                raise ExecutionError(exc.message) from exc
            except RuntimeError as exc:
                raise ExecutionError(f"tensorrt error: {exc}") from exc
            finally:
                self._stream.wait()  # nothing may still be on its way when arrays are let go
        return {name: np.atleast_1d(array) for name, array in outputs.items()}

    def close(self) -> None:
        with self._place.driver.on(self._place.device):
            self._contexts.clear()
            free_quietly(*self._buffers.values())
            self._stream.close()

    def _context(self, engine: Any, profile: int) -> Any:
        strategies = self._place.trt.ExecutionContextAllocationStrategy
        context = engine.create_execution_context(getattr(strategies, self._place.settings.strategy))
        if context is None or not context.set_optimization_profile_async(profile, self._stream.handle):
            raise LoadError(
                f"tensorrt cannot create an execution context of model '{self._place.model}' for profile "
                f"{profile}: {self._place.logger.last or 'no reason given (is there enough memory?)'}"
            )
        return context

    def _feed(self, context: Any, profile: int, each: EngineTensor, array: Array) -> None:
        """Say where an input is and what shape it has; its data are on their way."""
        if -1 in each.tensor.shape and not context.set_input_shape(each.name, tuple(array.shape)):
            raise self._failed(f"take input '{each.name}' with shape {list(array.shape)}")
        if each.is_shape:
            check_values(each, profile, array.reshape(-1).tolist(), self._place.model)
            address = array.ctypes.data
        else:
            address = self._buffers[each.name].hold(array.nbytes)
            self._stream.copy_in(address, array)
        if not context.set_tensor_address(each.name, address):
            raise self._failed(f"take the memory of input '{each.name}'")

    def _prepare(self, context: Any, each: EngineTensor) -> Array | None:
        """Say where an output goes; returns what it will be copied to, None while nobody knows its shape."""
        shape = tuple(context.get_tensor_shape(each.name))
        if -1 in shape:  # its data decide: TensorRT asks for memory while it computes
            allocator = self._allocators[each.name]
            allocator.shape = None
            if not context.set_output_allocator(each.name, allocator):
                raise self._failed(f"take an allocator for output '{each.name}'")
            return None
        array: Array = np.empty(shape, BY_NAME[each.tensor.datatype].numpy)
        address = array.ctypes.data if each.is_shape else self._buffers[each.name].hold(array.nbytes)
        if not context.set_tensor_address(each.name, address):
            raise self._failed(f"take memory for output '{each.name}'")
        return array

    def _fetch(self, each: EngineTensor, array: Array | None) -> Array:
        if array is None:
            self._stream.wait()
            shape = self._allocators[each.name].shape
            if shape is None:
                raise self._failed(f"tell the shape of output '{each.name}'")
            array = np.empty(shape, BY_NAME[each.tensor.datatype].numpy)
        if not each.is_shape:
            self._stream.copy_out(array, self._buffers[each.name].address)
        return array

    def _failed(self, what: str) -> ExecutionError:
        logger = self._place.logger
        why, logger.last = logger.last or "no reason given", ""
        return ExecutionError(f"tensorrt cannot {what}: {why}")


def _as_model_has_it(each: EngineTensor, array: Array) -> Array:
    """Contiguous, and a scalar without the one dimension that it has for clients."""
    shape = array.shape if each.tensor.shape else ()
    return np.ascontiguousarray(array).reshape(shape)


def _allocator(trt: Any, buffer: DeviceBuffer) -> Any:
    """What TensorRT asks for the memory of an output whose shape depends on data."""

    class Allocator(trt.IOutputAllocator):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IOutputAllocator.__init__(self)
            self.shape: tuple[int, ...] | None = None

        def reallocate_output(self, tensor_name: str, memory: int, size: int, alignment: int) -> int:  # noqa: ARG002
            try:
                return buffer.hold(size)
            except CudaError:
                return 0  # TensorRT then fails to execute

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
