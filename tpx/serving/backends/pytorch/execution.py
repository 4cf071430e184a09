"""One instance of a PyTorch model, on the CPU or on GPUs: arrays in, forward, arrays out.

On a GPU an instance has its own stream, copies through pinned memory, and may replay CUDA graphs.
docs/serve/pytorch.md says what has run on a GPU.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass

import numpy as np
import torch

from tpx.errors import ExecutionError, LoadError, TpxError
from tpx.protocol.tensors import Array
from tpx.serving.backends.contract import Arrays, GpuRange, GpuTensor
from tpx.serving.backends.pytorch.parameters import Switch
from tpx.serving.backends.pytorch.program import Program, Value
from tpx.serving.backends.pytorch.tensors import Inputs, Lender, Outputs


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    """A program and the settings of an instance that calls it."""

    model: str
    program: Program
    inputs: Inputs
    outputs: Outputs
    switches: Sequence[tuple[Switch, bool]] = ()
    inference_mode: bool = True
    shared: bool = False
    """True if other instances use the same program."""

    def mode(self) -> AbstractContextManager[None]:
        """Return a context without gradients; in inference mode, also without autograd's bookkeeping."""
        mode: AbstractContextManager[None] = (
            torch.inference_mode() if self.inference_mode else torch.no_grad()
        )
        return mode

    def run(self, values: list[Value]) -> Value:
        """Run forward. Raises ExecutionError."""
        for switch, value in self.switches:
            switch(value)
        return guarded(lambda: self.program.run(self.inputs.arranged(values)))

    def close(self) -> None:
        if not self.shared:
            self.program.close()


def guarded(run: Callable[[], Value]) -> Value:
    """Return the result of `run`; any exception, the model's or PyTorch's, becomes an ExecutionError."""
    try:
        return run()
    except TpxError:
        raise
    except (Exception, SystemExit) as exc:
        name = "" if type(exc) is RuntimeError else f"{type(exc).__name__}: "
        raise ExecutionError(f"PyTorch execute failure: {name}{exc}") from exc


class CpuExecutor:
    """Computes on the CPU, in the calling thread and PyTorch's thread pool."""

    def __init__(self, call: Forward) -> None:
        self._call = call
        self._lender = Lender(call.model, writes=call.program.writes)

    def execute(self, inputs: Arrays) -> Arrays:
        call, outputs = self._call, self._call.outputs
        try:
            values = call.inputs.values(inputs, self._lender)
            with call.mode():
                found = outputs.tensors(call.run(values))
                return {name: outputs.array(value) for name, value in found.items()}
        finally:
            self._lender.settle()

    def close(self) -> None:
        self._call.close()


_WARM_UPS = 3  # runs before recording, as in PyTorch's documentation of CUDA graphs


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSettings:
    """Settings of instances on GPUs."""

    device: torch.device | None
    """Device of the instance; None for KIND_MODEL, where the model may use any number of devices."""
    batched: bool = True
    """True if the first dimension of inputs is the batch dimension."""
    pinned_input: bool = True
    pinned_output: bool = True
    cudnn: bool = True
    cache_cleaning: bool = False


class Staging:
    """Copies arrays to the device through reusable pinned buffers."""

    def __init__(self, device: torch.device, *, pinned: bool) -> None:
        self._device = device
        self._pinned = pinned and torch.device(device).type == "cuda"
        self._buffers: list[torch.Tensor] = []
        self._next = 0

    def begin(self) -> None:
        """Reuse the buffers; the caller has waited for the copies of the last run."""
        self._next = 0

    def tensor(self, array: Array | GpuTensor) -> torch.Tensor:
        if isinstance(array, GpuTensor):
            return self._gather_parts(array)
        if not self._pinned or not array.nbytes:
            return torch.from_numpy(array.copy()).to(self._device)
        if self._next == len(self._buffers):
            self._buffers.append(torch.empty(0, dtype=torch.uint8))
        if self._buffers[self._next].numel() < array.nbytes:
            self._buffers[self._next] = torch.empty(array.nbytes, dtype=torch.uint8, pin_memory=True)
        self._next += 1
        staged = self._buffers[self._next - 1][: array.nbytes]
        np.copyto(staged.numpy().view(array.dtype).reshape(array.shape), array)
        return _shaped(staged, array).to(self._device, non_blocking=True)

    def _gather_parts(self, tensor: GpuTensor) -> torch.Tensor:
        """Copy the parts on the device: clients may change theirs, and the model may write into its input."""
        size = sum(part.size if isinstance(part, GpuRange) else len(part) for part in tensor.parts)
        whole = torch.empty(size, dtype=torch.uint8, device=self._device)
        start = 0
        for part in tensor.parts:
            if isinstance(part, GpuRange):
                source = torch.as_tensor(_GpuBytes(part), device=self._device)
            else:
                source = torch.from_numpy(np.frombuffer(part, np.uint8).copy())
            whole[start : start + len(source)].copy_(source, non_blocking=True)
            start += len(source)
        return _shaped(whole, tensor)


