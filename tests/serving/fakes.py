"""Stand-ins for what lies below the engine: a backend that does as a test says, and requests made by hand."""

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from tpx.protocol import messages
from tpx.protocol.tensors import Tensor
from tpx.protocol.v2 import DecodedRequest, Parameter
from tpx.serving.backends.contract import Arrays, InstanceSpec
from tpx.serving.request import (
    BoundInput,
    BoundOutput,
    InferRequest,
    InferResponse,
    RequestHead,
    TensorSpec,
)
from tpx.serving.signature import Signature

MS = 1_000_000


def ignore(request: InferRequest, response: InferResponse) -> None:
    """A reply that nobody waits for."""


class Bystander:
    """What a request knows of its model, where a test plays all other parts of it."""

    name, version, max_batch_size, decoupled, retired = "net", 1, 8, False, False

    def submit(self, request: InferRequest) -> None:
        raise AssertionError("requests are made here, never submitted")

    def cancelled(self) -> None:
        pass


def request_of(
    arrived_ns: int = 0, rows: int = 1, dims: tuple[int, ...] = (2,), **parameters: Parameter
) -> InferRequest:
    """A request as a scheduler sees it: when it came, its rows, with whom it can be stacked, and what its
    parameters ask for."""
    spec = TensorSpec("x", "FP32", (-1,) * len(dims))
    size = rows * int(np.prod(dims)) * 4
    head = RequestHead(
        Bystander(),
        "",
        (BoundInput(spec, (rows, *dims), size, data_size=size),),
        (BoundOutput(TensorSpec("y", "FP32", spec.dims), binary=True, classification=0),),
        rows,
        parameters,
    )
    request = InferRequest(head, [bytes(size)], ignore, None)
    request.arrived_ns = arrived_ns
    return request


def config_of(name: str = "net", max_batch_size: int = 8, dims: Sequence[int] = (2,)) -> Any:
    """The ModelConfig of a model with one input `x` and one output `y`."""
    config = messages.ModelConfig(name=name, backend="fake", max_batch_size=max_batch_size)
    config.input.add(name="x", data_type=11, dims=dims)
    config.output.add(name="y", data_type=11, dims=dims)
    return config


def decoded(rows: Sequence[Sequence[float]], **fields: Any) -> DecodedRequest:
    """A client's request for `x` with these rows."""
    array = np.array(rows, dtype=np.float32)
    return DecodedRequest(
        model_name="net", inputs=[Tensor.from_numpy("x", array)], default_binary=True, **fields
    )


def signature_of(config: Any) -> Signature:
    """The signature that loading would make."""
    return Signature.of(config, {})


def double(inputs: Arrays) -> Arrays:
    """y = 2 x."""
    return {"y": inputs["x"] * 2}


class FakeExecutor:
    """Computes with a function of the test; counts how many threads were inside at once."""

    def __init__(self, owner: "FakeModel") -> None:
        self._owner = owner
        self._inside = 0

    def execute(self, inputs: Arrays) -> Arrays:
        self._inside += 1
        owner = self._owner
        owner.most_inside = max(owner.most_inside, self._inside)
        owner.threads.append(threading.current_thread().name)
        try:
            owner.executed.append({name: array.copy() for name, array in inputs.items()})
            owner.entered.release()
            if owner.gate is not None:
                assert owner.gate.acquire(timeout=10), "the test forgot to open the gate"
            return owner.compute(inputs)
        finally:
            self._inside -= 1

    def close(self) -> None:
        self._owner.closed_executors += 1


class FakeModel:
    """Implements OpenModel. With a `gate`, each execution waits until the test releases it."""

    def __init__(
        self,
        compute: Callable[[Arrays], Arrays] = double,
        *,
        inline: bool = False,
        gate: threading.Semaphore | None = None,
        executors: Iterable[BaseException | None] = (),
    ) -> None:
        self.compute = compute
        self.inline = inline
        self.gate = gate
        self.entered = threading.Semaphore(0)
        self.executed: list[Arrays] = []
        self.threads: list[str] = []
        self.most_inside = 0
        self.closed_executors = 0
        self.closed = 0
        self._outcomes = iter(executors)

    def release(self, count: int = 1) -> None:
        """Let so many executions go on, if there is a gate."""
        if self.gate is not None:
            self.gate.release(count)

    def complete(self, config: Any, *, default_max_batch_size: int) -> None:
        pass

    def check(self, config: Any) -> None:
        pass

    def executor(self, spec: InstanceSpec, config: Any) -> FakeExecutor:
        outcome = next(self._outcomes, None)
        if outcome is not None:
            raise outcome
        return FakeExecutor(self)

    def close(self) -> None:
        self.closed += 1
