"""The closed loop, over a client without a network."""

import asyncio
from collections.abc import Callable, Sequence
from time import perf_counter_ns

import pytest

from tests.perf.conftest import FakeClient, FakeResponse
from tests.perf.loads.test_rate import Sequences
from tpx.perf.clients.base import LOST, TIMED_OUT, OnResponse, Slot
from tpx.perf.inputs.feed import RoundRobin
from tpx.perf.loads.closed import ClosedLoop


async def load_of(
    client: FakeClient, concurrency: int, requests: tuple[str, ...] = ("a",), timeout_s: float = 0.0
) -> ClosedLoop:
    return ClosedLoop(client, await client.open(concurrency), RoundRobin(requests), timeout_s)


async def until(true: Callable[[], bool]) -> None:
    for _ in range(5000):
        if true():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it did not become true")


class OneSequenceSlot(FakeClient):
    """A server with one sequence slot: requests of other sequences wait until its sequence ends."""

    def __init__(self) -> None:
        super().__init__(answer=lambda _: None)
        self.waiting: dict[str, OnResponse] = {}
        self.holds = ""

    async def open(self, count: int) -> Sequence[Slot]:
        slots = await super().open(count)
        for slot in slots:
            slot.send = self.take
        return slots

    def take(self, request: str, on_response: OnResponse) -> int:
        self.sent.append(request)
        self.waiting[request] = on_response
        asyncio.get_running_loop().call_soon(self._serve)
        return len(self.sent)

    def _serve(self) -> None:
        for request in list(self.waiting):
            sequence, _, part = request.partition(":")
            if self.holds in ("", sequence):
                self.holds = "" if part == "end" else sequence
                asyncio.get_running_loop().call_soon(self._serve)
                self.waiting.pop(request)(FakeResponse(200, perf_counter_ns()))


async def test_a_stopped_load_ends_the_sequence_that_others_wait_for() -> None:
    client = OneSequenceSlot()
    load = ClosedLoop(client, await client.open(3), Sequences(), 0.0)
    load.start()
    await until(lambda: len(client.sent) > 10)  # all of one sequence but two: the others wait for its slot
    async with asyncio.timeout(5):
        await load.stop(60)
    assert not client.waiting
    assert not client.holds
    assert {request for request in client.sent if request.endswith(":end")} == {"1:end", "2:end", "3:end"}


async def test_exactly_the_concurrency_is_kept_in_flight() -> None:
    client = FakeClient(service_s=0.001)
    load = await load_of(client, 5)
    load.start()
    for _ in range(20):
        await asyncio.sleep(0.0013)
        assert client.in_flight == 5
    await load.stop(1)
    assert client.in_flight == 0
    assert client.most_in_flight == 5
    assert len(load.records) == len(client.sent)


async def test_a_count_is_sent_exactly_and_finished_means_answered() -> None:
    client = FakeClient()
    load = await load_of(client, 4)
    load.start(10)
    await load.finished()
    assert len(client.sent) == len(load.records) == 10
    assert client.in_flight == 0
    await load.stop(1)


def test_steps_are_walked_round_robin_by_all_slots_together() -> None:
    async def scene() -> list[str]:
        client = FakeClient()
        load = await load_of(client, 2, ("a", "b", "c"))
        load.start(7)
        await load.finished()
        await load.stop(1)
        return client.sent

    assert asyncio.run(scene()) == ["a", "b", "c", "a", "b", "c", "a"]


async def test_a_record_holds_the_times_of_its_request_in_order() -> None:
    load = await load_of(FakeClient(service_s=0.005), 1)
    load.start(3)
    await load.finished()
    await load.stop(1)
    for row in load.records.since(0):
        assert row["start_ns"] == row["intended_ns"]
        assert row["start_ns"] <= row["sent_ns"] <= row["first_byte_ns"] <= row["end_ns"]
        assert row["end_ns"] - row["start_ns"] >= 4_900_000


async def test_failures_are_recorded_by_status_and_the_first_text_of_each_is_kept() -> None:
    client = FakeClient(answer=lambda n: {3: 500, 5: 503, 6: 500}.get(n, 200))
    load = await load_of(client, 1)
    load.start(8)
    await load.finished()
    await load.stop(1)
    assert load.failed == 3
    assert load.records.since(0)["status"].tolist() == [0, 0, 500, 0, 503, 500, 0, 0]
    assert {s: f.code for s, f in load.failures().items()} == {500: "HTTP 500", 503: "HTTP 503"}
    assert load.failures()[500].message == "the server said 500"


async def test_a_request_on_a_broken_connection_fails_and_the_slot_goes_on_over_a_new_one() -> None:
    client = FakeClient(service_s=0.002)
    load = await load_of(client, 2)
    load.start()
    await asyncio.sleep(0.001)
    client.slots[0].connection.lose()
    await until(lambda: client.in_flight == 2)
    assert client.renewed == 1
    await load.stop(1)
    assert load.failed == 1
    assert load.records.since(0)["status"].tolist().count(LOST) == 1
    assert load.failures()[LOST].message == "connection lost"


async def test_a_connection_closed_between_requests_loses_none() -> None:
    client = FakeClient()
    load = await load_of(client, 1)
    client.slots[0].connection.broken = True
    load.start(3)
    await load.finished()
    await load.stop(1)
    assert (load.failed, len(load.records), client.renewed) == (0, 3, 1)


async def test_a_server_that_stays_away_is_a_failure_an_attempt() -> None:
    client = FakeClient(service_s=0.002)
    client.refusals = 2
    load = await load_of(client, 1)
    load.start()
    await asyncio.sleep(0.001)
    client.slots[0].connection.lose()
    await until(lambda: client.in_flight == 1)
    assert load.failed == 3
    await load.stop(1)


def answers_all_but(number: int) -> Callable[[int], int | None]:
    return lambda n: None if n == number else 200


async def test_a_request_that_outlives_the_timeout_fails_and_its_slot_is_renewed() -> None:
    client = FakeClient(answer=answers_all_but(2))
    load = await load_of(client, 1, timeout_s=0.02)
    load.start(4)
    await load.finished()
    await load.stop(1)
    assert load.records.since(0)["status"].tolist() == [0, TIMED_OUT, 0, 0]
    assert load.failures()[TIMED_OUT].code == "timeout"


async def test_the_late_answer_to_a_request_that_was_given_up_is_not_counted() -> None:
    client = FakeClient(service_s=0.05)
    load = await load_of(client, 1, timeout_s=0.02)
    load.start(1)
    await asyncio.sleep(0.1)
    await load.stop(1)
    assert load.records.since(0)["status"].tolist() == [TIMED_OUT]


async def test_stopping_gives_up_what_is_not_answered_in_time_without_counting_it() -> None:
    client = FakeClient(answer=answers_all_but(2))
    load = await load_of(client, 2)
    load.start()
    await asyncio.sleep(0.01)
    await load.stop(0.01)
    assert load.failed == 0
    assert len(load.records) == len(client.sent) - 1
    assert client.renewed == 1


@pytest.mark.parametrize("concurrency", [1, 7])
async def test_a_slot_can_serve_load_after_load(concurrency: int) -> None:
    client = FakeClient()
    for _ in range(3):
        load = await load_of(client, concurrency)
        load.start(20)
        await load.finished()
        await load.stop(1)
        assert len(load.records) == 20
        assert client.in_flight == 0
