"""Decoupled models: any number of responses, in order, with their times, and an end for whoever has gone."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from tests.serving.fakes import MS, config_of, decoded, signature_of
from tests.waiting import stands, until
from tpx.errors import Cancelled, ExecutionError, InvalidRequest, TpxError
from tpx.serving.backends.contract import Arrays, InstanceSpec, ResponseSender
from tpx.serving.backpressure import AHEAD_BYTES, ResponseBackpressure
from tpx.serving.instances.completions import Completions
from tpx.serving.model import ModelParts, ServedModel
from tpx.serving.request import InferRequest, InferResponse
from tpx.serving.scheduling.direct import DirectScheduler
from tpx.serving.stacking.plain import PlainStacking

Compute = Callable[[Arrays, ResponseSender], None]


class FakeDecoupled:
    """Implements OpenModel and DecoupledExecutor: it responds with a function of the test."""

    inline = False

    def __init__(self, compute: Compute) -> None:
        self._compute = compute

    def complete(self, config: Any, *, default_max_batch_size: int) -> None: ...
    def check(self, config: Any) -> None: ...
    def close(self) -> None: ...

    def executor(self, spec: InstanceSpec, config: Any) -> "FakeDecoupled":
        return self

    def respond(self, inputs: Arrays, responses: ResponseSender) -> None:
        self._compute(inputs, responses)


class Reader:
    """Sends requests and keeps what comes."""

    def __init__(self, model: ServedModel) -> None:
        self.model = model
        self.got: dict[InferRequest, list[InferResponse]] = {}

    def send(self, *values: float) -> InferRequest:
        request = decoded([values])
        head = self.model.bind(request)
        infer = InferRequest(head, [tensor.data for tensor in request.inputs], self._reply, None)
        infer.backpressure = ResponseBackpressure()
        self.got[infer] = []
        self.model.submit(infer)
        return infer

    def _reply(self, infer: InferRequest, response: InferResponse) -> None:
        self.got[infer].append(response)

    async def all_of(self, infer: InferRequest) -> list[Any]:
        """The values of its responses, errors as they are, None for the empty final one."""
        await until(lambda: bool(self.got[infer]) and self.got[infer][-1].final)
        assert [response.final for response in self.got[infer]][:-1] == [False] * (len(self.got[infer]) - 1)
        return [_value(response) for response in self.got[infer]]

    @property
    def stats(self) -> dict[int, dict[str, int]]:
        """By index, the counts that are not zero."""
        counts = self.model.statistics.responses
        return {
            index: {name: item["count"] for name, item in kept.as_dict().items() if item["count"]}
            for index, kept in counts.items()
        }


def _value(response: InferResponse) -> Any:
    if response.error is not None:
        return response.error
    return response.outputs[0].numpy().tolist()[0] if response.outputs else None


@asynccontextmanager
async def serving(compute: Compute, max_batch_size: int = 8) -> AsyncIterator[Reader]:
    loop = asyncio.get_running_loop()
    config = config_of(max_batch_size=max_batch_size)
    config.model_transaction_policy.decoupled = True
    parts = ModelParts(
        signature=signature_of(config),
        scheduler=DirectScheduler(),
        stacking=PlainStacking(batched=max_batch_size > 0),
        opened=FakeDecoupled(compute),
    )
    model = ServedModel(config, 1, parts, loop, inline_below_ns=0)
    specs = [InstanceSpec(name="net_0", kind="KIND_CPU")]
    model.add_instances(model.prepare(specs, config, Completions(loop)))
    reader = Reader(model)
    try:
        yield reader
        await until(lambda: model.in_flight == 0)
    finally:
        for infer in reader.got:
            infer.cancel()
        await asyncio.wait_for(loop.run_in_executor(None, model.close), 5)


def counting(inputs: Arrays, responses: ResponseSender) -> None:
    """As many responses as the first element says."""
    for n in range(int(inputs["x"][0][0])):
        if not responses.send({"y": np.full((1, 2), n, np.float32)}):
            return


async def test_a_request_gets_its_responses_in_order_and_then_an_empty_final_one() -> None:
    async with serving(counting) as reader:
        many, none, one = reader.send(300, 0), reader.send(0, 0), reader.send(1, 0)
        assert await reader.all_of(many) == [[n, n] for n in range(300)] + [None]
        assert await reader.all_of(none) == [None]
        assert await reader.all_of(one) == [[0, 0], None]


async def test_response_statistics_count_by_index_and_requests_once() -> None:
    async with serving(counting) as reader:
        for count in (2, 0, 1, 2):
            await reader.all_of(reader.send(count, 0))
        assert reader.stats == {
            0: {"compute_infer": 4, "compute_output": 3, "success": 3, "empty_response": 1},
            1: {"compute_infer": 3, "compute_output": 2, "success": 2, "empty_response": 1},
            2: {"compute_infer": 2, "empty_response": 2},
        }
        statistics = reader.model.statistics
        assert statistics.durations()["success"].count == 4
        assert (statistics.inference_count, statistics.execution_count) == (4, 4)
        assert statistics.durations()["fail"].count == 0


class StepClock:
    """A clock that moves only when it is told to, and counts how often it was read."""

    def __init__(self) -> None:
        self.now_ns = 1
        self.reads = 0

    def __call__(self) -> int:
        self.reads += 1
        return self.now_ns


async def test_a_response_has_the_time_since_the_one_before_and_not_that_of_waiting_for_the_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, stalled = StepClock(), threading.Event()
    monkeypatch.setattr("tpx.serving.instances.decoupled._clock", clock)

    def slowly(inputs: Arrays, responses: ResponseSender) -> None:
        assert stalled.wait(20)
        for _ in range(3):
            clock.now_ns += 30 * MS
            responses.send({"y": np.zeros((1, 2), np.float32)})

    async with serving(slowly) as reader:
        infer = reader.send(0, 0)
        await until(lambda: clock.reads == 3)  # it was gathered
        infer.stall(True)
        stalled.set()
        await until(lambda: clock.reads == 5)  # the first response was computed and scattered
        clock.now_ns += 600 * MS
        assert reader.got[infer] == []
        infer.stall(False)
        await reader.all_of(infer)
        for index in range(3):
            kept = reader.model.statistics.responses[index].as_dict()
            assert kept["compute_infer"]["ns"] == 30 * MS
            assert kept["success"]["ns"] == 30 * MS
            assert kept["compute_output"]["ns"] == 0


async def test_responses_beyond_the_thousandth_are_counted_together() -> None:
    async with serving(counting) as reader:
        assert len(await reader.all_of(reader.send(1200, 0))) == 1201
        assert len(reader.stats) == 1001
        assert reader.stats[1000]["success"] == 200


async def test_an_error_among_responses_is_one_of_them() -> None:
    def compute(inputs: Arrays, responses: ResponseSender) -> None:
        responses.send({"y": np.ones((1, 2), np.float32)})
        responses.send_error(InvalidRequest("not this one"))
        responses.send({"y": np.full((1, 2), 2, np.float32)})

    async with serving(compute) as reader:
        first, error, last, final = await reader.all_of(reader.send(0, 0))
        assert (first, str(error), last, final) == ([1, 1], "not this one", [2, 2], None)
        assert reader.stats[1] == {"compute_infer": 1, "compute_output": 1, "fail": 1}
        assert reader.model.statistics.durations()["success"].count == 1


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (ExecutionError("it broke"), "it broke"),
        (ValueError("a bug"), "ValueError: a bug"),
        (None, "the model returned no output 'y'"),
    ],
)
async def test_a_failure_after_some_responses_ends_the_request_and_not_the_instance(
    failure: Exception | None, words: str
) -> None:
    def compute(inputs: Arrays, responses: ResponseSender) -> None:
        responses.send({"y": np.ones((1, 2), np.float32)})
        if inputs["x"][0][0] == 1:
            return
        if failure is not None:
            raise failure
        responses.send({"z": np.ones((1, 2), np.float32)})

    async with serving(compute) as reader:
        first, error = await reader.all_of(reader.send(0, 0))
        assert first == [1, 1]
        assert isinstance(error, TpxError)
        assert error.message == words
        assert reader.model.statistics.failures["BACKEND"] == 1
        assert await reader.all_of(reader.send(1, 0)) == [[1, 1], None]
        assert reader.model.statistics.durations()["success"].count == 1


async def test_a_cancelled_request_stops_its_model_and_is_a_failure() -> None:
    done: list[float] = []

    def forever(inputs: Arrays, responses: ResponseSender) -> None:
        count = 0
        while responses.wait(0.001) and responses.send({"y": np.zeros((1, 2), np.float32)}):
            count += 1
        done.append(count)

    async with serving(forever) as reader:
        infer = reader.send(0, 0)
        await until(lambda: len(reader.got[infer]) > 3)
        infer.cancel()
        *_, error = await reader.all_of(infer)
        assert isinstance(error, Cancelled)
        assert len(done) == 1
        statistics = reader.model.statistics
        assert statistics.failures["CANCELED"] == 1
        assert statistics.durations()["success"].count == 0
        assert sum(kept.cancel.count for kept in statistics.responses.values()) == 1


async def test_a_request_cancelled_while_it_waits_is_never_computed() -> None:
    seen: list[float] = []

    def compute(inputs: Arrays, responses: ResponseSender) -> None:
        seen.append(float(inputs["x"][0][0]))
        responses.wait(0.1)

    async with serving(compute) as reader:
        first, second = reader.send(1, 0), reader.send(2, 0)
        third = reader.send(3, 0)
        third.cancel()
        await reader.all_of(first)
        await reader.all_of(second)
        [error] = await reader.all_of(third)
        assert isinstance(error, Cancelled)
        assert seen == [1, 2]


async def test_a_client_that_takes_nothing_holds_its_model_back_until_it_goes() -> None:
    size = 128 << 10
    made: list[int] = []

    def flood(inputs: Arrays, responses: ResponseSender) -> None:
        while responses.send({"y": np.zeros((1, size // 4), np.float32)}):
            made.append(1)

    async with serving(flood) as reader:
        infer = reader.send(0, 0)
        await until(lambda: len(made) > 20)
        infer.stall(True)
        count = await asyncio.to_thread(stands, lambda: len(made))
        infer.stall(False)
        await until(lambda: len(made) > count + 20)
        infer.stall(True)
        infer.cancel()
        await until(lambda: reader.model.in_flight == 0)


async def test_a_model_runs_ahead_of_a_busy_event_loop_only_so_far() -> None:
    made: list[int] = []
    size = 64 << 10

    def flood(inputs: Arrays, responses: ResponseSender) -> None:
        while len(made) < 100 and responses.send({"y": np.zeros((1, size // 4), np.float32)}):
            made.append(1)

    async with serving(flood) as reader:
        infer = reader.send(0, 0)
        await until(lambda: bool(made))
        for _ in range(5):
            await asyncio.sleep(0)
            time.sleep(0.02)  # noqa: ASYNC251 (the loop is busy with something else)
            assert len(made) - len(reader.got[infer]) <= AHEAD_BYTES // size + 2
        assert len(await reader.all_of(infer)) == 101


@pytest.mark.parametrize("rows", [[[1.0, 2.0]], [[1.0, 2.0], [3.0, 4.0]]])
async def test_a_batched_request_stays_one_request(rows: Sequence[Sequence[float]]) -> None:
    def echo(inputs: Arrays, responses: ResponseSender) -> None:
        responses.send({"y": inputs["x"] * 2})

    async with serving(echo) as reader:
        request = decoded(rows)
        head = reader.model.bind(request)
        infer = InferRequest(head, [tensor.data for tensor in request.inputs], reader._reply, None)
        reader.got[infer] = []
        reader.model.submit(infer)
        await reader.all_of(infer)
        assert reader.got[infer][0].outputs[0].numpy().tolist() == (np.array(rows) * 2).tolist()
        assert reader.model.statistics.inference_count == len(rows)
