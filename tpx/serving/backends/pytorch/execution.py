"""One instance of a PyTorch model, on the CPU or on GPUs: arrays in, forward, arrays out.

On a GPU it has a stream of its own, staging through pinned memory, and CUDA graphs. That part is written
against PyTorch's API; see docs/serve/pytorch.md for what has run on a GPU.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass

import numpy as np
import torch

from tpx.errors import ExecutionError, LoadError, TpxError
from tpx.protocol.tensors import Array
from tpx.serving.backends.contract import Arrays
from tpx.serving.backends.pytorch.parameters import Switch
from tpx.serving.backends.pytorch.program import Program, Value
from tpx.serving.backends.pytorch.tensors import Inputs, Lender, Outputs


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    """How an instance calls its program."""

    model: str
    program: Program
    inputs: Inputs
    outputs: Outputs
    switches: Sequence[tuple[Switch, bool]] = ()
    inference_mode: bool = True
    shared: bool = False
    """The program is of other instances, too."""

    def mode(self) -> AbstractContextManager[None]:
        """No gradients, and in inference mode nothing that would serve them."""
        mode: AbstractContextManager[None] = (
            torch.inference_mode() if self.inference_mode else torch.no_grad()
        )
        return mode

    def run(self, values: list[Value]) -> Value:
        """Forward. Raises ExecutionError."""
        for switch, value in self.switches:
            switch(value)
        return guarded(lambda: self.program.run(values, self.inputs.names))

    def close(self) -> None:
        if not self.shared:
            self.program.close()


def guarded(run: Callable[[], Value]) -> Value:
    """Return what `run` gives; whatever the model raises, its author's code or PyTorch's, becomes an
    ExecutionError."""
    try:
        return run()
    except TpxError:
        raise
    except (Exception, SystemExit) as exc:
        name = "" if type(exc) is RuntimeError else f"{type(exc).__name__}: "
        raise ExecutionError(f"PyTorch execute failure: {name}{exc}") from exc


class CpuExecutor:
    """Computes on the CPU, in the caller's thread and PyTorch's own."""

    def __init__(self, call: Forward) -> None:
        self._call = call
        self._count = len(call.inputs.names)
        self._lender = Lender(call.model, writes=call.program.writes)

    def execute(self, inputs: Arrays) -> Arrays:
        call, outputs = self._call, self._call.outputs
        values = call.program.arguments(self._count)
        try:
            call.inputs.fill(values, inputs, self._lender)
            with call.mode():
                found = outputs.tensors(call.run(values))
                return {name: outputs.array(value) for name, value in found.items()}
        finally:
            self._lender.settle()

    def close(self) -> None:
        self._call.close()


_WARM_UPS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSettings:
    """Settings of instances on GPUs."""

    device: torch.device | None
    """None: the model is on as many as it likes (KIND_MODEL)."""
    batched: bool = True
    """The first dimension of inputs is that of the batch."""
    pinned_input: bool = True
    pinned_output: bool = True
    cudnn: bool = True
    cache_cleaning: bool = False


class Staging:
    """Copies arrays to the device through pinned memory that is used again and again."""

    def __init__(self, device: torch.device, *, pinned: bool) -> None:
        self._device = device
        self._pinned = pinned and torch.device(device).type == "cuda"
        self._buffers: list[torch.Tensor] = []
        self._next = 0

    def begin(self) -> None:
        """The copies of the last run have been waited for."""
        self._next = 0

    def tensor(self, array: Array) -> torch.Tensor:
        if not self._pinned or not array.nbytes:
            return torch.from_numpy(array.copy()).to(self._device)
        staged = self._buffer(array.nbytes)[: array.nbytes]
        np.copyto(staged.numpy().view(array.dtype).reshape(array.shape), array)
        dtype = torch.from_numpy(np.empty(0, array.dtype)).dtype
        return staged.view(dtype).reshape(array.shape).to(self._device, non_blocking=True)

    def _buffer(self, size_bytes: int) -> torch.Tensor:
        if self._next == len(self._buffers):
            self._buffers.append(torch.empty(0, dtype=torch.uint8))
        if self._buffers[self._next].numel() < size_bytes:
            self._buffers[self._next] = torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)
        self._next += 1
        return self._buffers[self._next - 1]


class RecordedGraph:
    """Forward for one size of batch as a CUDA graph: its tensors stay at the places where it was recorded."""

    def __init__(self, call: Forward, values: Sequence[Value], stream: torch.cuda.Stream) -> None:
        """`values` are inputs of the batch's size. Raises LoadError."""
        self._values = [value.clone() if isinstance(value, torch.Tensor) else value for value in values]
        self._graph = torch.cuda.CUDAGraph()
        try:
            with call.mode(), torch.cuda.stream(stream):
                for _ in range(_WARM_UPS):
                    call.run(list(self._values))
                stream.synchronize()
                # other instances may allocate memory meanwhile
                with torch.cuda.graph(self._graph, stream=stream, capture_error_mode="thread_local"):
                    self._results = call.program.run(list(self._values), call.inputs.names)
        except RuntimeError as exc:
            raise LoadError(
                f"model '{call.model}' cannot be recorded as a CUDA graph: {exc}; remove its parameter "
                "CUDA_GRAPH_BATCH_SIZES"
            ) from exc

    def run(self, values: Sequence[Value]) -> Value:
        """Replay it with other inputs; the results are overwritten by the next run."""
        for place, value in zip(self._values, values, strict=True):
            if isinstance(place, torch.Tensor):
                place.copy_(value, non_blocking=True)
        self._graph.replay()
        return self._results


