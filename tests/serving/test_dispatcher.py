"""The dispatcher: what schedulers promise holds on a running event loop, with instances that compute."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tests.serving.engine import Client, closed_gate, doubled, entered, serving
from tests.serving.fakes import FakeModel, request_of
from tests.serving.virtual import FakeInstance, Scene
from tests.waiting import until
from tpx.errors import Cancelled, Overloaded
from tpx.protocol.datatypes import BY_NAME
from tpx.serving.backends.contract import GLOBAL, Arrays, Needs
from tpx.serving.batch import Batch
from tpx.serving.request import InferRequest
from tpx.serving.scheduling.base import Refusal, Scheduler
from tpx.serving.scheduling.direct import DirectScheduler
from tpx.serving.scheduling.dynamic import DynamicBatcher
from tpx.serving.scheduling.limiter import RateLimiter
from tpx.serving.scheduling.queue import QueuePolicies, QueuePolicy
from tpx.serving.scheduling.sequences import SequenceTable
from tpx.serving.scheduling.strategies import DirectSequences, OldestSequences
from tpx.serving.stacking.plain import PlainStacking
from tpx.serving.stacking.sequences import SequenceStacking, SequenceState

MS = 1_000_000
INLINE = 10_000_000_000


class Counting:
    """Implements Scheduler with another one, and counts how often it is asked."""

    def __init__(self, scheduler: DynamicBatcher) -> None:
        self._scheduler = scheduler
        self.waits = scheduler.waits
        self.rows_at_once = scheduler.rows_at_once
        self.timed = scheduler.timed
        self.affinity = scheduler.affinity
        self.asked = 0

    def add(self, request: InferRequest) -> None:
        self._scheduler.add(request)

    def take(self, now_ns: int, *, idle: bool, instance: int = 0) -> Sequence[InferRequest]:
        return self._scheduler.take(now_ns, idle=idle, instance=instance)

    def expire(self, now_ns: int) -> Sequence[Refusal]:
        self.asked += 1
        return self._scheduler.expire(now_ns)

    def purge_cancelled(self, now_ns: int) -> Sequence[Refusal]:
        return self._scheduler.purge_cancelled(now_ns)

    def wake_ns(self, now_ns: int) -> int | None:
        return self._scheduler.wake_ns(now_ns)

    def __len__(self) -> int:
        return len(self._scheduler)


def test_a_busy_instance_is_not_asked_again_and_again_for_an_overdue_batch() -> None:
    scheduler = Counting(DynamicBatcher(8, (), MS))
    scene = Scene(scheduler)
    scene.add(request_of())
    scene.loop.run(MS)
    assert len(scene.instance.batches) == 1
    overdue = scene.add(request_of())
    asked = scheduler.asked
    scene.loop.run(100 * MS)
    assert scheduler.asked - asked <= 2, "when it becomes overdue, and then no more"
    scene.instance.finish()
    assert [list(batch.requests) for batch in scene.instance.batches] == [[overdue]]


def test_the_event_loop_computes_queued_batches_for_a_limited_time() -> None:
    scene = Scene(DynamicBatcher(1, (), 0), inline_below_ns=MS // 5, cost_ns=MS // 10)
    for _ in range(40):  # until the model is known as a short one
        scene.add(request_of())
        while scene.instance.batches:
            scene.instance.finish()
    before = len(scene.instance.here)
    assert before
    for _ in range(64):
        scene.dispatcher.add(request_of())
    turns: list[int] = []
    for _ in range(4):
        scene.loop.turn()
        turns.append(len(scene.instance.here) - before)
    assert turns == [21, 42, 63, 64]


def test_a_delayed_batch_leaves_when_its_delay_ends() -> None:
    scene = Scene(DynamicBatcher(8, (), 5 * MS))
    scene.add(request_of())
    scene.loop.run(3 * MS)
    scene.add(request_of())
    scene.loop.run(5 * MS - 1)
    assert not scene.instance.batches
    scene.loop.run(5 * MS)
    assert [len(batch.requests) for batch in scene.instance.batches] == [2]


def test_a_timeout_ends_while_all_instances_are_busy() -> None:
    policies = QueuePolicies(default=QueuePolicy(timeout_ns=20 * MS))
    scene = Scene(DynamicBatcher(1, (), 0, policies))
    scene.add(request_of())
    late = scene.add(request_of())
    scene.loop.run(100 * MS)
    [(at_ns, refused, error)] = scene.refusals
    assert (at_ns, refused, error.message) == (20 * MS, late, "Request timeout expired")
    assert isinstance(error, Overloaded)
    assert [scene.instance.finish()] == scene.answers


def test_cancelled_requests_are_purged_while_the_instance_is_busy() -> None:
    scene = Scene(DirectScheduler())
    scene.add(request_of())
    waiting = [scene.add(request_of()) for _ in range(3)]
    for request in waiting[:2]:
        request.cancelled = True
        scene.dispatcher.cancelled()
    assert scene.dispatcher.pending == 4
    scene.loop.run(60 * MS)
    assert [request for _, request, _ in scene.refusals] == waiting[:2]
    assert scene.dispatcher.pending == 2


async def test_a_full_queue_refuses_at_once_and_counts_it() -> None:
    policies = QueuePolicies(default=QueuePolicy(max_queue_size=1))
    fake = FakeModel(gate=closed_gate())
    async with serving(fake, scheduler=DynamicBatcher(1, (), 0, policies)) as client:
        requests = [client.send([[1, 1]])]
        await entered(fake)
        requests.append(client.send([[2, 2]]))
        with pytest.raises(Overloaded, match="Exceeds maximum queue size"):
            client.send([[3, 3]], request_id="three")
        assert client.model.statistics.failures["REJECTED"] == 1
        fake.release(2)
        assert await client.all_answers(requests) == [doubled([[1, 1]]), doubled([[2, 2]])]


@pytest.mark.parametrize("preserve", [True, False])
def test_answers_keep_the_order_of_their_requests_where_that_is_asked_for(preserve: bool) -> None:
    slow = threading.Event()

    def compute(inputs: Arrays) -> Arrays:
        if inputs["x"][0, 0] == 1:
            assert slow.wait(10)
        return {"y": inputs["x"] * 2}

    async def scene() -> list[float]:
        fake = FakeModel(compute)
        scheduler = DynamicBatcher(1)
        async with serving(fake, scheduler=scheduler, instances=2, preserve_ordering=preserve) as client:
            sent = [client.send([[n, n]]) for n in (1, 2, 3)]
            await until(lambda: len(fake.executed) == 3)
            if preserve:
                await until(lambda: client.model.statistics.execution_count == 2)
                assert not client.answers
            else:
                await until(lambda: len(client.answers) == 2)
            slow.set()
            await client.all_answers(sent)
            return [request.context[0][0] for request, _ in client.answers]

    assert asyncio.run(scene()) == ([1, 2, 3] if preserve else [2, 3, 1])


async def test_a_refused_request_does_not_hold_up_the_order() -> None:
    policies = QueuePolicies(default=QueuePolicy(timeout_ns=200 * MS, max_queue_size=1))
    fake = FakeModel(gate=closed_gate())
    scheduler = DynamicBatcher(1, (), 0, policies)
    async with serving(fake, scheduler=scheduler, preserve_ordering=True) as client:
        first = client.send([[1, 1]])
        await entered(fake)
        late = client.send([[2, 2]])
        with pytest.raises(Overloaded):
            client.send([[3, 3]])
        await until(lambda: client.model.statistics.failures["REJECTED"] == 2)
        assert not client.answers
        fake.release()
        await client.all_answers([first, late])
        assert [request for request, _ in client.answers] == [first, late]


# sequences


def accumulate(inputs: Arrays) -> Arrays:
    """Adds x to the state."""
    total = inputs["s_in"] + inputs["x"]
    return {"y": total, "s_out": total}


def states() -> list[SequenceState]:
    zeros = np.zeros(2, np.float32)
    return [SequenceState(input_name="s_in", output_name="s_out", datatype=BY_NAME["FP32"], initial=zeros)]


def sequential(slots: int, *, oldest: bool, idle_ns: int = 10**12) -> dict[str, Any]:
    """The parts of a model of sequences."""
    table = SequenceTable("net", 0, slots, idle_ns, lambda _: None)
    stacking = SequenceStacking(controls=[], states=states(), inner=PlainStacking(batched=True), batched=True)
    if oldest:
        return {
            "scheduler": OldestSequences(table, lambda: DynamicBatcher(slots)),
            "stacking": stacking,
        }
    return {"scheduler": DirectSequences(table, slots, 0, 0), "stacking": stacking}


def step(
    client: Client, correlation_id: int, value: float, *, start: bool, end: bool = False
) -> InferRequest:
    parameters = {"sequence_id": correlation_id, "sequence_start": start, "sequence_end": end}
    return client.send([[value, -value]], parameters=parameters)


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("oldest", [False, True])
@pytest.mark.parametrize("slots", [1, 3])
async def test_many_sequences_at_once_each_add_up(oldest: bool, inline: bool, slots: int) -> None:
    fake = FakeModel(accumulate, inline=inline)
    limit = INLINE if inline else 0
    parts = sequential(slots, oldest=oldest)
    async with serving(fake, instances=2, inline_below_ns=limit, **parts) as client:
        requests = [[step(client, n, n, start=not k, end=k == 9) for n in range(1, 21)] for k in range(10)]
        for k, row in enumerate(requests):
            expected = [[[float(n * (k + 1)), float(-n * (k + 1))]] for n in range(1, 21)]
            assert await client.all_answers(row) == expected
        assert not client.model.busy


async def test_a_sequence_stays_with_its_instance() -> None:
    fake = FakeModel(accumulate)
    async with serving(fake, instances=3, **sequential(1, oldest=False)) as client:
        for k in range(8):
            await client.answer(step(client, 5, 1, start=not k))
            assert client.model.busy
        assert len(set(fake.threads)) == 1
        await client.answer(step(client, 5, 1, start=False, end=True))
        assert not client.model.busy


async def test_an_idle_sequence_ends_although_nothing_else_happens() -> None:
    fake = FakeModel(accumulate)
    async with serving(fake, **sequential(1, oldest=False, idle_ns=10 * MS)) as client:
        await client.answer(step(client, 1, 1, start=True))
        waiting = step(client, 2, 2, start=True, end=True)
        assert client.model.busy
        assert await client.answer(waiting) == [[2, -2]]
        await until(lambda: not client.model.busy)


async def test_empty_slots_count_as_rows_of_an_execution_and_not_as_inferences() -> None:
    fake = FakeModel(accumulate)
    async with serving(fake, **sequential(4, oldest=False)) as client:
        for number in (1, 2, 3):
            await client.answer(step(client, number, number, start=True))
        await client.answer(step(client, 3, 10, start=False))
        await client.answer(step(client, 1, 10, start=False))
        statistics = client.model.statistics
        assert {size: each.count for size, each in statistics.batches.items()} == {1: 2, 2: 1, 3: 2}
        assert (statistics.inference_count, statistics.execution_count) == (5, 5)
        assert [len(inputs["x"]) for inputs in fake.executed] == [1, 2, 3, 3, 1]
        for number in (1, 2, 3):
            await client.answer(step(client, number, 0, start=False, end=True))


async def test_the_row_of_a_cancelled_request_of_a_sequence_is_empty() -> None:
    fake = FakeModel(accumulate, gate=closed_gate())
    async with serving(fake, **sequential(3, oldest=False)) as client:
        first = step(client, 1, 1, start=True, end=True)
        await entered(fake)
        behind = [step(client, number, number, start=True, end=True) for number in (2, 3, 4)]
        behind[1].cancelled = True
        fake.release(5)
        await client.all_answers([first, *behind])
        assert fake.executed[1]["x"][:, 0].tolist() == [4, 2, 0]
        assert client.model.statistics.failures["CANCELED"] == 1


async def test_a_failed_request_of_a_sequence_leaves_its_state_as_it_was() -> None:
    def compute(inputs: Arrays) -> Arrays:
        if (inputs["x"] == 13).any():
            raise RuntimeError("unlucky")
        return accumulate(inputs)

    async with serving(FakeModel(compute), **sequential(2, oldest=False)) as client:
        await client.answer(step(client, 1, 1, start=True))
        bad, good = step(client, 1, 13, start=False), step(client, 2, 2, start=True)
        error = await client.answer(bad)
        assert getattr(error, "message", "") == "RuntimeError: unlucky"
        assert await client.answer(good) == [[2, -2]], "the other sequences of its batch are served"
        assert await client.answer(step(client, 1, 4, start=False, end=True)) == [[5, -5]]
        await client.answer(step(client, 2, 0, start=False, end=True))


async def test_a_cancelled_request_ends_its_sequence_for_all_that_wait_in_it() -> None:
    fake = FakeModel(accumulate, gate=closed_gate())
    async with serving(fake, **sequential(1, oldest=False)) as client:
        parts = [step(client, 1, 1, start=not k) for k in range(3)]
        await entered(fake)
        parts[1].cancel()
        other = step(client, 2, 7, start=True, end=True)
        fake.release(2)
        assert await client.answer(other) == [[7, -7]]
        answers = await client.all_answers(parts)
        assert [isinstance(answer, Cancelled) for answer in answers] == [False, True, True]
        assert client.model.statistics.failures["CANCELED"] == 2


# turns


async def test_a_turn_that_nobody_needs_any_more_goes_to_the_next_model() -> None:
    limiter = RateLimiter({})
    needs = Needs(resources={("R", 0): 1})
    busy, idle, last = (FakeModel(gate=closed_gate()) for _ in range(3))
    async with (
        serving(busy, needs=needs, limiter=limiter, name="busy") as first,
        serving(idle, needs=needs, limiter=limiter, name="idle") as second,
        serving(last, needs=needs, limiter=limiter) as third,
    ):
        running = first.send([[1, 1]])
        await entered(busy)
        unwanted = second.send([[2, 2]])
        waiting = third.send([[3, 3]])
        unwanted.cancel()
        for fake in (busy, last):
            fake.release()
        assert await first.answer(running) == doubled([[1, 1]])
        assert await third.answer(waiting) == doubled([[3, 3]])
        assert isinstance(await second.answer(unwanted), Cancelled)
        assert not idle.executed


@pytest.mark.parametrize("inline", [False, True])
async def test_models_that_take_turns_serve_everybody(inline: bool) -> None:
    limiter = RateLimiter({})
    limit = INLINE if inline else 0
    fakes = [FakeModel(inline=inline) for _ in range(3)]
    options: dict[str, Any] = {"limiter": limiter, "inline_below_ns": limit, "instances": 2}
    async with (
        serving(fakes[0], name="a", needs=Needs(resources={("R", 0): 1}), **options) as a,
        serving(
            fakes[1],
            name="b",
            needs=Needs(resources={("R", 0): 2}, priority=3),
            scheduler=DynamicBatcher(8),
            **options,
        ) as b,
        serving(fakes[2], name="c", needs=Needs(resources={("R", 0): 3, ("Q", -1): 1}), **options) as c,
    ):
        sent = [[client.send([[n, n]]) for n in range(60)] for client in (a, b, c)]
        for client, requests in zip((a, b, c), sent, strict=True):
            assert await client.all_answers(requests) == [doubled([[n, n]]) for n in range(60)]


async def test_a_timeout_ends_while_others_have_the_turn() -> None:
    limiter = RateLimiter({})
    needs = Needs(resources={("R", 0): 1})
    policies = QueuePolicies(default=QueuePolicy(timeout_ns=10 * MS))
    busy = FakeModel(gate=closed_gate())
    scheduler = DynamicBatcher(1, (), 0, policies)
    async with (
        serving(busy, needs=needs, limiter=limiter, name="busy") as first,
        serving(FakeModel(), needs=needs, limiter=limiter, scheduler=scheduler) as second,
    ):
        running = first.send([[1, 1]])
        await entered(busy)
        assert isinstance(await second.answer(second.send([[2, 2]])), Overloaded)
        assert busy.gate is not None
        busy.gate.release()
        assert await first.answer(running) == doubled([[1, 1]])


def medium_scene(scheduler: Scheduler) -> Scene:
    """A model of 0.4 ms, which is not short and may be computed on the loop for a lone request."""
    return Scene(scheduler, inline_below_ns=100_000, cost_ns=400_000)


@pytest.mark.parametrize("scheduler", [DirectScheduler, lambda: DynamicBatcher(8)])
def test_lone_requests_of_a_model_that_is_not_short_are_computed_on_the_loop(
    scheduler: Callable[[], Scheduler],
) -> None:
    scene = medium_scene(scheduler())
    for _ in range(160):
        scene.add(request_of())
        if scene.instance.batches:
            scene.instance.finish()
    assert len(scene.answers) == 160
    assert len(scene.instance.here) == 160 - 16 - 8


@pytest.mark.parametrize("scheduler", [DirectScheduler, lambda: DynamicBatcher(8)])
def test_requests_with_company_stay_with_their_instance(scheduler: Callable[[], Scheduler]) -> None:
    scene = medium_scene(scheduler())
    for _ in range(100):
        scene.add(request_of())
        scene.add(request_of())
        while scene.instance.batches:
            scene.instance.finish()
    assert len(scene.instance.here) == 0


def test_nothing_is_computed_on_the_loop_before_what_the_instance_holds() -> None:
    scene = medium_scene(DirectScheduler())
    while not scene.instance.here:
        scene.add(request_of())
        if scene.instance.batches:
            scene.instance.finish()
    for _ in range(16):
        scene.add(request_of())
    assert len(scene.instance.batches) == 1
    before = len(scene.instance.here)
    scene.add(request_of())
    assert len(scene.instance.here) == before


class Chain(Scene):
    """Sends the next request from within the answer to each."""

    left = 0

    def answered(self, batch: Batch) -> None:
        super().answered(batch)
        if self.left:
            self.left -= 1
            self.dispatcher.add(request_of())


def test_requests_from_within_answers_are_computed_without_nesting() -> None:
    scene = Chain(DirectScheduler(), inline_below_ns=MS // 5, cost_ns=1000)
    for _ in range(10):  # until the model is known as a short one
        scene.add(request_of())
        while scene.instance.batches:
            scene.instance.finish()
    assert scene.instance.here
    before, scene.left = len(scene.answers), 2000
    scene.dispatcher.add(request_of())
    scene.loop.run()
    assert len(scene.answers) - before == 2001


def test_a_request_with_an_earlier_deadline_than_those_before_it_is_refused_in_time() -> None:
    policies = QueuePolicies(default=QueuePolicy(timeout_ns=20 * MS, allow_timeout_override=True))
    scene = Scene(DynamicBatcher(1, (), 0, policies))
    scene.add(request_of())
    late = scene.add(request_of())
    early = scene.add(request_of(timeout=5000))
    scene.loop.run(100 * MS)
    assert [(at_ns, request) for at_ns, request, _ in scene.refusals] == [(5 * MS, early), (20 * MS, late)]


def test_a_removed_instance_gets_no_more_work() -> None:
    scene = Scene(DirectScheduler())
    other = FakeInstance()
    scene.dispatcher.pool.add(scene.dispatcher.pool.queue_for(Needs()), other)
    scene.dispatcher.pool.remove(scene.instance)
    assert scene.dispatcher.pool.instances == [other]
    scene.add(request_of())
    scene.add(request_of())
    assert (len(scene.instance.batches), len(other.batches)) == (0, 1)


def test_a_removed_instance_keeps_its_resources_until_its_batch_ends() -> None:
    limiter = RateLimiter({("R", GLOBAL): 1})
    needs = Needs(resources={("R", GLOBAL): 1})
    scenes = [Scene(DirectScheduler(), limiter=limiter, needs=needs) for _ in range(2)]
    for scene in scenes:
        scene.loop.run()
        scene.add(request_of())
    first, second = scenes
    assert [len(scene.instance.batches) for scene in scenes] == [1, 0]
    first.dispatcher.pool.remove(first.instance)
    second.loop.run()
    assert not second.instance.batches
    first.instance.finish()
    second.loop.run()
    assert len(second.instance.batches) == 1