class _GpuBytes:
    """Bytes in GPU memory, in the form that PyTorch takes without a copy."""

    def __init__(self, part: GpuRange) -> None:
        self.__cuda_array_interface__ = {
            "shape": (part.size,),
            "typestr": "|u1",
            "data": (part.address, False),
            "version": 3,
        }


def _shaped(data: torch.Tensor, like: Array | GpuTensor) -> torch.Tensor:
    """Return bytes as a tensor with the datatype and shape of `like`."""
    return data.view(torch.from_numpy(np.empty(0, like.dtype)).dtype).reshape(tuple(like.shape))


class RecordedGraph:
    """Forward for one batch size as a CUDA graph, whose tensors keep the addresses used while recording."""

    def __init__(self, call: Forward, values: Sequence[Value], stream: torch.cuda.Stream) -> None:
        """Record it with `values`, inputs of this batch size. Raises LoadError."""
        self._values = [value.clone() if isinstance(value, torch.Tensor) else value for value in values]
        self._graph = torch.cuda.CUDAGraph()
        try:
            with call.mode(), torch.cuda.stream(stream):
                for _ in range(_WARM_UPS):
                    call.run(list(self._values))
                stream.synchronize()
                # thread_local: other instances may allocate memory during the recording
                with torch.cuda.graph(self._graph, stream=stream, capture_error_mode="thread_local"):
                    self._results = call.program.run(call.inputs.arranged(self._values))
        except RuntimeError as exc:
            raise LoadError(
                f"model '{call.model}' cannot be recorded as a CUDA graph: {exc}; remove its parameter "
                "CUDA_GRAPH_BATCH_SIZES"
            ) from exc

    def run(self, values: Sequence[Value]) -> Value:
        """Replay the graph with other inputs; the next run overwrites the results."""
        for place, value in zip(self._values, values, strict=True):
            if isinstance(place, torch.Tensor):
                place.copy_(value, non_blocking=True)
        self._graph.replay()
        return self._results


class CudaExecutor:
    """Computes on its own stream (one per device for KIND_MODEL) and waits for it."""

    def __init__(self, call: Forward, settings: GpuSettings) -> None:
        self._call = call
        self._settings = settings
        devices = range(torch.cuda.device_count()) if settings.device is None else [settings.device]
        self._streams = [torch.cuda.Stream(device) for device in devices]
        self._staging = Staging(call.program.device, pinned=settings.pinned_input)
        self._graphs: dict[int, RecordedGraph] = {}
        self.takes_gpu_memory = settings.device is not None
        for stream in self._streams:
            torch.cuda.synchronize(stream.device)  # wait for the weights, which were copied on another stream

    def record(self, samples: Mapping[int, Arrays]) -> None:
        """Record a CUDA graph for each of these batches; the keys are row counts. Raises LoadError."""
        [stream] = self._streams
        for rows, arrays in samples.items():
            with self._enter_streams():
                values = self._fill_arguments(arrays)
                stream.synchronize()
                self._graphs[rows] = RecordedGraph(self._call, values, stream)

    def execute(self, inputs: Arrays) -> Arrays:
        # GPU errors may be raised only when the results are synchronized
        arrays: Arrays = guarded(lambda: self._compute(inputs))
        return arrays

    def _compute(self, inputs: Arrays) -> Arrays:
        call = self._call
        with self._enter_streams(), call.mode():
            values = self._fill_arguments(inputs)
            graph = self._graphs.get(self._count_rows(inputs)) if self._graphs else None
            found = call.outputs.tensors(call.run(values) if graph is None else graph.run(values))
            fetched = {name: self._copy_to_host(value) for name, value in found.items()}
            for stream in self._streams:
                stream.synchronize()
            if self._settings.cache_cleaning:
                torch.cuda.empty_cache()
            return {name: call.outputs.array(value) for name, value in fetched.items()}

    def _count_rows(self, inputs: Arrays) -> int:
        return len(next(iter(inputs.values()))) if self._settings.batched else 1

    def close(self) -> None:
        self._graphs.clear()
        self._call.close()
        torch.cuda.empty_cache()

    def _enter_streams(self) -> ExitStack:
        stack = ExitStack()
        for stream in reversed(self._streams):  # the last one makes its device the current one
            stack.enter_context(torch.cuda.stream(stream))
        torch.backends.cudnn.enabled = self._settings.cudnn
        return stack

    def _fill_arguments(self, arrays: Arrays) -> list[Value]:
        self._staging.begin()
        return self._call.inputs.values(arrays, self._staging)

    def _copy_to_host(self, value: Value) -> Value:
        """Start copying a result to host memory; it is complete once the streams are synchronized."""
        if not isinstance(value, torch.Tensor) or value.device.type == "cpu":
            return value
        if not self._settings.pinned_output or self._settings.device is None:
            return value.cpu()
        target = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
        return target.copy_(value, non_blocking=True)
