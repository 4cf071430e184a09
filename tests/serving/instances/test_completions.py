"""Finished batches reach the event loop: all of them, in order, with few wake-ups."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.serving.fakes import request_of
from tests.waiting import until
from tpx.serving.batch import Batch
from tpx.serving.instances.completions import Completions


def batches(count: int) -> list[Batch]:
    """As many batches."""
    return [Batch([request_of(index)]) for index in range(count)]


def in_a_thread(work: Callable[[], None]) -> threading.Thread:
    """A running thread."""
    thread = threading.Thread(target=work)
    thread.start()
    return thread


async def test_every_batch_of_every_thread_arrives_in_the_order_of_its_thread() -> None:
    completions = Completions(asyncio.get_running_loop())
    arrived: list[Batch] = []
    work = [batches(500) for _ in range(4)]

    def push(mine: list[Batch]) -> None:
        for batch in mine:
            completions.push(arrived.append, batch)

    threads = [in_a_thread(lambda mine=mine: push(mine)) for mine in work]  # type: ignore[misc]
    await until(lambda: len(arrived) == 2000)
    for thread in threads:
        thread.join()
    for mine in work:
        own = {id(batch) for batch in mine}
        assert [batch for batch in arrived if id(batch) in own] == mine


def test_batches_that_finish_together_wake_the_loop_once() -> None:
    class CountingLoop:
        def __init__(self) -> None:
            self.calls: list[Callable[[], None]] = []

        def call_soon_threadsafe(self, call: Callable[[], None]) -> None:
            self.calls.append(call)

    loop = CountingLoop()
    completions = Completions(loop)  # type: ignore[arg-type]
    arrived: list[Batch] = []
    mine = batches(10)
    for batch in mine:
        completions.push(arrived.append, batch)
    assert len(loop.calls) == 1
    loop.calls.pop()()
    assert arrived == mine
    completions.push(arrived.append, mine[0])
    assert len(loop.calls) == 1


async def test_what_raises_does_not_keep_the_others_from_arriving() -> None:
    loop = asyncio.get_running_loop()
    reported: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: reported.append(context))
    completions = Completions(loop)
    arrived: list[Batch] = []

    def fails(batch: Batch) -> None:
        raise RuntimeError("a defect")

    mine = batches(3)
    for batch, callback in zip(mine, (arrived.append, fails, arrived.append), strict=True):
        completions.push(callback, batch)
    await until(lambda: len(arrived) == 2)
    assert [str(context["exception"]) for context in reported] == ["a defect"]


def test_a_batch_that_finishes_after_the_loop_has_ended_is_dropped() -> None:
    loop = asyncio.new_event_loop()
    completions = Completions(loop)
    loop.close()
    completions.push(lambda _: pytest.fail("nobody is there to call it"), batches(1)[0])


async def test_what_is_left_after_a_share_of_time_waits_for_the_next_turn() -> None:
    """Answers that a thread makes faster than they are sent would otherwise keep the loop from all else."""
    time_ns = 0
    arrived: list[Batch] = []

    def take(batch: Batch) -> None:
        nonlocal time_ns
        time_ns += 1_500_000
        arrived.append(batch)

    completions = Completions(asyncio.get_running_loop(), lambda: time_ns)
    mine = batches(5)
    for batch in mine:
        completions.push(take, batch)
    seen = []
    while len(arrived) < 5:
        await asyncio.sleep(0)
        seen.append(len(arrived))
    assert [count for count in seen if count] == [2, 4, 5]
    assert arrived == mine
