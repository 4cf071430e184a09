"""Executors for arrays in host and device memory and for ONNX Runtime's own tensors; their conversions."""

import ctypes
import math
import time
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as ort_state

from tpx.errors import ExecutionError
from tpx.protocol.tensors import Array, aligned
from tpx.serving.backends.contract import Arrays
from tpx.serving.backends.model_tensors import decode_strings
from tpx.serving.backends.onnxruntime.signature import ORT_ERRORS, OnnxTensor

_LENT_UNCOUNTED_BYTES = 64 << 10
_LENT_BYTES = 32 << 20
_GROWING_BYTES = 64 << 20
"""Smallest output after which memory of the runtime's arena is returned to the system."""
_SMALL_BYTES = 1 << 20
_SHRINK_EVERY_S = 10.0
_SHAPES_KEPT = 16
"""Maximum number of cached buffers per input, for recurring shapes such as batch sizes."""
_CPU = "CPUExecutionProvider"
_NOT_BOUND: tuple[type[Exception], ...] = (ExecutionError, *ORT_ERRORS)
_BFLOAT16 = 16  # in onnx.TensorProto.DataType


class Conversions:
    """Conversions between clients' tensors and ONNX Runtime's.

    Strings are bytes to clients and text to ONNX Runtime; a scalar is one element to clients and has no
    dimension in ONNX Runtime.
    """

    def __init__(self, inputs: Sequence[OnnxTensor], outputs: Sequence[OnnxTensor]) -> None:
        self._strings_in = [tensor.name for tensor in inputs if tensor.datatype == "BYTES"]
        self._strings_out = [tensor.name for tensor in outputs if tensor.datatype == "BYTES"]
        self._scalars_in = [tensor.name for tensor in inputs if tensor.ranked and not tensor.shape]
        self._scalars_out = [tensor.name for tensor in outputs if not tensor.shape]
        self.needed = bool(self._strings_in or self._strings_out or self._scalars_in or self._scalars_out)

    def to_runtime(self, arrays: Arrays) -> None:
        for name in self._strings_in:
            if name in arrays:
                array = arrays[name]
                text = decode_strings(name, array, "ONNX")
                arrays[name] = np.array(text, dtype=np.object_).reshape(array.shape)
        for name in self._scalars_in:
            if name in arrays:
                arrays[name] = arrays[name].reshape(())

    def from_runtime(self, arrays: Arrays) -> Arrays:
        for name in self._scalars_out:
            arrays[name] = np.atleast_1d(arrays[name])
        for name in self._strings_out:
            encoded = [str(text).encode() for text in arrays[name].flat]
            arrays[name] = np.array(encoded, dtype=np.object_).reshape(arrays[name].shape)
        return arrays


class LentOutputs:
    """Outputs in the runtime's memory that are still referenced outside of the executor.

    ONNX Runtime's arena never shrinks. Hundreds of responses that wait for slow clients would grow it
    for good, so outputs beyond a total of 32 MiB are copied.
    """

    __slots__ = ("_bytes", "_refs", "_returned", "grown")

    def __init__(self) -> None:
        self._bytes = 0
        self.grown = False
        """True after an output so large that the arena should not keep its memory."""
        # by id of the weak reference, because arrays are not hashable
        self._refs: dict[int, tuple[weakref.ref[Any], int]] = {}
        # appended to by any thread that drops the last reference
        self._returned: deque[weakref.ref[Any]] = deque()

    def outputs(self, results: list[Any]) -> list[Any]:
        """Return the outputs of a run, as views of the runtime's memory or as copies."""
        for index, array in enumerate(results):
            if array.nbytes <= _LENT_UNCOUNTED_BYTES:
                continue
            while self._returned:
                self._bytes -= self._refs.pop(id(self._returned.popleft()))[1]
            if array.nbytes >= _GROWING_BYTES:
                self.grown = True
            if self._bytes + array.nbytes > _LENT_BYTES and self._bytes:
                results[index] = array.copy()
                continue
            self._bytes += array.nbytes
            reference = weakref.ref(array, self._returned.append)
            self._refs[id(reference)] = reference, array.nbytes
        return results


