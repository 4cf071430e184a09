"""Execution on a device: inputs are copied into reused buffers, only requested outputs are copied back."""

from collections.abc import Sequence

import numpy as np
import onnxruntime as ort

from tpx.errors import ExecutionError
from tpx.protocol.tensors import Array
from tpx.serving.backends.contract import Arrays
from tpx.serving.backends.onnxruntime.execution import Conversions
from tpx.serving.backends.onnxruntime.signature import ORT_ERRORS, OnnxTensor

_SHAPES_KEPT = 16
"""Maximum number of cached buffers per input, for recurring shapes such as batch sizes."""


def can_bind(tensors: Sequence[OnnxTensor]) -> bool:
    """Return whether all can be on a device: strings are on the CPU only, and NumPy has no bfloat16."""
    return not {"BYTES", "BF16"} & {tensor.datatype for tensor in tensors}


class BoundExecutor:
    """Runs a session with inputs and outputs bound to a device."""

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
        self._names = [tensor.name for tensor in outputs]
        self._buffers: dict[str, dict[tuple[int, ...], ort.OrtValue]] = {tensor.name: {} for tensor in inputs}
        self._conversions = Conversions(inputs, outputs)

    def execute(self, inputs: Arrays) -> Arrays:
        self._conversions.to_runtime(inputs)
        binding = self._binding
        try:
            for name, array in inputs.items():
                binding.bind_ortvalue_input(name, self._fill_buffer(name, array))
            for name in self._names:
                binding.bind_output(name, *self._device)  # allocated by the run: its shape is not known yet
            self.session.run_with_iobinding(binding, self._options)
            results = binding.copy_outputs_to_cpu()
        except ORT_ERRORS as exc:
            raise ExecutionError(f"onnx runtime error: {exc}") from exc
        finally:
            # if the next request omits an optional input, it must not get this request's
            binding.clear_binding_inputs()
            binding.clear_binding_outputs()
        return self._conversions.from_runtime(dict(zip(self._names, results, strict=True)))

    def close(self) -> None:
        self._buffers.clear()
        del self._binding, self.session

    def _fill_buffer(self, name: str, array: Array) -> ort.OrtValue:
        buffers = self._buffers[name]
        buffer = buffers.get(array.shape)
        if buffer is None:
            if len(buffers) == _SHAPES_KEPT:
                buffers.pop(next(iter(buffers)))
            buffer = ort.OrtValue.ortvalue_from_shape_and_type(array.shape, array.dtype.type, *self._device)
            buffers[array.shape] = buffer
        buffer.update_inplace(np.ascontiguousarray(array))  # it copies raw bytes and ignores strides
        return buffer
