"""Bound memory has one user at a time: the thread of an instance, or the event loop."""

import threading
import weakref
from typing import Any

import numpy as np
import pytest

from tests.serving.engine import closed_gate, doubled, entered, serving
from tests.serving.fakes import FakeModel
from tpx.serving.backends.contract import Arrays, InstanceSpec

INLINE = 10_000_000_000


class BoundMemory:
    """Implements Executor, Binds and Binding: doubles in one memory, and waits inside for the test to let it
    go on, if it is a thread of an instance that computes.
    """

    def __init__(self, owner: FakeModel) -> None:
        self._owner = owner
        self.users: list[str] = []
        """Names of the threads that are computing in the memory."""
        self.intruders: list[str] = []
        self.inputs: dict[str, memoryview] = {}
        self.outputs: Arrays = {}

    def execute(self, inputs: Arrays) -> Arrays:
        return {"y": inputs["x"] * 2}

    def bind(self, inputs: Arrays, outputs: Arrays) -> "BoundMemory":
        self._array = inputs["x"].copy()
        self.inputs = {"x": self._array.reshape(-1).view("u1").data}
        self.outputs = {"y": outputs["y"].copy()}
        return self

    def run(self) -> None:
        name = threading.current_thread().name
        if self.users:
            self.intruders.append(name)
        self.users.append(name)
        if name == "net_0" and self._owner.gate is not None:
            self._owner.entered.release()
            assert self._owner.gate.acquire(timeout=10), "the test forgot to open the gate"
        np.multiply(self._array, 2, out=self.outputs["y"])
        self.users.remove(name)

    def close(self) -> None: ...


class BindingModel(FakeModel):
    """A FakeModel whose only instance computes in bound memory."""

    def __init__(self) -> None:
        super().__init__(inline=True)
        self.memory = BoundMemory(self)

    def executor(self, spec: InstanceSpec, config: Any) -> Any:
        self.closed_executors += 1
        return self.memory


@pytest.mark.parametrize("kept_by", ["scheduler", "fast path"])
async def test_the_loop_never_computes_in_memory_that_an_instance_holds(kept_by: str) -> None:
    """An instance holds two batches when it has shown that the model is short: after the first one ends, the
    loop may compute, but not before the second one has left the memory.
    """
    model = BindingModel()
    async with serving(model, inline_below_ns=INLINE) as client:
        memory = model.memory
        for number in range(8):  # one short of what makes the loop compute
            assert await client.answer(client.send([[number, 1]])) == doubled([[number, 1]])
        assert memory.inputs, "the shapes are bound"
        model.gate = gate = closed_gate()
        held = [client.send([[10, 1]]), client.send([[11, 1]])]
        await entered(model)
        gate.release()
        await client.answer(held[0])
        await entered(model)
        assert memory.users == ["net_0"]
        if kept_by == "fast path":
            fast = client.model.fast_path(held[1].head)
            assert fast is not None
            assert fast.compute_one(bytes(8)) is None
        offered = client.send([[12, 1]])
        assert not memory.intruders
        gate.release()
        assert await client.all_answers([held[1], offered]) == [doubled([[11, 1]]), doubled([[12, 1]])]
        assert client.model.fast_path(held[1].head) is not None
        here = client.send([[13, 1]])
        assert client.answers[-1][0] is here, "the loop computes once the instance is idle"


async def test_a_closed_model_is_not_kept_in_memory_by_the_fast_path_of_its_requests() -> None:
    """Frontends remember requests until the next one comes after a change of models."""

    class Apart(BoundMemory):
        """What runs is not the executor, which closes its model itself."""

        def bind(self, inputs: Arrays, outputs: Arrays) -> BoundMemory:
            bound = BoundMemory(model).bind(inputs, outputs)
            bindings.append(weakref.ref(bound))
            return bound

    bindings: list[weakref.ref[BoundMemory]] = []
    model = BindingModel()
    model.memory = Apart(model)
    async with serving(model, inline_below_ns=INLINE) as client:
        for _ in range(9):
            await client.answer(sent := client.send([[1, 1]]))
        fast = client.model.fast_path(sent.head)
        assert fast is not None
        assert fast.compute_one(bytes(8)) == [bytes(8)]
        assert bindings[0]() is not None
    assert bindings[0]() is None
    assert fast.compute_one(bytes(8)) is None
