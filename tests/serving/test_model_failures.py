"""Backends that fail: whatever they do, every request is answered once and counted once."""

import asyncio
import threading
from typing import Any

import numpy as np
import pytest

from tests.serving.engine import batcher, doubled, serving
from tests.serving.fakes import FakeModel, double
from tpx.errors import Code, ExecutionError, InvalidRequest, LoadError, TpxError
from tpx.serving.backends.contract import Arrays, InstanceSpec, ResponseSender

INLINE = 10_000_000_000


class PanicError(BaseException):
    """What native code raises that must not be caught by accident (pyo3's PanicException is one)."""


def _with_bad_rows(error: BaseException) -> Any:
    def compute(inputs: Arrays) -> Arrays:
        if (inputs["x"] < 0).any():
            raise error
        return double(inputs)

    return compute


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize(
    ("raised", "code", "message"),
    [
        (ExecutionError("out of memory"), Code.INTERNAL, "out of memory"),
        (InvalidRequest("not UTF-8"), Code.INVALID_ARGUMENT, "not UTF-8"),
        (RuntimeError("boom"), Code.INTERNAL, "RuntimeError: boom"),
        (MemoryError(), Code.INTERNAL, "MemoryError: "),
        (StopIteration(3), Code.INTERNAL, "StopIteration: 3"),
        (PanicError("at lib.rs"), Code.INTERNAL, "PanicError: at lib.rs"),
        (SystemExit(2), Code.INTERNAL, "SystemExit: 2"),
    ],
)
async def test_whatever_a_backend_raises_becomes_the_error_of_the_request(
    inline: bool, raised: BaseException, code: Code, message: str
) -> None:
    fake = FakeModel(_with_bad_rows(raised), inline=inline)
    async with serving(fake, inline_below_ns=INLINE if inline else 0) as client:
        for n in range(20):
            await client.answer(client.send([[n, n]]))
        answer = await client.answer(client.send([[-1, 0]]))
        assert isinstance(answer, TpxError)
        assert (answer.code, answer.message) == (code, message)
        # the instance lives
        assert await client.answer(client.send([[3, 3]])) == doubled([[3, 3]])


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("raised", [ExecutionError("bad"), RuntimeError("bad"), PanicError("bad")])
async def test_a_bad_request_in_a_batch_harms_only_itself(inline: bool, raised: BaseException) -> None:
    fake = FakeModel(_with_bad_rows(raised), inline=inline)
    limit = INLINE if inline else 0
    async with serving(fake, scheduler=batcher(), inline_below_ns=limit) as client:
        requests = [client.send([[n, n]]) for n in (1, -1, 3, -4, 5)]
        answers = await client.all_answers(requests)
        assert [isinstance(answer, ExecutionError) for answer in answers] == [
            False, True, False, True, False,
        ]  # fmt: skip
        assert answers[0::2] == [doubled([[n, n]]) for n in (1, 3, 5)]
        statistics = client.model.statistics
        assert statistics.durations()["success"].count == 3
        assert statistics.durations()["fail"].count == 2
        assert statistics.failures["BACKEND"] == 2
        assert statistics.inference_count == 3
        assert statistics.execution_count == 3
        assert {size: entry.count for size, entry in statistics.batches.items()} == {1: 3}


async def test_outputs_that_fail_for_one_request_of_a_batch_do_not_lose_the_others() -> None:
    """The second output of the second request cannot be encoded: the first one was already cut."""

    def compute(inputs: Arrays) -> Arrays:
        rows = inputs["x"][:, :1]
        words = np.where(rows < 0, "\udc80", "fine").astype(object)
        return {"y": words}

    fake = FakeModel(compute)
    async with serving(fake, scheduler=batcher()) as client:
        client.model.signature.outputs["y"].datatype = "BYTES"
        client.model.signature.outputs["y"].dtype = np.dtype(object)
        requests = [client.send([[n, n]]) for n in (1, -1, 2)]
        answers = await client.all_answers(requests)
        assert isinstance(answers[1], TpxError)
        assert [str(answers[0]), str(answers[2])] == ["[[b'fine']]"] * 2


async def test_a_batch_that_fails_once_and_then_works_alone_is_no_failure() -> None:
    calls = iter(range(100))

    def compute(inputs: Arrays) -> Arrays:
        if next(calls) == 0:
            raise RuntimeError("the first one always fails")
        return double(inputs)

    async with serving(FakeModel(compute), scheduler=batcher()) as client:
        requests = [client.send([[n, n]]) for n in range(3)]
        assert await client.all_answers(requests) == [doubled([[n, n]]) for n in range(3)]
        assert client.model.statistics.durations()["fail"].count == 0
        assert client.model.statistics.durations()["success"].count == 3


@pytest.mark.parametrize(
    "outputs",
    [
        {},
        {"y": np.zeros((1, 2), np.float64)},
        {"y": np.zeros((7, 2), np.float32)},
        {"y": np.float32(3)},
        {"z": np.zeros((1, 2), np.float32)},
        {"y": None},
        None,
        [1, 2],
    ],
)
async def test_outputs_that_make_no_sense_are_an_error_of_the_request(outputs: Any) -> None:
    async with serving(FakeModel(lambda _: outputs)) as client:
        answer = await client.answer(client.send([[1, 1]]))
        assert isinstance(answer, ExecutionError)
        assert answer.code is Code.INTERNAL


async def test_a_reply_that_raises_does_not_keep_the_others_of_its_batch_from_their_answers() -> None:
    async with serving(FakeModel(), scheduler=batcher()) as client:
        requests = [client.send([[n, n]]) for n in range(4)]

        def gone(request: Any) -> None:
            if request is requests[1]:
                raise RuntimeError("the transport has gone")

        client.on_answer = gone
        assert await client.all_answers(requests) == [doubled([[n, n]]) for n in range(4)]
        await client.answer(client.send([[9, 9]]))


async def test_instances_of_a_model_that_cannot_start_are_ended() -> None:
    fake = FakeModel(executors=[None, None, ExecutionError("no more memory")])
    with pytest.raises(ExecutionError, match="no more memory"):
        async with serving(fake, instances=3):
            pass
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("net_")]


def test_a_backend_that_only_responds_is_refused_for_a_model_that_is_not_decoupled() -> None:
    class Responding:
        closed = False

        def respond(self, inputs: Arrays, responses: ResponseSender) -> None: ...
        def close(self) -> None:
            self.closed = True

    executor = Responding()

    class Opened(FakeModel):
        def executor(self, spec: InstanceSpec, config: Any) -> Any:
            return executor

    async def scene() -> None:
        async with serving(Opened()):
            pass

    with pytest.raises(LoadError, match="computes only decoupled models"):
        asyncio.run(scene())
    assert executor.closed
