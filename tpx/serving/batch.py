"""Requests that a model computes together: stacked before, split afterwards."""

import math
import time
from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from tpx.errors import Code, ExecutionError, TpxError
from tpx.protocol.datatypes import BY_NAME
from tpx.protocol.tensors import Buffer, Tensor, as_array, raw_bytes
from tpx.serving.request import InferRequest, InferResponse

Arrays = dict[str, npt.NDArray[Any]]

_clock = time.perf_counter_ns
_COPY_BELOW_BYTES = 64 << 10


class Batch:
    """Requests whose inputs fit together, and when what happened to them. Times are on
    time.perf_counter_ns."""

    __slots__ = (
        "computed_ns",
        "ended_ns",
        "error",
        "gathered_ns",
        "requests",
        "responses",
        "size",
        "started_ns",
    )

    def __init__(self, requests: Sequence[InferRequest]) -> None:
        self.requests = requests
        self.size = 0
        for request in requests:
            self.size += request.head.batch_size
        self.responses: list[InferResponse] = []
        self.error: TpxError | None = None
        """Something failed: the responses tell which requests have an error."""
        self.started_ns = self.gathered_ns = self.computed_ns = self.ended_ns = 0

    def gather(self) -> Arrays:
        """The inputs, stacked along the batch dimension: one copy, none for a single request."""
        self.started_ns = _clock()
        requests = self.requests
        head = requests[0].head
        arrays: Arrays = {}
        if len(requests) == 1:
            buffers = requests[0].buffers
            for index, bound in enumerate(head.inputs):
                arrays[bound.spec.name] = as_array(buffers[index], bound.spec.datatype, bound.shape)
        else:
            for index, bound in enumerate(head.inputs):
                data: Buffer = b"".join([request.buffers[index] for request in requests])
                shape = (self.size, *bound.shape[1:])
                arrays[bound.spec.name] = as_array(data, bound.spec.datatype, shape)
        self.gathered_ns = _clock()
        return arrays

    def scatter(self, outputs: Arrays, *, batched: bool) -> None:
        """Give each request its part of the outputs; `batched` False leaves them whole."""
        self.computed_ns = _clock()
        parts = {name: _Slices(array) for name, array in outputs.items()}
        start = 0
        for request in self.requests:
            head = request.head
            stop = start + head.batch_size
            tensors = []
            for bound in head.outputs:
                spec = bound.spec
                part = parts[spec.name]
                if batched:
                    shape = (head.batch_size, *part.shape[1:])
                    data = part.rows(start, stop)
                else:
                    shape, data = part.shape, part.whole()
                if spec.model_dims is not spec.dims:
                    shape = _client_shape(spec.dims, shape, batched=batched)
                tensors.append(Tensor(spec.name, spec.datatype, shape, data))
            self.responses.append(InferResponse(tensors))
            start = stop
        self.ended_ns = _clock()

    def fail(self, error: TpxError) -> None:
        """Answer every request with the error."""
        self.error = error
        self.responses = [InferResponse([], error) for _ in self.requests]
        now = _clock()
        self.started_ns = self.started_ns or now
        self.gathered_ns = self.gathered_ns or now
        self.computed_ns = self.ended_ns = now


class _Slices:
    """The raw bytes of an output, by rows: small ones as slices of one copy, large ones as views of the
    array."""

    __slots__ = ("_array", "_row_bytes", "_small", "shape")

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self.shape = array.shape
        self._array = array
        self._row_bytes = array.nbytes // array.shape[0] if array.ndim and array.shape[0] else 0
        self._small = (
            array.tobytes() if array.nbytes < _COPY_BELOW_BYTES and array.dtype.kind not in "SUO" else None
        )

    def whole(self) -> Buffer:
        return self._small if self._small is not None else raw_bytes(self._array)

    def rows(self, start: int, stop: int) -> Buffer:
        if self._small is None:
            return raw_bytes(self._array[start:stop])
        if stop - start == self.shape[0]:
            return self._small
        return self._small[start * self._row_bytes : stop * self._row_bytes]


def _client_shape(dims: Sequence[int], shape: Sequence[int], *, batched: bool) -> tuple[int, ...]:
    """The shape that the client sees of a reshaped output: the configured dims, one variable of them
    deduced."""
    batch = tuple(shape[:1]) if batched else ()
    free = [index for index, dim in enumerate(dims) if dim == -1]
    if not free:
        return (*batch, *dims)
    if len(free) > 1:
        rest = iter([dim for dim in shape[len(batch) :] if dim != 1])
        return (*batch, *(next(rest, 1) if dim == -1 else dim for dim in dims))
    known = math.prod(dim for dim in dims if dim != -1)
    deduced = math.prod(shape[len(batch) :]) // max(1, known)
    return (*batch, *(deduced if dim == -1 else dim for dim in dims))


def check_outputs(outputs: Arrays, batch: Batch, *, batched: bool) -> None:
    """Raise ExecutionError unless every output that a request wants is there, with the batch's rows."""
    for request in batch.requests:
        for bound in request.head.outputs:
            array = outputs.get(bound.spec.name)
            if array is None:
                raise ExecutionError(f"the model gave no output '{bound.spec.name}'", code=Code.INTERNAL)
            expected = BY_NAME[bound.spec.datatype].numpy
            if array.dtype != expected and array.dtype.kind not in "SUO":
                raise ExecutionError(
                    f"output '{bound.spec.name}' has type {array.dtype}, the configuration says {expected}"
                )
            if batched and (array.ndim == 0 or array.shape[0] != batch.size):
                raise ExecutionError(
                    f"output '{bound.spec.name}' has shape {list(array.shape)}, expected {batch.size} rows"
                )
