"""ServedModel: every request is answered exactly once, with its own answer, whatever the backend does."""

import asyncio
import threading
import time
from typing import Any

import pytest

from tests.serving.engine import batcher, closed_gate, doubled, entered, serving
from tests.serving.fakes import FakeModel, double
from tests.waiting import until
from tpx.errors import Cancelled, InvalidRequest, NotReady
from tpx.serving.backends.contract import Arrays
from tpx.serving.request import InferRequest

INLINE = 10_000_000_000


@pytest.mark.parametrize("inline", [False, True])
async def test_answers_go_to_the_requests_they_belong_to(inline: bool) -> None:
    fake = FakeModel(inline=inline)
    async with serving(fake, instances=2, inline_below_ns=INLINE if inline else 0) as client:
        requests = [client.send([[n, n + 0.5]]) for n in range(200)]
        answers = await client.all_answers(requests)
        assert answers == [doubled([[n, n + 0.5]]) for n in range(200)]
        assert len(client.answers) == 200


@pytest.mark.parametrize("inline", [False, True])
async def test_batched_answers_go_to_the_requests_they_belong_to(inline: bool) -> None:
    fake = FakeModel(inline=inline)
    limit = INLINE if inline else 0
    async with serving(fake, scheduler=batcher(), instances=2, inline_below_ns=limit) as client:
        rows = [[[n, -n]] * (1 + n % 3) for n in range(200)]
        requests = [client.send(each) for each in rows]
        assert await client.all_answers(requests) == [doubled(each) for each in rows]
        assert max(len(inputs["x"]) for inputs in fake.executed) <= 8
        assert len(fake.executed) < 100


def test_a_short_model_is_computed_on_the_loop_after_a_while_and_a_long_one_never() -> None:
    async def scene(*, inline: bool) -> set[str]:
        fake = FakeModel(inline=inline)
        async with serving(fake, inline_below_ns=INLINE) as client:
            for n in range(50):
                await client.answer(client.send([[n, n]]))
        return set(fake.threads[40:])

    assert asyncio.run(scene(inline=True)) == {threading.current_thread().name}
    assert asyncio.run(scene(inline=False)) == {"net_0"}


def test_one_slow_execution_sends_a_short_model_back_to_its_thread() -> None:
    slow = threading.Event()

    def compute(inputs: Arrays) -> Arrays:
        if inputs["x"][0, 0] == 1000:
            assert not slow.wait(0.02)
        return double(inputs)

    async def scene() -> list[str]:
        fake = FakeModel(compute, inline=True)
        async with serving(fake, inline_below_ns=1_000_000) as client:
            for n in range(50):
                await client.answer(client.send([[n, n]]))
            await client.answer(client.send([[1000, 0]]))
            await client.answer(client.send([[1, 1]]))
        return fake.threads

    threads = asyncio.run(scene())
    assert threads[-2] == threading.current_thread().name
    assert threads[-1] == "net_0"


def test_a_short_model_moves_to_the_loop_although_requests_never_stop_coming() -> None:
    async def scene() -> list[str]:
        fake = FakeModel(inline=True)
        async with serving(fake, instances=2, inline_below_ns=INLINE) as client:
            left = 400

            def again(_: InferRequest) -> None:
                nonlocal left
                if left:
                    left -= 1
                    client.send([[left, left]])

            client.on_answer = again
            for n in range(16):
                client.send([[n, n]])
            await until(lambda: len(client.answers) == 416)
        return fake.threads[-100:]

    assert set(asyncio.run(scene())) == {threading.current_thread().name}


def test_a_larger_request_than_any_that_was_short_does_not_hold_up_the_loop() -> None:
    async def scene() -> list[str]:
        fake = FakeModel(inline=True)
        async with serving(fake, inline_below_ns=INLINE, dims=(-1,)) as client:
            for n in range(50):
                await client.answer(client.send([[n, n]]))
            await client.answer(client.send([[1] * 1000]))
            await client.answer(client.send([[1] * 1000]))
            await client.answer(client.send([[1] * 2000]))
            await client.answer(client.send([[1]]))
        return fake.threads[-5:]

    here = threading.current_thread().name
    assert asyncio.run(scene()) == [here, "net_0", here, "net_0", here]


async def test_requests_that_come_together_are_computed_together() -> None:
    fake = FakeModel()
    async with serving(fake, scheduler=batcher()) as client:
        requests = [client.send([[n, n]]) for n in range(5)]
        await client.all_answers(requests)
        assert [len(inputs["x"]) for inputs in fake.executed] == [5]


def test_a_batch_waits_for_its_delay_and_no_longer() -> None:
    async def scene() -> float:
        fake = FakeModel()
        async with serving(fake, scheduler=batcher(delay_ms=300)) as client:
            began = asyncio.get_running_loop().time()
            first = client.send([[1, 1]])
            for _ in range(5):
                await asyncio.sleep(0)
            second = client.send([[2, 2]])
            await client.all_answers([first, second])
            assert [len(inputs["x"]) for inputs in fake.executed] == [2]
            return asyncio.get_running_loop().time() - began

    assert asyncio.run(scene()) >= 0.299


async def test_a_busy_instance_has_one_batch_in_hand_and_the_rest_waits_in_the_queue() -> None:
    fake = FakeModel(gate=closed_gate())
    async with serving(fake) as client:
        requests = [client.send([[n, n]]) for n in range(5)]
        await entered(fake)
        assert client.model.pending == 4  # the batch in hand has not begun
        assert client.model.in_flight == 5
        fake.release()
        await client.answer(requests[0])
        await entered(fake)
        assert client.model.pending == 3
        fake.release(4)
        await client.all_answers(requests)
        # in order of arrival, never two at once
        assert [inputs["x"][0, 0] for inputs in fake.executed] == [0, 1, 2, 3, 4]
        assert fake.most_inside == 1


