"""Ragged batching: inputs of different shapes are concatenated, and additional inputs describe where
each begins.

Triton: core's BatchInput and BatchOutput (common/protobuf/model_config.proto,
backend/src/backend_common.cc).
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np

from tpx.errors import ExecutionError
from tpx.protocol.datatypes import BY_NUMBER
from tpx.protocol.messages import ModelConfig
from tpx.protocol.tensors import Array, Tensor, raw_bytes
from tpx.serving.batch import Arrays, Batch
from tpx.serving.request import BoundInput, BoundOutput, InferRequest, InferResponse
from tpx.serving.stacking.plain import RowOutputs, array_of, checked_output


class AddedInput(msgspec.Struct, frozen=True, kw_only=True):
    """An input that describes the items of another one, its source."""

    name: str
    source: str
    dtype: np.dtype[np.generic]
    tell: Callable[[Sequence[tuple[int, ...]], "np.dtype[np.generic]"], Array]
    """Computes the input from the source's shape in each request, batch dimension first."""


class RaggedStacking(msgspec.Struct, frozen=True, kw_only=True):
    """Stacks ragged batches."""

    ragged: frozenset[str]
    added: Sequence[AddedInput]
    scattered: Mapping[str, str]
    """Outputs that are concatenated too, and the inputs whose shapes they have."""
    batched: bool
    """Without it each request is computed alone."""

    def gather(self, batch: Batch) -> Arrays:
        requests = batch.requests
        head = requests[0].head
        arrays: Arrays = {}
        for index, bound in enumerate(head.inputs):
            name = bound.spec.name
            if name in self.ragged:
                shape: tuple[int, ...] = (sum(math.prod(r.head.inputs[index].shape) for r in requests),)
            else:
                shape = (batch.size, *bound.shape[1:]) if self.batched else bound.shape
            data = b"".join([request.buffers[index] for request in requests])
            arrays[name] = array_of(head, bound, data, shape)
        for added in self.added:
            shapes = [_find_input(request, added.source).shape for request in requests]
            arrays[added.name] = added.tell(shapes, added.dtype)
        return arrays

    def scatter(self, batch: Batch, outputs: Arrays) -> None:
        rows = RowOutputs(outputs, batch.size if self.batched else 0)
        used = dict.fromkeys(self.scattered, 0)
        start = 0
        for request in batch.requests:
            head = request.head
            tensors = []
            for bound in head.outputs:
                if bound.spec.name in self.scattered:
                    tensors.append(self._slice_output(bound, request, outputs, used))
                else:
                    tensors.append(rows.tensor(bound.spec, start, head.batch_size))
            batch.responses.append(InferResponse(tensors))
            start += head.batch_size

    def _slice_output(
        self, bound: BoundOutput, request: InferRequest, outputs: Arrays, used: dict[str, int]
    ) -> Tensor:
        """Return the next elements of an output, in number and shape of the request's source."""
        spec = bound.spec
        array = checked_output(spec, outputs)
        shape = _find_input(request, self.scattered[spec.name]).shape
        begin = used[spec.name]
        end = used[spec.name] = begin + math.prod(shape)
        flat = array.reshape(-1)
        if end > flat.size:
            raise ExecutionError(
                f"output '{spec.name}' has {flat.size} elements, fewer than its requests' inputs"
            )
        return Tensor(spec.name, spec.datatype, shape, raw_bytes(flat[begin:end]))


def _find_input(request: InferRequest, name: str) -> BoundInput:
    for bound in request.head.inputs:
        if bound.spec.name == name:
            return bound
    raise ExecutionError(f"the request has no input '{name}', which ragged batching needs")


def added_inputs_of(config: ModelConfig) -> list[AddedInput]:
    """Return the batch inputs of a validated configuration, one per target."""
    return [
        AddedInput(
            name=target,
            source=item.source_input[0],
            dtype=BY_NUMBER[item.data_type].numpy,
            tell=_COMPUTE[item.kind],
        )
        for item in config.batch_input
        for target in item.target_name
    ]


_COMPUTE: Mapping[int, Callable[[Sequence[tuple[int, ...]], "np.dtype[np.generic]"], Array]] = {
    0: lambda shapes, dtype: np.array([*map(math.prod, shapes)], dtype),
    1: lambda shapes, dtype: np.array([*itertools.accumulate(map(math.prod, shapes))], dtype),
    2: lambda shapes, dtype: np.array([0, *itertools.accumulate(map(math.prod, shapes))], dtype),
    3: lambda shapes, dtype: np.zeros(max(map(math.prod, shapes)), dtype),
    4: lambda shapes, dtype: np.array([shape[1:] for shape in shapes for _ in range(shape[0])], dtype),
    5: lambda shapes, dtype: np.array(
        [shape[1:] for shape in shapes for _ in range(shape[0])], dtype
    ).ravel(),
}
"""Functions by the numbers of BatchInput.Kind: element count, accumulated, accumulated from zero, a tensor as
long as the longest source, the shapes of the items, and these as one dimension.
"""
