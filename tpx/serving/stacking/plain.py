"""Requests stacked along the batch dimension, and outputs split again."""

import math
from collections.abc import Sequence
from typing import cast

import numpy as np

from tpx.errors import ExecutionError, InvalidRequest
from tpx.protocol.tensors import Array, Buffer, Tensor, raw_bytes
from tpx.serving.batch import Arrays, Batch, GpuRange, GpuTensor
from tpx.serving.request import (
    BoundInput,
    InferResponse,
    RequestHead,
    TensorSpec,
    elements_of,
    with_request_id,
)

_COPY_BELOW_BYTES = 64 << 10


class PlainStacking:
    """Stacks requests whose inputs have the same rows; without `batched` each request is computed alone."""

    def __init__(self, *, batched: bool) -> None:
        self._batched = batched

    def gather(self, batch: Batch) -> Arrays:
        """Return the inputs, stacked along the batch dimension: one copy, none for a single request."""
        requests = batch.requests
        head = requests[0].head
        alone = len(requests) == 1
        arrays: Arrays = {}
        for index, bound in enumerate(head.inputs):
            if alone:
                data, shape = requests[0].buffers[index], bound.shape
            else:
                data = b"".join([request.buffers[index] for request in requests])
                shape = (batch.size, *bound.shape[1:])
            arrays[bound.spec.name] = array_of(head, bound, data, shape)
        return arrays

    def gather_on_gpu(self, batch: Batch) -> Arrays:
        """Return the inputs like `gather`, but unread ones in GPU memory as GpuTensors."""
        requests = batch.requests
        ranges: dict[int, GpuRange] = {}
        for request in requests:
            for each in request.unread:
                if each.gpu_address:
                    ranges[id(each.memory)] = GpuRange(address=each.gpu_address, size=len(each.memory))
                else:
                    each.read()
        head, alone = requests[0].head, len(requests) == 1
        inputs: dict[str, Array | GpuTensor] = {}
        for index, bound in enumerate(head.inputs):
            buffers = [request.buffers[index] for request in requests]
            shape = bound.shape if alone else (batch.size, *bound.shape[1:])
            if bound.dtype is not None and any(id(buffer) in ranges for buffer in buffers):
                parts = [ranges.get(id(buffer), buffer) for buffer in buffers]
                inputs[bound.spec.name] = GpuTensor(shape=shape, dtype=bound.dtype, parts=parts)
            else:
                inputs[bound.spec.name] = array_of(
                    head, bound, buffers[0] if alone else b"".join(buffers), shape
                )
        return cast("Arrays", inputs)

    def scatter(self, batch: Batch, outputs: Arrays) -> None:
        """Give each request its rows of the outputs, or the whole if there is no batch dimension.

        Raises ExecutionError for an output that is missing or differs from the configuration.
        """
        tensor = RowOutputs(outputs, batch.size if self._batched else 0).tensor
        responses = batch.responses
        start = 0
        for request in batch.requests:
            head = request.head
            count = head.batch_size
            wanted = head.outputs
            if len(wanted) == 1:  # the common case, without the call of a comprehension
                responses.append(InferResponse([tensor(wanted[0].spec, start, count)]))
            else:
                responses.append(InferResponse([tensor(bound.spec, start, count) for bound in wanted]))
            start += count


class RowOutputs:
    """The outputs of a batch of `rows` rows, to be split; 0 rows if there is no batch dimension."""

    __slots__ = ("_outputs", "_parts", "_rows")

    def __init__(self, outputs: Arrays, rows: int) -> None:
        self._outputs = outputs
        self._rows = rows
        self._parts: dict[str, _Slices] = {}

    def tensor(self, spec: TensorSpec, start: int, count: int) -> Tensor:
        """Return `count` rows of an output. Raises ExecutionError."""
        rows = self._rows
        part = self._parts.get(spec.name)
        if part is None:
            part = self._parts[spec.name] = _Slices(spec, self._outputs, rows)
        small = part.small
        if not rows or count == rows:
            shape = part.shape
            data = raw_bytes(part.array) if small is None else small
        elif small is None:
            data = raw_bytes(part.array[start : start + count])
            shape = (count, *part.row_shape)
        else:
            data = small[start * part.row_bytes : (start + count) * part.row_bytes]
            shape = (count, *part.row_shape)
        if spec.model_dims is not spec.dims:
            shape = client_shape(spec, shape, batched=rows > 0)
        return Tensor(spec.name, spec.datatype, shape, data)


def array_of(head: RequestHead, bound: BoundInput, data: Buffer, shape: Sequence[int]) -> Array:
    """Return the data of one or more requests as an array. Raises InvalidRequest for BYTES with invalid
    lengths.
    """
    if bound.dtype is None:
        return _decode_strings(head, bound.spec.name, data, shape)
    return np.ndarray(shape, bound.dtype, data)


def _decode_strings(head: RequestHead, name: str, data: Buffer, shape: Sequence[int]) -> Array:
    """Return BYTES as an array of objects. Raises InvalidRequest: large ones were not validated before."""
    try:
        elements = elements_of(head.model.name, name, data, math.prod(shape))
    except InvalidRequest as exc:
        raise with_request_id(exc, head.request_id) from exc
    array = np.empty(len(elements), dtype=np.object_)
    array[:] = elements
    return array.reshape(shape)


class _Slices:
    """The rows of an output: slices of one copy if it is small, else views of the array."""

    __slots__ = ("array", "row_bytes", "row_shape", "shape", "small")

    def __init__(self, spec: TensorSpec, outputs: Arrays, rows: int) -> None:
        array = checked_output(spec, outputs)
        self.shape = shape = array.shape
        if rows and (not shape or shape[0] != rows):
            raise ExecutionError(
                f"output '{spec.name}' has shape {list(shape)}, expected {rows} rows, one for each of the "
                "inputs': a model that returns another number of rows needs max_batch_size 0 and full dims"
            )
        size = array.nbytes
        self.array = array
        self.small: bytes | None = None
        if size < _COPY_BELOW_BYTES and spec.datatype != "BYTES":
            self.small = array.tobytes()
        self.row_shape = shape[1:]
        self.row_bytes = size // rows if rows else 0


def checked_output(spec: TensorSpec, outputs: Arrays) -> Array:
    """Return an output with its configured datatype. Raises ExecutionError."""
    array = outputs.get(spec.name)
    if array is None:
        raise ExecutionError(f"the model returned no output '{spec.name}'")
    dtype = array.dtype
    if dtype is spec.dtype or dtype == spec.dtype or (spec.datatype == "BYTES" and dtype.kind in "SU"):
        return array
    raise ExecutionError(f"output '{spec.name}' has type {dtype}, the configuration says {spec.datatype}")


def client_shape(spec: TensorSpec, shape: Sequence[int], *, batched: bool) -> tuple[int, ...]:
    """Return the shape of a reshaped output as clients see it: configured dims, with variable ones
    filled in order.
    """
    rows, given = (tuple(shape[:1]), shape[1:]) if batched else ((), shape)
    if len(given) != len(spec.model_dims) or any(
        want not in (-1, got) for want, got in zip(spec.model_dims, given, strict=True)
    ):
        raise ExecutionError(
            f"output '{spec.name}' has shape {list(shape)}, its reshape requires {[*rows, *spec.model_dims]}"
        )
    free = iter([got for want, got in zip(spec.model_dims, given, strict=True) if want == -1])
    return (*rows, *(next(free) if dim == -1 else dim for dim in spec.dims))
