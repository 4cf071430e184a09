"""Ragged batching: inputs of different shapes are concatenated, and additional inputs describe where
each begins.

Triton: core's BatchInput and BatchOutput (common/protobuf/model_config.proto,
backend/src/backend_common.cc).
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tpx.errors import ExecutionError
from tpx.protocol.datatypes import BY_NUMBER
from tpx.protocol.messages import ModelConfig
from tpx.protocol.tensors import Array, Tensor, raw_bytes
from tpx.serving.batch import Arrays, Batch
from tpx.serving.request import BoundInput, BoundOutput, InferRequest, InferResponse
from tpx.serving.stacking.plain import RowOutputs, array_of, checked_output


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedInput:
    """An input that describes the items of another one, its source."""

    name: str
    source: str
    dtype: np.dtype[np.generic]
    tell: Callable[[Sequence[tuple[int, ...]], "np.dtype[np.generic]"], Array]
    """Computes the input from the source's shape in each request, batch dimension first."""


class RaggedStacking:
    """Stacks ragged batches.

    `scattered` maps outputs that are concatenated too to the inputs whose shapes they have; without
    `batched` each request is computed alone.
    """

    def __init__(
        self,
        ragged: frozenset[str],
        added: Sequence[AddedInput],
        scattered: Mapping[str, str],
        *,
        batched: bool,
    ) -> None:
        self._ragged = ragged
        self._added = added
        self._scattered = scattered
        self._batched = batched

    def gather(self, batch: Batch) -> Arrays:
        requests = batch.requests
        head = requests[0].head
        arrays: Arrays = {}
        for index, bound in enumerate(head.inputs):
            name = bound.spec.name
            if name in self._ragged:
                shape: tuple[int, ...] = (sum(math.prod(r.head.inputs[index].shape) for r in requests),)
            else:
                shape = (batch.size, *bound.shape[1:]) if self._batched else bound.shape
            data = b"".join([request.buffers[index] for request in requests])
            arrays[name] = array_of(head, bound, data, shape)
        for added in self._added:
            shapes = [_find_input(request, added.source).shape for request in requests]
            arrays[added.name] = added.tell(shapes, added.dtype)
        return arrays

    def scatter(self, batch: Batch, outputs: Arrays) -> None:
        rows = RowOutputs(outputs, batch.size if self._batched else 0)
        used = dict.fromkeys(self._scattered, 0)
        start = 0
        for request in batch.requests:
            head = request.head
            tensors = []
            for bound in head.outputs:
                if bound.spec.name in self._scattered:
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
        shape = _find_input(request, self._scattered[spec.name]).shape
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


def _count_elements(shapes: Sequence[tuple[int, ...]], dtype: "np.dtype[np.generic]") -> Array:
    return np.array([math.prod(shape) for shape in shapes], dtype)


def _accumulate_counts(shapes: Sequence[tuple[int, ...]], dtype: "np.dtype[np.generic]") -> Array:
    return np.array(list(itertools.accumulate(math.prod(shape) for shape in shapes)), dtype)


def _accumulate_from_zero(shapes: Sequence[tuple[int, ...]], dtype: "np.dtype[np.generic]") -> Array:
    return np.concatenate([np.zeros(1, dtype), _accumulate_counts(shapes, dtype)])


def _longest_as_shape(shapes: Sequence[tuple[int, ...]], dtype: "np.dtype[np.generic]") -> Array:
    return np.zeros(max(math.prod(shape) for shape in shapes), dtype)


def _item_shapes(shapes: Sequence[tuple[int, ...]], dtype: "np.dtype[np.generic]") -> Array:
    return np.array([shape[1:] for shape in shapes for _ in range(shape[0])], dtype)


def _item_shapes_flat(shapes: Sequence[tuple[int, ...]], dtype: "np.dtype[np.generic]") -> Array:
    return _item_shapes(shapes, dtype).reshape(-1)


_COMPUTE = {
    0: _count_elements,
    1: _accumulate_counts,
    2: _accumulate_from_zero,
    3: _longest_as_shape,
    4: _item_shapes,
    5: _item_shapes_flat,
}
"""Functions by the numbers of BatchInput.Kind."""
