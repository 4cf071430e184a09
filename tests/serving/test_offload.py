"""Answers that take long, made on the event loop in steps and once for all that wait."""

import asyncio
import threading
from collections.abc import Iterator
from functools import partial

from tpx.errors import Overloaded, TpxError
from tpx.protocol.memory_budget import MemoryBudget
from tpx.serving.offload import Coalesced, Offload, in_steps


class SlowClock:
    """Moves on by a millisecond whenever it is read."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 0.001
        return self.now_s


class Answers:
    """Makes numbered answers, each when it is let."""

    def __init__(self) -> None:
        self.begun = 0
        self.gate = asyncio.Semaphore(0)

    async def make(self) -> int:
        self.begun += 1
        number = self.begun
        await self.gate.acquire()
        return number


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_outputs_that_wait_to_be_encoded_are_charged_and_refused_beyond_the_budget() -> None:
    budget = MemoryBudget(100)
    offload = Offload(budget)
    gate, ended = threading.Event(), asyncio.Event()
    failed: list[TpxError] = []
    encoded: list[int] = []

    def take(_: bool) -> None:
        encoded.append(budget.held)
        if len(encoded) == 3:
            ended.set()

    for size in (60, 30, 40, 0):
        offload.encode(size, partial(gate.wait, 5), take, failed.append)
    assert [type(error) for error in failed] == [Overloaded]
    assert budget.held == 90
    gate.set()
    await ended.wait()
    assert encoded == [90, 30, 0]
    assert budget.held == 0
    offload.close()


async def test_others_run_while_a_long_answer_is_made_in_steps() -> None:
    seen = []
    others = 0

    def other() -> None:
        nonlocal others
        others += 1
        asyncio.get_running_loop().call_soon(other)

    def pieces() -> Iterator[int]:
        for number in range(9):
            seen.append(others)
            yield number

    other()
    assert await in_steps(pieces(), SlowClock()) == list(range(9))
    assert len(set(seen)) > 2


async def test_requests_that_come_while_an_answer_is_made_share_the_next_one() -> None:
    answers = Answers()
    coalesced = Coalesced(answers.make)
    first = asyncio.create_task(coalesced.get())
    await turns()
    others = [asyncio.create_task(coalesced.get()) for _ in range(100)]
    await turns()
    assert answers.begun == 1
    answers.gate.release()
    answers.gate.release()
    assert await first == 1
    assert await asyncio.gather(*others) == [2] * 100
    assert answers.begun == 2


async def test_a_request_that_is_cancelled_leaves_the_answer_to_the_others() -> None:
    answers = Answers()
    coalesced = Coalesced(answers.make)
    first, second = asyncio.create_task(coalesced.get()), asyncio.create_task(coalesced.get())
    await turns()
    first.cancel()
    answers.gate.release()
    assert await second == 1


async def test_a_failure_is_told_to_all_that_wait_and_the_next_answer_is_made_anew() -> None:
    faults = [ValueError("no")]

    async def make() -> int:
        if faults:
            raise faults.pop()
        return 7

    coalesced = Coalesced(make)
    failed = await asyncio.gather(coalesced.get(), coalesced.get(), return_exceptions=True)
    assert [str(each) for each in failed] == ["no", "no"]
    assert await coalesced.get() == 7
