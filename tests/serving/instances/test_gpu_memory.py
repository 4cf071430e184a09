"""Inputs in GPU memory: an executor that takes them gets their addresses, every other one their bytes."""

from typing import Any, cast

import numpy as np

from tests.serving.fakes import config_of
from tests.serving.stacking.stacks import request
from tpx.errors import ExecutionError
from tpx.serving.backends.contract import Arrays, GpuRange, GpuTensor
from tpx.serving.batch import Batch
from tpx.serving.instances.thread import BatchWork
from tpx.serving.request import InferRequest
from tpx.serving.stacking.plain import PlainStacking

ADDRESS = 0x7F0000000000


class Unread:
    """Implements UnreadInput: data that is on a GPU, or in host memory with an address of 0."""

    def __init__(self, of: InferRequest, gpu_address: int) -> None:
        self._data = bytes(of.buffers[0])
        self.memory = memoryview(bytearray(len(self._data)))
        self.gpu_address = gpu_address
        of.buffers[0] = self.memory
        of.unread = [self]

    def read(self) -> None:
        self.read_into(self.memory)

    def read_into(self, memory: memoryview) -> None:
        memory[:] = self._data


class Recorder:
    """Implements Executor: keeps its inputs, and returns zeros; fails batches of several rows if told so."""

    def __init__(self, *, takes_gpu_memory: bool, alone: bool = False) -> None:
        self.takes_gpu_memory = takes_gpu_memory
        self.inputs: list[Any] = []
        self._alone = alone

    def execute(self, inputs: Arrays) -> Arrays:
        self.inputs.append(inputs["x"])
        if self._alone and len(inputs["x"]) > 1:
            raise ExecutionError("too many")
        return {"y": np.zeros((len(inputs["x"]), 2), np.float32)}

    def close(self) -> None:
        pass


def computed(recorder: Recorder, *addresses: int | None) -> list[Any]:
    """The inputs of an executor for a batch of one-row requests: on the GPU, unread (0), or read (None)."""
    stacking = PlainStacking(batched=True)
    requests = [
        request(config_of(), {"x": np.full((1, 2), row, np.float32)}) for row in range(len(addresses))
    ]
    for each, address in zip(requests, addresses, strict=True):
        if address is not None:
            Unread(each, address)
    on_gpu = stacking.gather_on_gpu if recorder.takes_gpu_memory else None
    batch = Batch(requests)
    BatchWork("net_0", recorder, stacking, None, on_gpu).compute(batch)
    assert [response.error for response in batch.responses] == [None] * len(requests)
    return recorder.inputs


def test_what_is_on_the_gpu_stays_there() -> None:
    [tensor] = computed(Recorder(takes_gpu_memory=True), ADDRESS)
    assert tensor == GpuTensor(
        shape=(1, 2), dtype=np.dtype(np.float32), parts=[GpuRange(address=ADDRESS, size=8)]
    )


def test_requests_of_one_batch_may_be_in_different_memory() -> None:
    [tensor] = computed(Recorder(takes_gpu_memory=True), ADDRESS, None, 0, ADDRESS + 64)
    assert (tensor.shape, len(tensor)) == ((4, 2), 4)
    first, second, third, fourth = cast("GpuTensor", tensor).parts
    assert (first, fourth) == (GpuRange(address=ADDRESS, size=8), GpuRange(address=ADDRESS + 64, size=8))
    hosts = [np.frombuffer(cast("bytes", part), np.float32).tolist() for part in (second, third)]
    assert hosts == [[1, 1], [2, 2]]


def test_requests_of_a_failed_batch_are_on_the_gpu_when_they_are_tried_alone() -> None:
    together, first, second = computed(Recorder(takes_gpu_memory=True, alone=True), ADDRESS, ADDRESS + 64)
    assert len(together.parts) == 2
    assert [first.parts, second.parts] == [[together.parts[0]], [together.parts[1]]]


def test_inputs_in_host_memory_are_arrays() -> None:
    [array] = computed(Recorder(takes_gpu_memory=True), 0, None)
    assert array.tolist() == [[0, 0], [1, 1]]


def test_other_executors_get_the_bytes() -> None:
    [array] = computed(Recorder(takes_gpu_memory=False), ADDRESS, None)
    assert array.tolist() == [[0, 0], [1, 1]]
