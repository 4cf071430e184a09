"""Conversations at a time, over a client without a network."""

import asyncio
from collections.abc import Callable

import pytest

from tests.perf.conftest import FakeClient
from tests.perf.loads.test_closed import until
from tpx.perf.clients.base import LOST, TIMED_OUT
from tpx.perf.inputs.feed import Conversation, ConversationTurn, RoundRobin
from tpx.perf.inputs.requests import Requests
from tpx.perf.loads.users import SessionLoad
from tpx.perf.measure.collectors import session_figures
from tpx.perf.records import elapsed_ns
from tpx.perf.results import DataSummary, Sessions

DELAY_NS = 15_000_000


def talks(*texts: str, delay_ns: int = 0) -> tuple[Conversation, ...]:
    """A conversation of each text, whose turns are its letters; all steps one after the other."""
    step = iter(range(sum(map(len, texts))))
    return tuple(
        tuple(ConversationTurn(request=c, step=next(step), delay_ns=delay_ns) for c in text) for text in texts
    )


def requests_of(*conversations: Conversation) -> Requests:
    return Requests(feed=RoundRobin(()), data=DataSummary(), conversations=conversations)


def played(
    client: FakeClient,
    conversations: tuple[Conversation, ...],
    at_once: int = 1,
    *,
    timeout_s: float = 0.0,
    count: int | None = None,
    meddle: Callable[[FakeClient], None] = lambda _: None,
) -> SessionLoad:
    """The load, over; `meddle` is called once it has begun."""

    async def scene() -> SessionLoad:
        load = SessionLoad(client, await client.open(at_once), requests_of(*conversations), timeout_s)
        load.start(count)
        meddle(client)
        async with asyncio.timeout(5):
            await load.finished()
        await load.stop(1)
        return load

    return asyncio.run(scene())


def figures(load: SessionLoad, conversations: tuple[Conversation, ...]) -> Sessions:
    return session_figures(load.records.since(0), conversations)


def test_as_many_run_at_a_time_as_are_wanted_and_each_is_sent_once_in_its_order() -> None:
    client, all_of_them = FakeClient(), talks("abc", "de", "f", "gh")
    load = played(client, all_of_them, 3)
    assert client.most_in_flight == 3
    assert client.sent[:3] == ["a", "d", "f"]
    assert sorted(client.sent) == list("abcdefgh")
    for text in ("abc", "de", "gh"):
        assert [c for c in client.sent if c in text] == list(text)
    assert figures(load, all_of_them) == Sessions(total=4, finished=4, unsent_turns=0)
    assert not elapsed_ns(load.records.since(0), "intended_ns", "start_ns").any()


def test_a_turn_waits_for_the_answer_before_it_and_for_that_ones_delay() -> None:
    load = played(FakeClient(), talks("abc", delay_ns=DELAY_NS))
    rows = load.records.since(0)
    assert rows["step"].tolist() == [0, 1, 2]
    # a loop's timers have milliseconds, and may be early by one
    assert (rows["start_ns"][1:] - rows["end_ns"][:-1] >= DELAY_NS - 1_100_000).all()


def test_the_next_conversation_does_not_wait_for_the_delay_of_a_last_turn() -> None:
    load = played(FakeClient(), talks("a", "b", delay_ns=3_600_000_000_000))
    assert load.records.since(0)["step"].tolist() == [0, 1]


def test_a_turn_that_fails_ends_its_conversation_alone() -> None:
    client, all_of_them = FakeClient(answer=lambda n: 500 if n == 2 else 200), talks("abc", "de")
    load = played(client, all_of_them)
    assert client.sent == ["a", "b", "d", "e"]
    assert load.records.since(0)["status"].tolist() == [0, 500, 0, 0]
    assert (load.failed, load.failures()[500].code) == (1, "HTTP 500")
    assert figures(load, all_of_them) == Sessions(total=2, finished=1, unsent_turns=1)


def test_a_turn_without_an_answer_is_given_up_and_the_next_conversation_has_its_slot() -> None:
    client = FakeClient(answer=lambda n: None if n == 1 else 200)
    load = played(client, talks("ab", "cd"), timeout_s=0.02)
    assert client.sent == ["a", "c", "d"]
    assert load.records.since(0)["status"].tolist() == [TIMED_OUT, 0, 0]
    assert client.renewed == 1


def test_a_broken_connection_ends_the_conversation_on_it() -> None:
    client, all_of_them = FakeClient(service_s=0.005), talks("ab", "cd")
    load = played(client, all_of_them, 2, meddle=lambda c: c.slots[1].connection.lose())
    rows = load.records.since(0)
    assert sorted(zip(rows["step"].tolist(), rows["status"].tolist(), strict=True)) == [
        (0, 0),
        (1, 0),
        (2, LOST),
    ]
    assert figures(load, all_of_them) == Sessions(total=2, finished=1, unsent_turns=1)


def test_a_connection_closed_between_two_turns_loses_none() -> None:
    def close(client: FakeClient) -> None:
        client.slots[0].connection.broken = True

    client = FakeClient()
    load = played(client, talks("abc"), meddle=close)
    assert (client.sent, client.renewed, load.failed) == (["a", "b", "c"], 1, 0)


def test_a_server_that_stays_away_costs_a_conversation_an_attempt() -> None:
    client, all_of_them = FakeClient(service_s=0.005), talks("ab", "cd", "e")
    client.refusals = 1
    load = played(client, all_of_them, meddle=lambda c: c.slots[0].connection.lose())
    assert client.sent == ["a", "e"]
    assert load.records.since(0)["status"].tolist() == [LOST, LOST, 0]
    assert figures(load, all_of_them) == Sessions(total=3, finished=1, unsent_turns=2)


def test_a_server_that_never_comes_back_ends_the_load() -> None:
    client = FakeClient(service_s=0.005)
    client.refusals = 100
    load = played(client, talks("ab", "cd"), meddle=lambda c: c.slots[0].connection.lose())
    assert (client.sent, load.failed) == (["a"], 2)


def test_a_warm_up_sends_so_many_turns() -> None:
    client = FakeClient()
    load = played(client, talks("abc", "def"), 2, count=3)
    assert (client.sent, len(load.records)) == (["a", "d", "b"], 3)


@pytest.mark.parametrize("delay_ns", [0, 3_600_000_000_000])
async def test_stopping_sends_no_further_turn_and_waits_for_no_delay(delay_ns: int) -> None:
    client = FakeClient()
    load = SessionLoad(client, await client.open(1), requests_of(*talks("ab" * 1000, "c", delay_ns=delay_ns)))
    load.start()
    await until(lambda: len(load.records) > 0)
    async with asyncio.timeout(1):
        await load.stop(0.5)
    sent = len(client.sent)
    assert len(load.records) == sent
    await asyncio.sleep(0.005)
    assert len(client.sent) == sent


async def test_a_turn_that_is_not_answered_when_the_load_stops_is_not_counted() -> None:
    client = FakeClient(answer=lambda _: None)
    load = SessionLoad(client, await client.open(2), requests_of(*talks("ab", "c")))
    load.start()
    await load.stop(0.02)
    assert (client.sent, len(load.records), client.renewed) == (["a", "c"], 0, 2)
