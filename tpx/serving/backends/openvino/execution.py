"""One instance of an OpenVINO model: an infer request, and the conversion of its tensors."""

from collections.abc import Mapping

import numpy as np
import openvino as ov

from tpx.errors import ExecutionError, InvalidRequest
from tpx.protocol.tensors import Array
from tpx.serving.backends.contract import Arrays
from tpx.serving.backends.model_tensors import ModelTensor, from_model, to_model

# OpenVINO raises RuntimeError; its Python binding raises conversion errors
ERRORS = (RuntimeError, TypeError, ValueError, KeyError)
_KEPT_BELOW_BYTES = 64 << 10


class BatchRows:
    """Number of rows of an execution: that of its requests, or the one that the model was compiled for."""

    def __init__(self, fixed: int, *, padded: bool) -> None:
        """`fixed` is the compiled number of rows, 0 if it is variable."""
        self._fixed = fixed
        self._padded = padded

    def missing(self, inputs: Arrays) -> int:
        """Return the number of rows to add. Raises ExecutionError if padding is disabled."""
        if not self._fixed:
            return 0
        rows = max(len(array) for array in inputs.values())
        if rows != self._fixed and not self._padded:
            raise ExecutionError(
                f"expected requests with batch size '{self._fixed}', got '{rows}'... this error can be "
                "avoided by setting 'ENABLE_BATCH_PADDING' parameter in model configuration to 'YES' at a "
                "performance cost."
            )
        return self._fixed - rows


class InferRequestExecutor:
    """Computes with one infer request. Outputs are copied, because the next run overwrites them."""

    def __init__(
        self,
        request: ov.InferRequest,
        inputs: Mapping[str, tuple[int, ModelTensor]],
        outputs: Mapping[str, tuple[int, ModelTensor]],
        rows: BatchRows,
        *,
        narrow: bool,
    ) -> None:
        self._request = request
        self._inputs = inputs
        self._outputs = outputs
        self._rows = rows
        self._narrow = [
            name for name, (_, tensor) in inputs.items() if narrow and tensor.datatype in ("INT64", "UINT64")
        ]
        self._own = {name: request.get_input_tensor(index) for name, (index, _) in inputs.items()}
        """Initial input tensors, restored after a run with a large input so that its memory can be freed."""

    def execute(self, inputs: Arrays) -> Arrays:
        missing = self._rows.missing(inputs)
        if missing:
            inputs = {name: _padded(array, missing) for name, array in inputs.items()}
        for name in self._narrow:  # OpenVINO's CPU device computes 64-bit integers in 32 bits
            array = inputs[name]
            signed = array.dtype.kind == "i"
            if array.size and (array.max() > 2**31 - 1 or (signed and array.min() < -(2**31))):
                raise InvalidRequest(
                    f"input '{name}' has values beyond 32 bits, in which OpenVINO computes 64-bit integers "
                    "on a CPU"
                )
        try:
            tensors = {}
            for name, array in inputs.items():
                index, tensor = self._inputs[name]
                tensors[index] = _to_runtime(array, tensor)
            results = self._request.infer(tensors)
            for name, array in inputs.items():
                if array.nbytes >= _KEPT_BELOW_BYTES:
                    self._request.set_input_tensor(self._inputs[name][0], self._own[name])
        except ERRORS as exc:
            raise ExecutionError(f"openvino error: {reason(exc)}") from exc
        outputs = {name: from_model(results[at], tensor) for name, (at, tensor) in self._outputs.items()}
        return {name: array[:-missing] for name, array in outputs.items()} if missing else outputs

    def close(self) -> None:
        del self._request, self._own


def _to_runtime(array: Array, tensor: ModelTensor) -> ov.Tensor:
    array = to_model(array, tensor)
    if tensor.datatype == "BF16":
        return ov.Tensor(np.ascontiguousarray(array), ov.Shape(array.shape), ov.Type.bf16)
    if array.flags.writeable:
        return ov.Tensor(array, shared_memory=True)
    return ov.Tensor(array)  # copies: OpenVINO shares only writable memory


def _padded(array: Array, rows: int) -> Array:
    return np.concatenate([array, np.zeros((rows, *array.shape[1:]), dtype=array.dtype)])


def reason(exc: Exception) -> str:
    """Return OpenVINO's message without source locations."""
    lines = [line.strip() for line in str(exc).splitlines()]
    return " ".join(line for line in lines if line and not line.startswith("Exception from ")) or str(exc)
