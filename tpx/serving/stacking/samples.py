"""Batches of samples with different shapes, for models that take a batch as a list (DALI pipelines)."""

from collections.abc import Sequence

import numpy as np

from tpx.errors import ExecutionError
from tpx.protocol.tensors import Array, Buffer, Tensor, raw_bytes
from tpx.serving.batch import Arrays, Batch
from tpx.serving.request import InferResponse, RequestHead, TensorSpec
from tpx.serving.stacking.plain import array_of, checked_output, client_shape


class SampleStacking:
    """Passes one array per sample to the model, and stacks the samples that it returns.

    Inputs are arrays with a batch dimension if all samples have one shape, else object arrays with one
    array per sample; outputs may be either. Without `batched` a request is one sample.
    """

    def __init__(self, *, batched: bool, joined: frozenset[str] = frozenset()) -> None:
        """Create the stacking; samples of the outputs `joined` are concatenated along their first
        dimension.
        """
        self._batched = batched
        self._joined = joined

    def gather(self, batch: Batch) -> Arrays:
        arrays: Arrays = {}
        for index, bound in enumerate(batch.requests[0].head.inputs):
            parts = [
                self._read_samples(request.head, index, request.buffers[index]) for request in batch.requests
            ]
            arrays[bound.spec.name] = _join_samples(parts)
        return arrays

    def scatter(self, batch: Batch, outputs: Arrays) -> None:
        start = 0
        for request in batch.requests:
            count = request.head.batch_size if self._batched else 1
            tensors = [
                self._build_tensor(bound.spec, outputs, start, count) for bound in request.head.outputs
            ]
            batch.responses.append(InferResponse(tensors))
            start += count

    def _read_samples(self, head: RequestHead, index: int, data: Buffer) -> Array:
        """Return the samples of one input of a request, [n, *dims]."""
        bound = head.inputs[index]
        array = array_of(head, bound, data, bound.shape)
        return array if self._batched else array[np.newaxis]

    def _build_tensor(self, spec: TensorSpec, outputs: Arrays, start: int, count: int) -> Tensor:
        samples = outputs.get(spec.name)
        if samples is None:
            raise ExecutionError(f"the model returned no output '{spec.name}'")
        if len(samples) < start + count:
            raise ExecutionError(
                f"output '{spec.name}' has {len(samples)} samples, fewer than the inputs of its batch"
            )
        rows = samples[start : start + count]
        array = checked_output(spec, {spec.name: self._stack_samples(spec.name, rows)})
        shape: Sequence[int] = array.shape
        if spec.model_dims is not spec.dims:
            shape = client_shape(spec, shape, batched=self._batched)
        return Tensor(spec.name, spec.datatype, tuple(shape), raw_bytes(array))

    def _stack_samples(self, name: str, rows: Array) -> Array:
        """Return the samples of one request as one array. Raises ExecutionError if their shapes differ."""
        shapes = {sample.shape for sample in rows}
        if name in self._joined:
            if len({shape[1:] for shape in shapes}) == 1:
                return np.concatenate(list(rows))
        elif len(shapes) == 1:
            stacked = rows if rows.dtype != np.object_ else np.stack(list(rows))
            return stacked if self._batched else stacked[0]
        listed = ", ".join(str(list(shape)) for shape in sorted(shapes))
        raise ExecutionError(
            f"output '{name}' has samples of different shapes ({listed}) for one request, which must "
            "have one shape: send them in separate requests, or let the model resize them"
        )


def _join_samples(parts: Sequence[Array]) -> Array:
    """Return samples of several requests as one array, an object array if their shapes differ."""
    if len(parts) == 1:
        return parts[0]
    if len({part.shape[1:] for part in parts}) == 1:
        return np.concatenate(parts)
    samples = [sample for part in parts for sample in part]
    found = np.empty(len(samples), np.object_)
    for index, sample in enumerate(samples):
        found[index] = sample
    return found
