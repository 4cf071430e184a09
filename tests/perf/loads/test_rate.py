"""The open loop, over a client without a network."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from time import perf_counter_ns
from typing import Any

import numpy as np
import pytest

from tests.perf.conftest import FakeClient
from tpx.errors import WireError
from tpx.perf.clients.base import LOST, TIMED_OUT, Check, Slot
from tpx.perf.inputs.feed import ALL, RoundRobin, Share
from tpx.perf.levels import Level
from tpx.perf.loads import rate
from tpx.perf.loads.base import slots_ahead
from tpx.perf.loads.rate import RateLoad
from tpx.perf.loads.schedules import Offsets, evenly, in_bursts
from tpx.perf.loops import event_loop
from tpx.perf.pace import LatePolicy, PaceSpec
from tpx.perf.records import Times, elapsed_ns
from tpx.perf.settings import LevelSettings


async def load_of(
    client: FakeClient,
    schedule: Iterator[Offsets],
    slots: int = 4,
    requests: tuple[str, ...] = ("a",),
    *,
    late: LatePolicy = "send",
    timeout_s: float = 0.0,
    most: int = 1024,
    ahead: int = 0,
) -> RateLoad:
    settings = LevelSettings(timeout_s=timeout_s, pace=PaceSpec(on_late=late))
    feed, opened = RoundRobin(requests), await client.open(slots)
    return RateLoad(client, opened, feed, schedule, settings, most=most, ahead=ahead)


def at(*milliseconds: float) -> Iterator[Offsets]:
    yield np.array([round(ms * 1e6) for ms in milliseconds], np.int64)


def sent(client: FakeClient, schedule: Iterator[Offsets], count: int | None, **changes: Any) -> RateLoad:
    """A load that was played to its end."""

    async def scene() -> RateLoad:
        load = await load_of(client, schedule, **changes)
        load.start(count)
        await load.finished()
        await load.stop(1)
        return load

    with asyncio.Runner(loop_factory=event_loop) as runner:
        return runner.run(scene())


def test_every_request_goes_out_at_or_after_its_time_and_the_row_says_when_it_should_have() -> None:
    load = sent(FakeClient(), evenly(1000.0), 50)
    rows = load.records.since(0)
    assert len(rows) == 50
    due_ns: Times = np.sort(rows["intended_ns"])
    assert set(np.diff(due_ns).tolist()) == {1_000_000}
    assert (elapsed_ns(rows, "intended_ns", "start_ns") >= 0).all()
    assert (elapsed_ns(rows, "start_ns", "sent_ns") >= 0).all()


def test_half_of_the_requests_leave_within_a_tenth_of_a_millisecond_of_their_time() -> None:
    """A busy machine may be late now and then, but not always."""
    for _ in range(100):
        rows = sent(FakeClient(), evenly(500.0), 60).records.since(0)
        if np.median(elapsed_ns(rows, "intended_ns", "start_ns")) < 100_000:
            return
    raise AssertionError("they never did")


def test_the_rate_is_kept_however_slow_the_server_is() -> None:
    client = FakeClient(service_s=0.05)
    load = sent(client, evenly(500.0), 50, slots=2)
    rows = load.records.since(0)
    assert client.most_in_flight > 15
    assert load.connections > 15
    # two at a time, the last would be late by more than a second
    assert np.quantile(elapsed_ns(rows, "intended_ns", "start_ns"), 0.9) < 500_000_000


def test_what_finds_no_connection_waits_with_its_intended_time() -> None:
    load = sent(FakeClient(service_s=0.01), at(0, 0, 0, 0), None, slots=1, most=1)
    rows = load.records.since(0)
    assert load.connections == 1
    assert len(set(rows["intended_ns"].tolist())) == 1
    late_ms = (elapsed_ns(rows, "intended_ns", "start_ns") / 1e6).tolist()
    assert late_ms == sorted(late_ms)
    assert late_ms[3] > 28
    response, service = elapsed_ns(rows, "intended_ns", "end_ns"), elapsed_ns(rows, "start_ns", "end_ns")
    assert response.max() > 38_000_000
    assert service.max() < response.max()


def test_late_requests_are_skipped_and_counted_where_the_user_wants_it() -> None:
    client = FakeClient(service_s=0.02)
    times = (0, 1, 2, 3, *range(30, 480, 30))
    load = sent(client, at(*times), None, slots=1, most=1, late="skip")
    intended_ns = load.records.since(0)["intended_ns"]
    sent_ms = ((intended_ns - intended_ns[0]) / 1e6).tolist()
    assert {1, 2, 3}.isdisjoint(sent_ms)
    assert len(sent_ms) > 1, "what is late now and then on a busy machine is skipped, too"
    assert len(sent_ms) + load.skipped == len(times)


async def test_a_load_whose_last_request_is_skipped_while_its_slots_are_free_is_over() -> None:
    client = FakeClient()
    load = await load_of(client, at(0, 500), 1, late="skip")
    load.start()
    while not len(load.records):  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    time.sleep(0.6)  # noqa: ASYNC251 (the loop is busy with something else)
    await asyncio.wait_for(load.finished(), 5)
    await load.stop(1)
    assert (len(load.records), load.skipped) == (1, 1)


def test_a_schedule_that_ends_is_sent_once() -> None:
    client = FakeClient()
    load = sent(client, at(0, 2, 2, 5), None)
    assert len(client.sent) == len(load.records) == 4


def test_a_count_ends_an_endless_schedule() -> None:
    client = FakeClient()
    sent(client, in_bursts(2000.0, 8), 20)
    assert len(client.sent) == 20


def test_nothing_to_send_is_finished_at_once() -> None:
    assert len(sent(FakeClient(), iter(()), None).records) == 0


async def test_an_origin_in_the_future_is_when_the_schedule_begins() -> None:
    load = await load_of(FakeClient(), at(0, 1))
    origin_ns = perf_counter_ns() + 20_000_000
    load.start(None, origin_ns)
    await load.finished()
    await load.stop(1)
    rows = load.records.since(0)
    assert sorted((rows["intended_ns"] - origin_ns).tolist()) == [0, 1_000_000]
    assert rows["start_ns"].min() >= origin_ns


async def test_stopping_sends_no_more_and_waits_for_what_is_in_flight() -> None:
    client = FakeClient(service_s=0.01)
    load = await load_of(client, evenly(1000.0))
    load.start()
    await asyncio.sleep(0.03)
    await load.stop(1)
    count = len(client.sent)
    assert len(load.records) == count > 5
    await asyncio.sleep(0.01)
    assert len(client.sent) == count


async def test_stopping_gives_up_what_is_not_answered_without_counting_it() -> None:
    client = FakeClient(answer=lambda n: None if n == 1 else 200)
    load = await load_of(client, evenly(1000.0))
    load.start()
    await asyncio.sleep(0.01)
    await load.stop(0.01)
    assert load.failed == 0
    assert len(load.records) == len(client.sent) - 1


def test_a_request_that_outlives_the_timeout_fails_with_its_intended_time() -> None:
    client = FakeClient(answer=lambda n: None if n == 2 else 200)
    load = sent(client, at(0, 1, 2), None, timeout_s=0.02)
    rows = load.records.since(0)
    assert sorted(rows["status"].tolist()) == [TIMED_OUT, 0, 0]
    assert len(set(rows["intended_ns"].tolist())) == 3
    assert load.failures()[TIMED_OUT].code == "timeout"


async def test_a_broken_connection_fails_its_request_and_carries_the_next() -> None:
    client = FakeClient(service_s=0.005)
    load = await load_of(client, at(0, 12), 1)
    load.start()
    client.slots[0].connection.lose()
    await load.finished()
    await load.stop(1)
    assert load.records.since(0)["status"].tolist() == [LOST, 0]


async def test_a_connection_closed_between_requests_loses_none() -> None:
    client = FakeClient()
    load = await load_of(client, at(0, 1, 2), 1, most=1)
    client.slots[0].connection.broken = True
    load.start()
    await load.finished()
    await load.stop(1)
    assert (load.failed, len(load.records), client.renewed) == (0, 3, 1)


async def test_a_server_that_stays_away_costs_one_request_an_attempt() -> None:
    client = FakeClient()
    client.refusals = 3
    load = await load_of(client, evenly(1000.0), 1, most=1)
    client.slots[0].connection.broken = True
    load.start(10)
    await load.finished()
    await load.stop(1)
    rows = load.records.since(0)
    assert (load.failed, len(rows)) == (3, 10)
    assert rows["status"].tolist()[:3] == [LOST] * 3


class Stubborn(FakeClient):
    """Opens no connection beyond the first ones."""

    async def open(self, count: int) -> Sequence[Slot]:
        if self.slots and count > len(self.slots):
            raise WireError("too many open files")
        return await super().open(count)


def test_connections_that_cannot_be_opened_are_done_without() -> None:
    load = sent(Stubborn(service_s=0.002), at(0, 0, 0, 0, 0), None, slots=2)
    assert (load.connections, len(load.records), load.failed) == (2, 5, 0)


class Sequences:
    """Implements Feed: slot i sends requests named after its sequence, and ends it with one more."""

    check: Check | None = None
    unfinished: frozenset[int] = frozenset()

    def begin(self, level: Level, share: Share = ALL) -> None:
        """One sequence, whatever the level."""

    def source(self, slot: int) -> "OneSequence":
        return OneSequence(slot + 1)


class OneSequence:
    """Implements Source."""

    def __init__(self, number: int) -> None:
        self.step = 0
        self.sequence = number
        self.ended = False

    def next(self) -> str:
        self.step += 1
        return f"{self.sequence}:{self.step}"

    def take_back(self) -> None:
        """Requests do not need each other."""

    def failed(self, sequence: int) -> None:
        """It goes on."""

    def closing(self) -> str | None:
        ended, self.ended = self.ended, True
        return None if ended else f"{self.sequence}:end"


def test_sequences_are_kept_open_and_ended_when_the_load_stops() -> None:
    client = FakeClient(service_s=0.003)
    settings = LevelSettings(sequences=3)

    async def scene() -> RateLoad:
        load = RateLoad(client, await client.open(2), Sequences(), evenly(1000.0), settings, most=3)
        load.start(12)
        await load.finished()
        await load.stop(1)
        return load

    load = asyncio.run(scene())
    rows = load.records.since(0)
    assert len(rows) == 12
    assert client.sent[-len({r.split(":")[0] for r in client.sent}) :] == sorted(
        r for r in client.sent if r.endswith("end")
    )
    assert client.most_in_flight <= 3
    for number in (1, 2, 3):
        steps = [r for r in client.sent if r.startswith(f"{number}:") and not r.endswith("end")]
        assert steps == [f"{number}:{i + 1}" for i in range(len(steps))]


async def test_slots_are_opened_before_those_held_ready_are_used_up() -> None:
    client = FakeClient(answer=lambda _: None)  # a server that stalls for good
    load = await load_of(client, at(*[0] * 5), 8, ahead=8)
    load.start()
    async with asyncio.timeout(5):
        while load.in_flight < 5 or load.connections - load.in_flight < 8:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    await load.stop(0.01)


def test_slots_are_opened_again_some_time_after_one_could_not_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate, "GROWTH_RETRY_S", 0.01)
    client = Refusing(service_s=0.002)
    load = sent(client, at(*[0] * 100), None, slots=2)
    assert client.refused == 1
    assert (load.connections > 2, len(load.records), load.failed) == (True, 100, 0)


class Refusing(FakeClient):
    """Fails to open further slots once."""

    refused = 0

    async def open(self, count: int) -> Sequence[Slot]:
        if self.slots and not self.refused:
            self.refused = 1
            raise WireError("connection refused")
        return await super().open(count)


def test_slots_are_held_ready_for_what_is_due_within_a_second() -> None:
    pace = PaceSpec()
    assert slots_ahead(Level("request_rate", 500), pace) == 500
    assert slots_ahead(Level("request_rate", 1), pace) == 16
    assert slots_ahead(Level("request_rate", 1e9), pace) == 512
    assert slots_ahead(Level("request_rate", 500), PaceSpec(max_connections=7)) == 7
    bursts = PaceSpec(request_distribution="burst", burst_size=300)
    assert slots_ahead(Level("request_rate", 10), bursts) == 300
    second = 1_000_000_000
    times_ns = (0, *range(10 * second, 10 * second + 40), 20 * second)
    assert slots_ahead(Level("fixed_schedule", 0), pace, times_ns) == 40