async def test_no_request_waits_behind_a_long_one_while_another_instance_is_free() -> None:
    release = threading.Event()

    def compute(inputs: Arrays) -> Arrays:
        if inputs["x"][0, 0] == 1000:
            assert release.wait(30)
        return double(inputs)

    fake = FakeModel(compute)
    async with serving(fake, instances=2) as client:
        long = client.send([[1000, 0]])
        short = [client.send([[n, n]]) for n in range(20)]
        try:
            assert await client.all_answers(short) == [doubled([[n, n]]) for n in range(20)]
        finally:
            release.set()
        await client.answer(long)


async def test_instances_compute_side_by_side() -> None:
    fake = FakeModel(gate=closed_gate())
    async with serving(fake, instances=3) as client:
        requests = [client.send([[n, n]]) for n in range(3)]
        await entered(fake, 3)
        assert set(fake.threads) == {"net_0", "net_1", "net_2"}
        fake.release(3)
        await client.all_answers(requests)


async def test_a_request_cancelled_in_the_queue_is_not_computed() -> None:
    fake = FakeModel(gate=closed_gate())
    async with serving(fake, scheduler=batcher()) as client:
        first = client.send([[1, 1]])
        await entered(fake)
        waiting = [client.send([[n, n]]) for n in (2, 3, 4)]
        waiting[1].cancel()
        fake.release(10)
        answers = await client.all_answers([first, *waiting])
        assert answers[0] == doubled([[1, 1]])
        assert answers[1] == doubled([[2, 2]])
        assert isinstance(answers[2], Cancelled)
        assert answers[3] == doubled([[4, 4]])
        assert [inputs["x"][:, 0].tolist() for inputs in fake.executed] == [[1], [2, 4]]
        statistics = client.model.statistics
        assert statistics.failures == {"REJECTED": 0, "CANCELED": 1, "BACKEND": 0, "OTHER": 0}
        assert statistics.durations()["fail"].count == 1
        assert statistics.durations()["success"].count == 3


async def test_a_queue_of_nothing_but_cancelled_requests_is_answered_without_computing() -> None:
    fake = FakeModel(gate=closed_gate())
    async with serving(fake) as client:
        first = client.send([[1, 1]])
        await entered(fake)
        waiting = [client.send([[n, n]]) for n in range(10)]
        for request in waiting[1:]:
            request.cancel()
        fake.release(10)
        answers = await client.all_answers([first, *waiting])
        assert answers[:2] == [doubled([[1, 1]]), doubled([[0, 0]])]
        assert all(isinstance(answer, Cancelled) for answer in answers[2:])
        assert len(fake.executed) == 2


async def test_a_request_cancelled_while_it_is_computed_does_not_disturb_its_batch() -> None:
    fake = FakeModel(gate=closed_gate())
    async with serving(fake, scheduler=batcher()) as client:
        requests = [client.send([[n, n]]) for n in range(3)]
        await entered(fake)
        requests[1].cancel()
        fake.release()
        answers = await client.all_answers(requests)
        assert answers == [doubled([[n, n]]) for n in range(3)]


async def test_a_client_that_sends_its_next_request_from_within_an_answer_is_served() -> None:
    fake = FakeModel(inline=True)
    async with serving(fake, inline_below_ns=INLINE) as client:
        chain = iter(range(3000))
        sent = []

        def again(_: Any) -> None:
            n = next(chain, None)
            if n is not None:
                asyncio.get_running_loop().call_soon(lambda: sent.append(client.send([[n, n]])))

        client.on_answer = again
        client.send([[0, 0]])
        await until(lambda: len(client.answers) == 3001)


async def test_statistics_are_exact_sums() -> None:
    fake = FakeModel(gate=closed_gate())
    async with serving(fake, scheduler=batcher()) as client:
        first = client.send([[0, 0]])
        await entered(fake)
        rows = [1, 2, 3, 2]
        waiting = [client.send([[n, n]] * n) for n in rows]
        sent_ns = time.perf_counter_ns()
        await until(lambda: time.perf_counter_ns() > sent_ns + 1_000_000)
        waited_ns = time.perf_counter_ns() - sent_ns
        fake.release(10)
        await client.all_answers([first, *waiting])
        statistics = client.model.statistics
        durations = statistics.durations()
        assert statistics.inference_count == 9
        assert statistics.execution_count == 2
        assert {size: entry.count for size, entry in statistics.batches.items()} == {
            1: 1,
            8: 1,
        }
        counted = ("success", "queue", "compute_input", "compute_infer", "compute_output")
        assert [durations[phase].count for phase in counted] == [5] * 5
        parts = sum(durations[phase].ns for phase in counted[1:])
        assert parts <= durations["success"].ns
        assert all(durations[phase].ns >= 0 for phase in counted)
        # four of them waited for the first, which was computed meanwhile
        assert durations["queue"].ns >= 4 * waited_ns
        assert durations["compute_infer"].ns >= waited_ns
        assert statistics.last_inference_ms > 1_600_000_000_000


async def test_a_request_before_the_first_answer_leaves_no_trace_in_the_statistics() -> None:
    async with serving(FakeModel()) as client:
        with pytest.raises(InvalidRequest):
            client.send([[1, 2, 3]])
        assert client.model.statistics.last_inference_ms == 0
        assert client.model.statistics.durations()["fail"].count == 0


async def test_a_retired_model_refuses() -> None:
    async with serving(FakeModel()) as client:
        client.model.retired = True
        with pytest.raises(NotReady, match="'net' version 1 is not at ready state"):
            client.send([[1, 1]])