class ArrayExecutor:
    """Runs a session on NumPy arrays.

    It bypasses the checks of ONNX Runtime's Python session class, which repeat the server's own and
    take a third of a small model's run time. The first small run after very large outputs returns the free
    memory of the arena to the system.
    """

    def __init__(
        self,
        session: ort.InferenceSession,
        inputs: Sequence[OnnxTensor],
        outputs: Sequence[OnnxTensor],
        options: ort.RunOptions,
        shrinking: ort.RunOptions | None = None,
    ) -> None:
        """`shrinking` are the options for a run that returns memory; None if there is no arena."""
        self._shrinking = shrinking
        self._shrunk_s = -_SHRINK_EVERY_S
        self.session = session
        self._run = getattr(session, "_sess", session).run
        self._options = options
        self._names = [tensor.name for tensor in outputs]
        self._lent = LentOutputs()
        self._outputs = self._lent.outputs
        self._conversions = Conversions(inputs, outputs)
        self._converts = self._conversions.needed

    def execute(self, inputs: Arrays) -> Arrays:
        if self._converts:
            self._conversions.to_runtime(inputs)
        options = self._options if not self._lent.grown else self._choose_options(inputs)
        try:
            results = self._run(self._names, inputs, options)
        except ORT_ERRORS as exc:
            raise ExecutionError(f"onnx runtime error: {exc}") from exc
        arrays = dict(zip(self._names, self._outputs(results), strict=True))
        return self._conversions.from_runtime(arrays) if self._converts else arrays

    def _choose_options(self, inputs: Arrays) -> ort.RunOptions:
        """Return the options for a run after very large outputs: small runs return memory now and then."""
        now_s = time.monotonic()
        small = sum(array.nbytes for array in inputs.values()) < _SMALL_BYTES
        if self._shrinking is None or not small or now_s - self._shrunk_s < _SHRINK_EVERY_S:
            return self._options
        self._lent.grown, self._shrunk_s = False, now_s
        return self._shrinking

    def bind(self, inputs: Arrays, outputs: Arrays) -> "KeptBinding | None":
        """Implement Binds, on the CPU only."""
        if self._converts or self.session.get_providers() != [_CPU]:
            return None
        try:
            binding = KeptBinding(self.session, inputs, outputs, self._options)
            binding.run()
        except _NOT_BOUND:
            return None
        # ONNX Runtime silently leaves an output that no node writes (an input passed through) unfilled
        same = all(binding.outputs[name].tobytes() == array.tobytes() for name, array in outputs.items())
        return binding if same else None

    def close(self) -> None:
        del self.session, self._run


class KeptBinding:
    """Implements Binding; a run takes half the time of one on arrays."""

    __slots__ = ("_binding", "_options", "_run", "inputs", "outputs")

    def __init__(
        self, session: ort.InferenceSession, inputs: Arrays, outputs: Arrays, options: ort.RunOptions
    ) -> None:
        """Copy the inputs; fill the outputs with other bytes than `outputs`, to detect unwritten ones."""
        binding = session.io_binding()
        self.inputs: dict[str, memoryview] = {}
        self.outputs: Arrays = {}
        for name, array in inputs.items():
            memory = self.inputs[name] = aligned(array.nbytes)
            memory[:] = array.tobytes()
            address = np.frombuffer(memory, np.uint8).ctypes.data
            binding.bind_input(name, "cpu", 0, array.dtype.type, array.shape, address)
        for name, array in outputs.items():
            output = self.outputs[name] = np.array(array, order="C")
            flat = output.reshape(-1).view(np.uint8)
            np.invert(flat, out=flat)
            binding.bind_output(name, "cpu", 0, array.dtype.type, array.shape, output.ctypes.data)
        self._binding = binding._iobinding
        self._run = session._sess.run_with_iobinding
        self._options = options

    def run(self) -> None:
        try:
            self._run(self._binding, self._options)
        except ORT_ERRORS as exc:
            raise ExecutionError(f"onnx runtime error: {exc}") from exc


