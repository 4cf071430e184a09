"""A ServedModel over a fake backend on a running event loop, and what its requests were answered."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np

from tests.serving.fakes import FakeModel, config_of, decoded, signature_of
from tests.waiting import until
from tpx.errors import TpxError
from tpx.protocol.tensors import Tensor
from tpx.serving.backends.contract import InstanceSpec, Needs
from tpx.serving.instances.completions import Completions
from tpx.serving.model import ModelParts, ServedModel
from tpx.serving.request import InferRequest, InferResponse
from tpx.serving.scheduling.base import Scheduler
from tpx.serving.scheduling.direct import DirectScheduler
from tpx.serving.scheduling.dynamic import DynamicBatcher
from tpx.serving.stacking.plain import PlainStacking

Rows = list[list[float]]


class Client:
    """Sends requests to a model and keeps every answer with the request it came for."""

    def __init__(self, model: ServedModel) -> None:
        self.model = model
        self.answers: list[tuple[InferRequest, InferResponse]] = []
        self.on_answer: Callable[[InferRequest], None] = lambda _: None

    def send(self, rows: Sequence[Sequence[float]], **fields: Any) -> InferRequest:
        request = decoded(rows, **fields)
        head = self.model.bind(request)
        infer = InferRequest(head, [tensor.data for tensor in request.inputs], self._reply, rows)
        self.model.submit(infer)
        return infer

    async def answer(self, request: InferRequest, timeout_s: float = 20.0) -> Rows | TpxError:
        """The rows or the error of a request that was sent; fails if it is not answered exactly once."""
        await until(lambda: bool(self._of(request)), timeout_s)
        [response] = self._of(request)
        if response.error is not None:
            return response.error
        [tensor] = response.outputs
        return rows_of(tensor)

    async def all_answers(self, requests: Sequence[InferRequest]) -> list[Rows | TpxError]:
        return [await self.answer(request) for request in requests]

    def _of(self, request: InferRequest) -> list[InferResponse]:
        return [response for asked, response in self.answers if asked is request]

    def _reply(self, request: InferRequest, response: InferResponse) -> None:
        self.answers.append((request, response))
        self.on_answer(request)


def rows_of(tensor: Tensor) -> Rows:
    """The values of an FP32 tensor."""
    rows: Rows = tensor.numpy().tolist()
    return rows


def doubled(rows: Sequence[Sequence[float]]) -> Rows:
    """What the fake backend gives for these rows."""
    doubled: Rows = (np.array(rows, dtype=np.float32) * 2).tolist()
    return doubled


@asynccontextmanager
async def serving(
    fake: FakeModel,
    *,
    scheduler: Scheduler | None = None,
    instances: int = 1,
    max_batch_size: int = 8,
    inline_below_ns: int = 0,
    dims: Sequence[int] = (2,),
    needs: Needs | None = None,
    name: str = "net",
    **parts: Any,
) -> AsyncIterator[Client]:
    """A model that runs on `fake`; afterwards nothing may be in flight and all its threads end.

    `parts` are further ones of the model, or others than the usual ones.
    """
    loop = asyncio.get_running_loop()
    config = config_of(max_batch_size=max_batch_size, dims=dims)
    model = ServedModel(
        config,
        1,
        ModelParts(
            signature=signature_of(config),
            scheduler=DirectScheduler() if scheduler is None else scheduler,
            opened=fake,
            **{"stacking": PlainStacking(batched=max_batch_size > 0), **parts},
        ),
        loop,
        inline_below_ns=inline_below_ns,
    )
    names = [f"{name}_{index}" for index in range(instances)]
    specs = [InstanceSpec(name=each, kind="KIND_CPU", needs=needs or Needs()) for each in names]
    model.add_instances(model.prepare(specs, config, Completions(loop)))
    client = Client(model)
    try:
        yield client
        assert model.in_flight == 0
        assert model.pending == 0
    finally:
        fake.release(1000)
        await loop.run_in_executor(None, model.close)
    assert not [thread for thread in threading.enumerate() if thread.name in names]
    assert fake.closed_executors == instances
    assert fake.closed == 1


def batcher(delay_ms: float = 0, preferred: Sequence[int] = ()) -> DynamicBatcher:
    """A dynamic batcher for models of eight rows."""
    return DynamicBatcher(8, preferred, int(delay_ms * 1e6))


def closed_gate() -> threading.Semaphore:
    """For a FakeModel: each execution waits for one release."""
    return threading.Semaphore(0)


async def entered(fake: FakeModel, count: int = 1) -> None:
    """Wait until `count` more executions have begun."""
    for _ in range(count):
        await until(lambda: fake.entered.acquire(blocking=False))
