"""A budget that greedy connections share: who waits, who is refused, and whose answers are dropped."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest

from tests.waiting import until
from tpx.errors import Cancelled, Overloaded
from tpx.protocol.memory_budget import Account, MemoryBudget

MB = 1 << 20


class FakeConnection:
    """Drops its answers and its silent request when it is told to."""

    def __init__(
        self, budget: MemoryBudget, *, answers: int = 0, silent: int = 0, reads: bool = False
    ) -> None:
        self.reads = reads
        self.account: Account = budget.account(self)
        self.dropped: list[str] = []
        self._silent = silent
        if answers:
            self.account.hold_answer(answers)
        if silent:
            self.account.hold_request(silent)

    def drop_answers(self) -> None:
        self.dropped.append("answers")
        self.account.hold_answer(-self.account.answers)

    def drop_silent_requests(self) -> None:
        if self._silent:
            self.dropped.append("silent")
            self.account.hold_request(-self._silent)
            self._silent = 0


def on_loop(scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scene())


def wait(budget: MemoryBudget, connection: FakeConnection, size: int) -> list[str]:
    """Have a connection wait for memory; the list tells what became of it."""
    outcome: list[str] = []
    budget.wait(
        connection.account,
        lambda: budget.fits(size),
        lambda: outcome.append("goes on"),
        lambda: outcome.append("refused"),
    )
    return outcome


def test_the_unread_answers_of_whoever_has_most_are_dropped_until_there_is_room() -> None:
    async def scene() -> None:
        budget = MemoryBudget(80 * MB)
        few, most, many = (FakeConnection(budget, answers=size * MB) for size in (10, 40, 20))
        await asyncio.sleep(0)
        assert not most.dropped
        few.account.hold_answer(11 * MB)
        assert not most.dropped, "whoever takes memory is in the middle of something"
        await asyncio.sleep(0)
        assert (few.dropped, most.dropped, many.dropped) == ([], ["answers"], [])
        assert budget.held == 41 * MB

    on_loop(scene)


def test_answers_that_are_read_are_dropped_last_and_never_for_those_who_wait() -> None:
    async def scene() -> None:
        budget = MemoryBudget(100 * MB)
        reader = FakeConnection(budget, answers=60 * MB, reads=True)
        idler = FakeConnection(budget, answers=35 * MB)
        outcome = wait(budget, FakeConnection(budget), 50 * MB)
        await asyncio.sleep(0)
        assert (reader.dropped, idler.dropped, outcome) == ([], ["answers"], [])
        idler.account.hold_answer(50 * MB)
        await asyncio.sleep(0)
        assert (reader.dropped, idler.dropped) == ([], ["answers", "answers"])
        reader.account.hold_answer(50 * MB)
        await asyncio.sleep(0)
        assert reader.dropped == [], "its client takes them, and new requests wait"
        reader.account.hold_answer(50 * MB)
        await asyncio.sleep(0)
        assert reader.dropped == ["answers"]

    on_loop(scene)


def test_a_connection_may_hold_as_much_as_is_free_and_one_that_holds_nothing_is_never_full() -> None:
    async def scene() -> None:
        budget = MemoryBudget(100 * MB)
        greedy, other, new = (FakeConnection(budget) for _ in range(3))
        full = []
        for connection, size in ((greedy, 50 * MB), (greedy, 1), (other, 30 * MB), (other, -10 * MB)):
            connection.account.hold_request(size)
            full.append(connection.account.full)
        assert full == [False, True, True, False]
        greedy.account.hold_request(200 * MB)
        assert not new.account.full

    on_loop(scene)


def test_who_waits_goes_on_when_memory_is_given_back() -> None:
    async def scene() -> None:
        budget = MemoryBudget(100 * MB)
        holder, large, small = (FakeConnection(budget) for _ in range(3))
        holder.account.hold_request(95 * MB)
        outcomes = [wait(budget, large, 50 * MB), wait(budget, small, 10 * MB)]
        await asyncio.sleep(0)
        assert outcomes == [[], []]
        holder.account.hold_request(-10 * MB)
        await asyncio.sleep(0)
        assert outcomes == [[], ["goes on"]]
        holder.account.close()
        await asyncio.sleep(0)
        assert outcomes == [["goes on"], ["goes on"]]
        assert budget.held == 0

    on_loop(scene)


def test_unread_answers_make_room_for_who_waits() -> None:
    async def scene() -> None:
        budget = MemoryBudget(100 * MB)
        reader = FakeConnection(budget, answers=95 * MB)
        outcome = wait(budget, FakeConnection(budget), 10 * MB)
        await asyncio.sleep(0)
        assert (reader.dropped, outcome) == (["answers"], ["goes on"])

    on_loop(scene)


def test_who_waits_for_too_long_is_refused_once() -> None:
    async def scene() -> None:
        budget = MemoryBudget(100 * MB, wait_s=3)
        holder = FakeConnection(budget)
        holder.account.hold_request(100 * MB)
        outcome = wait(budget, FakeConnection(budget), 1)
        for _ in range(3):
            budget.advance()
        assert outcome == []
        for _ in range(3):
            budget.advance()
        assert outcome == ["refused"]
        holder.account.close()
        await asyncio.sleep(0)
        assert outcome == ["refused"]

    on_loop(scene)


def test_an_answer_is_admitted_beyond_the_limit_so_that_waiting_requests_do_not_hinder_it() -> None:
    async def scene() -> None:
        budget = MemoryBudget(100 * MB)
        requests = FakeConnection(budget)
        requests.account.hold_request(100 * MB)
        assert budget.admit_answer(25 * MB)
        assert not budget.admit_answer(26 * MB)
        unread = FakeConnection(budget, answers=25 * MB)
        assert budget.admit_answer(20 * MB)
        assert unread.dropped == ["answers"]
        requests.account.close()
        assert budget.admit_answer(200 * MB)  # nothing else is held

    on_loop(scene)


@pytest.mark.parametrize(("seconds", "cancelled"), [(0, False), (9, False), (0, True)])
def test_work_waits_for_room_and_fails_once_if_there_is_none(seconds: int, cancelled: bool) -> None:
    async def scene() -> None:
        budget = MemoryBudget(100 * MB, wait_s=3)
        holder = FakeConnection(budget)
        holder.account.hold_request(60 * MB)
        outcome: list[object] = []
        call_off = budget.wait_for_room(50 * MB, lambda: outcome.append("goes on"), outcome.append)
        await asyncio.sleep(0)
        assert outcome == []
        for _ in range(seconds):
            budget.advance()
        if cancelled:
            call_off()
        holder.account.close()
        await asyncio.sleep(0)
        [ending] = outcome
        if cancelled:
            assert isinstance(ending, Cancelled)
        else:
            assert isinstance(ending, Overloaded) if seconds else ending == "goes on"
        call_off()
        assert len(outcome) == 1

    on_loop(scene)


def test_requests_whose_rest_does_not_come_are_refused_only_while_others_wait() -> None:
    async def scene() -> None:
        budget = MemoryBudget(100 * MB)
        silent = FakeConnection(budget, silent=100 * MB)
        budget.advance()
        assert silent.dropped == []
        outcome = wait(budget, FakeConnection(budget), 10 * MB)
        await asyncio.sleep(0)
        budget.advance()
        await asyncio.sleep(0)
        assert (silent.dropped, outcome) == (["silent"], ["goes on"])

    on_loop(scene)


@pytest.mark.parametrize("held", [0, 5 * MB])
def test_a_connection_that_is_gone_holds_nothing_and_waits_for_nothing(held: int) -> None:
    async def scene() -> None:
        budget = MemoryBudget(100 * MB)
        holder, gone = FakeConnection(budget), FakeConnection(budget, silent=held)
        holder.account.hold_request(100 * MB)
        outcome = wait(budget, gone, 10 * MB)
        gone.account.close()
        holder.account.close()
        await asyncio.sleep(0)
        assert (outcome, budget.held) == ([], 0)

    on_loop(scene)


def test_an_answer_drops_no_more_unread_ones_than_it_needs_the_room_of() -> None:
    async def scene() -> None:
        budget = MemoryBudget(100 * MB)
        small, large = (FakeConnection(budget, answers=size * MB) for size in (40, 59))
        assert budget.admit_answer(26 * MB)
        assert (small.dropped, large.dropped) == ([], [])
        assert budget.admit_answer(60 * MB)
        assert (small.dropped, large.dropped) == ([], ["answers"]), "40 MB fit beside it"

    on_loop(scene)


def test_memory_that_a_thread_frees_lets_a_waiting_request_go_on() -> None:
    async def scene() -> None:
        budget = MemoryBudget(10 * MB)
        arrays = [np.zeros(8 * MB, np.uint8)]
        budget.hold_until_freed(arrays[0])
        outcome = wait(budget, FakeConnection(budget), 4 * MB)
        await asyncio.to_thread(arrays.clear)
        await until(lambda: bool(outcome))
        assert (outcome, budget.held) == (["goes on"], 0)

    on_loop(scene)


def test_memory_that_a_thread_frees_wakes_the_event_loop_only_for_those_who_wait() -> None:
    async def scene() -> None:
        budget, loop = MemoryBudget(10 * MB), asyncio.get_running_loop()
        arrays = [np.zeros(8 * MB, np.uint8)]
        budget.hold_until_freed(arrays[0])
        woken: list[object] = []
        wake, loop.call_soon_threadsafe = loop.call_soon_threadsafe, woken.append  # type: ignore[method-assign,assignment]
        thread = threading.Thread(target=arrays.clear)
        thread.start()
        thread.join()
        loop.call_soon_threadsafe = wake  # type: ignore[method-assign]
        assert not woken
        # who begins to wait now finds it free
        outcome = wait(budget, FakeConnection(budget), 4 * MB)
        await until(lambda: bool(outcome))
        assert (outcome, budget.held) == (["goes on"], 0)

    on_loop(scene)


@pytest.mark.parametrize("check", ["room", "answer", "fits"])
def test_freed_memory_counts_at_once(check: str) -> None:
    """What asks for room does not wait for the event loop to hear of it."""

    async def scene() -> None:
        budget = MemoryBudget(10 * MB)
        array = np.zeros(16 * MB, np.uint8)
        budget.hold_until_freed(array)
        holder = FakeConnection(budget, answers=1 * MB)
        del array
        if check == "room":
            assert budget.has_room(9 * MB)
        elif check == "fits":
            assert budget.fits(9 * MB)
        else:
            assert budget.admit_answer(9 * MB)
        assert not holder.dropped

    on_loop(scene)
