"""Batches of recurring shapes: requests are copied into memory that the runtime has already bound.

The run of a short model then needs no arrays, and takes a third of the time of a run without a binding.
"""

import time
from collections.abc import Sequence
from operator import attrgetter
from typing import Protocol

from tpx.errors import ExecutionError
from tpx.protocol.tensors import Buffer, Tensor
from tpx.serving.backends.contract import Binding, Binds
from tpx.serving.batch import Arrays, Batch
from tpx.serving.request import InferRequest, InferResponse, RequestHead, TensorSpec
from tpx.serving.stacking.plain import RowOutputs, client_shape

_clock = time.perf_counter_ns

_MAX_BINDINGS = 16
MAX_BOUND_BYTES = 32 << 10
"""Maximum inputs and outputs of a binding: copying more costs what binding saves."""
_SEEN_SHAPES = 64
_LARGE_BYTES = 64 << 20

_Key = tuple[object, ...]


class BindingCache:
    """Bindings of one executor, for batches that PlainStacking would stack; bounded in number and
    memory.

    Shapes are bound on their second use; the oldest binding is evicted.
    """

    __slots__ = ("_batched", "_executor", "_kept", "_seen")

    def __init__(self, executor: Binds, *, batched: bool) -> None:
        self._executor = executor
        self._batched = batched
        self._kept: dict[_Key, BoundRows | None] = {}
        """Bindings by shapes; None for shapes that cannot be bound."""
        self._seen: dict[_Key, None] = {}

    def compute(self, batch: Batch) -> bool:
        """Compute a batch if its shapes are bound; return whether it succeeded."""
        key = (batch.requests[0].head.batch_key, batch.size)
        bound = self._kept.get(key)
        if bound is None:
            return False
        try:
            bound.compute(_join(batch.requests), batch)
            start = 0
            for request in batch.requests:
                batch.responses.append(InferResponse(bound.tensors(request.head, start)))
                start += request.head.batch_size
            batch.ended_ns = _clock()
        except (ExecutionError, ValueError):
            # for example outputs of other shapes: the regular path reports the error, if any
            self._kept[key] = None
            bound.alive = False
            batch.responses = []
            return False
        return True

    def known(self, head: RequestHead, size: int) -> "BoundRows | None":
        """Return the binding for `size` rows of requests with this head, None if there is none."""
        return self._kept.get((head.batch_key, size))

    def learn(self, batch: Batch, inputs: Arrays, outputs: Arrays) -> None:
        """Bind the shapes of a computed batch if they were used before. After very large outputs, all
        bindings end, because the executor can return memory in its regular runs only.
        """
        if self._kept and max(map(attrgetter("nbytes"), outputs.values()), default=0) > _LARGE_BYTES:
            self.clear()
        key = (batch.requests[0].head.batch_key, batch.size)
        if key in self._kept:
            return
        if key not in self._seen:
            if len(self._seen) >= _SEEN_SHAPES:
                self._seen.clear()
            self._seen[key] = None
            return
        if len(self._kept) >= _MAX_BINDINGS:
            _end_binding(self._kept.pop(next(iter(self._kept))))
        self._kept[key] = self._bind_rows(batch, inputs, outputs)

    def clear(self) -> None:
        """Release the memory of all bindings."""
        for bound in self._kept.values():
            _end_binding(bound)
        self._kept.clear()

    def _bind_rows(self, batch: Batch, inputs: Arrays, outputs: Arrays) -> "BoundRows | None":
        arrays = [*inputs.values(), *outputs.values()]
        sizes = [0 if array.dtype.hasobject else array.nbytes for array in arrays]
        if not all(sizes) or sum(sizes) > MAX_BOUND_BYTES:
            return None
        binding = self._executor.bind(inputs, outputs)
        if binding is None:
            return None
        names = [bound.spec.name for bound in batch.requests[0].head.inputs]
        return BoundRows(binding, names, batch.size if self._batched else 0)