class CudaExecutor:
    """Computes on a stream of its own, and waits for it."""

    def __init__(self, call: Forward, settings: GpuSettings) -> None:
        self._call = call
        self._settings = settings
        self._count = len(call.inputs.names)
        devices = range(torch.cuda.device_count()) if settings.device is None else [settings.device]
        self._streams = [torch.cuda.Stream(device) for device in devices]
        self._staging = Staging(call.program.device, pinned=settings.pinned_input)
        self._graphs: dict[int, RecordedGraph] = {}
        for stream in self._streams:
            torch.cuda.synchronize(stream.device)  # the weights were copied on another stream

    def record(self, samples: Mapping[int, Arrays]) -> None:
        """Record CUDA graphs for these batches, by their rows. Raises LoadError."""
        [stream] = self._streams
        for rows, arrays in samples.items():
            with self._prepared():
                values = self._values(arrays)
                stream.synchronize()
                self._graphs[rows] = RecordedGraph(self._call, values, stream)

    def execute(self, inputs: Arrays) -> Arrays:
        # what fails on a GPU may be told as late as when its results are waited for
        arrays: Arrays = guarded(lambda: self._compute(inputs))
        return arrays

    def _compute(self, inputs: Arrays) -> Arrays:
        call = self._call
        with self._prepared(), call.mode():
            values = self._values(inputs)
            graph = self._graphs.get(self._rows(inputs)) if self._graphs else None
            found = call.outputs.tensors(call.run(values) if graph is None else graph.run(values))
            fetched = {name: self._fetched(value) for name, value in found.items()}
            for stream in self._streams:
                stream.synchronize()
            if self._settings.cache_cleaning:
                torch.cuda.empty_cache()
            return {name: call.outputs.array(value) for name, value in fetched.items()}

    def _rows(self, inputs: Arrays) -> int:
        return len(next(iter(inputs.values()))) if self._settings.batched else 1

    def close(self) -> None:
        self._graphs.clear()
        self._call.close()
        torch.cuda.empty_cache()

    def _prepared(self) -> ExitStack:
        stack = ExitStack()
        for stream in reversed(self._streams):  # the last one makes its device the current one
            stack.enter_context(torch.cuda.stream(stream))
        torch.backends.cudnn.enabled = self._settings.cudnn
        return stack

    def _values(self, arrays: Arrays) -> list[Value]:
        self._staging.begin()
        values = self._call.program.arguments(self._count)
        self._call.inputs.fill(values, arrays, self._staging)
        return values

    def _fetched(self, value: Value) -> Value:
        """A result in the memory of this process, once the streams have been waited for."""
        if not isinstance(value, torch.Tensor) or value.device.type == "cpu":
            return value
        if not self._settings.pinned_output or self._settings.device is None:
            return value.cpu()
        target = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
        return target.copy_(value, non_blocking=True)