class BoundExecutor:
    """Runs a session on a device, with reused buffers for inputs; only requested outputs are copied back.

    It also runs sessions with bfloat16, which NumPy does not have: such inputs are bound where they are,
    and outputs are read from ONNX Runtime's own tensors in host memory.
    """

    def __init__(
        self,
        session: ort.InferenceSession,
        inputs: Sequence[OnnxTensor],
        outputs: Sequence[OnnxTensor],
        options: ort.RunOptions,
        device: tuple[str, int],
    ) -> None:
        """`device` is ONNX Runtime's device type, such as "cuda", and the device number."""
        self.session = session
        self._binding = session.io_binding()
        self._options = options
        self._device = device
        self._outputs = {tensor.name: tensor.datatype for tensor in outputs}
        self._buffers: dict[str, dict[tuple[int, ...], ort.OrtValue]] = {tensor.name: {} for tensor in inputs}
        self._bfloat16 = {tensor.name for tensor in inputs if tensor.datatype == "BF16"}
        self._reads_values = "BF16" in self._outputs.values()
        self._conversions = Conversions(inputs, outputs)

    def execute(self, inputs: Arrays) -> Arrays:
        self._conversions.to_runtime(inputs)
        binding, names = self._binding, list(self._outputs)
        try:
            for name, array in inputs.items():
                binding.bind_ortvalue_input(name, self._make_value(name, array))
            for name in names:  # allocated by the run: its shape is not known yet
                binding.bind_output(name, *(("cpu", 0) if self._reads_values else self._device))
            self.session.run_with_iobinding(binding, self._options)
            if self._reads_values:
                values = zip(binding.get_outputs(), self._outputs.items(), strict=True)
                # an input that is passed through is in a buffer that the next run overwrites
                results = [_read_array(value, kind, copied=name in inputs) for value, (name, kind) in values]
            else:
                results = binding.copy_outputs_to_cpu()
        except ORT_ERRORS as exc:
            raise ExecutionError(f"onnx runtime error: {exc}") from exc
        finally:
            # if the next request omits an optional input, it must not get this request's
            binding.clear_binding_inputs()
            binding.clear_binding_outputs()
        return self._conversions.from_runtime(dict(zip(names, results, strict=True)))

    def close(self) -> None:
        self._buffers.clear()
        del self._binding, self.session

    def _make_value(self, name: str, array: Array) -> ort.OrtValue:
        if name in self._bfloat16:
            given = np.asarray(array, order="C")  # which leaves scalars without a dimension
            value = ort_state.OrtValue.ortvalue_from_numpy_with_onnx_type(given, _BFLOAT16)
            return ort.OrtValue(value, given)
        buffers = self._buffers[name]
        buffer = buffers.get(array.shape)
        if buffer is None:
            if len(buffers) == _SHAPES_KEPT:
                buffers.pop(next(iter(buffers)))
            buffer = buffers[array.shape] = ort.OrtValue.ortvalue_from_shape_and_type(
                array.shape, array.dtype.type, *self._device
            )
        buffer.update_inplace(np.ascontiguousarray(array))  # it copies raw bytes and ignores strides
        return buffer


def _read_array(value: ort.OrtValue, datatype: str, *, copied: bool) -> Array:
    if datatype != "BF16":
        array: Array = value.numpy()
        return array.copy() if copied else array
    shape = value.shape()
    if 0 in shape:
        return np.empty(shape, dtype=np.uint16)
    data = (ctypes.c_char * (2 * math.prod(shape))).from_address(value.data_ptr())
    return np.frombuffer(data, dtype=np.uint16).reshape(shape).copy()