def _join(requests: Sequence[InferRequest]) -> Sequence[Buffer]:
    """Return the data of each input, of all requests one after another."""
    if len(requests) == 1:
        return requests[0].buffers
    return [b"".join(buffers) for buffers in zip(*[request.buffers for request in requests], strict=True)]


def _end_binding(bound: "BoundRows | None") -> None:
    if bound is not None:
        bound.end()


def _ended() -> None:
    raise ExecutionError("the binding has ended")


class PhaseStamps(Protocol):
    """Receives the times between the phases of an execution."""

    gathered_ns: int
    computed_ns: int


class BoundRows:
    """One binding, computed for requests whose rows lie in its memory one after another."""

    __slots__ = ("_arrays", "_inputs", "_outputs", "_rows", "_run", "alive")

    def __init__(self, binding: Binding, names: list[str], rows: int) -> None:
        """`names` are the inputs in the order of requests; `rows` is 0 if there is no batch dimension."""
        self._arrays = binding.outputs
        self._outputs: dict[str, _BoundOutput] = {}
        self._rows = rows
        self._inputs = [binding.inputs[name] for name in names]
        self._run = binding.run
        self.alive = True
        """False once its instance no longer uses it."""

    def end(self) -> None:
        """Let go of the model, which the fast paths of remembered requests would otherwise keep in memory."""
        self.alive = False
        self._run = _ended

    def compute(self, inputs: Sequence[Buffer], times: PhaseStamps) -> None:
        """Compute requests and stamp `times`; the outputs stay in memory until the next call.

        `inputs` are the data of each input, those of several requests one after another. Raises
        ExecutionError, and ValueError for data of another size.
        """
        memories = self._inputs
        if len(memories) == 1:  # without zip(), which takes longer than the copy
            memories[0][:] = inputs[0]
        else:
            for memory, data in zip(memories, inputs, strict=True):
                memory[:] = data
        times.gathered_ns = _clock()
        self._run()
        times.computed_ns = _clock()

    def tensors(self, head: RequestHead, start: int) -> list[Tensor]:
        """Return copies of the outputs of one request, whose rows begin at `start`. Raises ExecutionError."""
        outputs, tensors = self._outputs, []
        for bound in head.outputs:
            spec = bound.spec
            output = outputs.get(spec.name) or self._bind_output(spec)
            tensors.append(output.tensor(spec, start, head.batch_size))
        return tensors

    def memory(self, head: RequestHead) -> list[memoryview]:
        """Return the memory of the outputs that a head wants, for `split`. Raises ExecutionError."""
        specs = [bound.spec for bound in head.outputs]
        return [(self._outputs.get(spec.name) or self._bind_output(spec)).data for spec in specs]

    def _bind_output(self, spec: TensorSpec) -> "_BoundOutput":
        """Return the memory of an output. Raises ExecutionError if it differs from the configuration."""
        RowOutputs(self._arrays, self._rows).tensor(spec, 0, self._rows)  # checks type and rows
        array = self._arrays[spec.name]
        output = self._outputs[spec.name] = _BoundOutput(
            array.reshape(-1).view("u1").data, array.shape, self._rows
        )
        return output


class _BoundOutput:
    """Memory of an output; requests receive copies."""

    __slots__ = ("_rows", "_shape", "data", "row_bytes")

    def __init__(self, data: memoryview, shape: tuple[int, ...], rows: int) -> None:
        self.data = data
        self._shape = shape
        self._rows = rows
        self.row_bytes = len(data) // rows if rows else 0

    def tensor(self, spec: TensorSpec, start: int, count: int) -> Tensor:
        """Return a copy of `count` rows, or of everything if there is no batch dimension."""
        rows, shape = self._rows, self._shape
        if not rows or count == rows:
            data = bytes(self.data)
        else:
            data = bytes(self.data[start * self.row_bytes : (start + count) * self.row_bytes])
            shape = (count, *shape[1:])
        if spec.model_dims is not spec.dims:
            shape = client_shape(spec, shape, batched=rows > 0)
        return Tensor(spec.name, spec.datatype, shape, data)
