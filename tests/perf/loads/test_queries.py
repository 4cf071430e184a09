"""Queries of several requests, over a client without a network."""

import asyncio
from collections.abc import Callable

from tests.perf.conftest import FakeClient
from tpx.perf.clients.base import LOST, TIMED_OUT
from tpx.perf.inputs.feed import RoundRobin
from tpx.perf.loads.groups import QueryLoad


async def load_of(client: FakeClient, size: int, timeout_s: float = 0.0) -> QueryLoad:
    return QueryLoad(client, await client.open(size), RoundRobin(("a", "b", "c")), timeout_s)


def played(client: FakeClient, size: int, count: int, timeout_s: float = 0.0) -> QueryLoad:
    async def scene() -> QueryLoad:
        load = await load_of(client, size, timeout_s)
        load.start(count)
        await load.finished()
        await load.stop(1)
        return load

    return asyncio.run(scene())


def only_answers(wrong: Callable[[int], bool], status: int | None) -> Callable[[int], int | None]:
    return lambda n: status if wrong(n) else 200


def test_a_query_is_all_its_requests_at_once_and_the_next_comes_when_the_last_is_answered() -> None:
    client = FakeClient()
    load = played(client, 4, 3)
    rows = load.records.since(0)
    assert client.sent == ["a", "b", "c"] * 4
    assert client.most_in_flight == 4
    assert rows["responses"].tolist() == [4, 4, 4]
    assert (rows["start_ns"][1:] >= rows["end_ns"][:-1]).all()
    assert (rows["end_ns"] - rows["start_ns"] >= 900_000).all()
    assert (rows["first_byte_ns"] <= rows["end_ns"]).all()


def test_a_query_has_failed_where_one_of_its_requests_has() -> None:
    load = played(FakeClient(answer=only_answers(lambda n: n in (5, 6), 500)), 4, 3)
    assert load.records.since(0)["status"].tolist() == [0, 500, 0]
    assert load.failed == 1
    assert load.failures()[500].code == "HTTP 500"


def test_a_request_without_an_answer_fails_its_query_and_the_next_has_all_its_slots() -> None:
    client = FakeClient(answer=only_answers(lambda n: n == 2, None))
    load = played(client, 2, 3, timeout_s=0.02)
    assert load.records.since(0)["status"].tolist() == [TIMED_OUT, 0, 0]
    assert (client.renewed, len(client.sent)) == (1, 6)


def test_a_broken_connection_fails_its_query_only() -> None:
    async def scene() -> None:
        client = FakeClient(service_s=0.005)
        load = await load_of(client, 2)
        load.start(2)
        client.slots[1].connection.lose()
        await load.finished()
        await load.stop(1)
        assert load.records.since(0)["status"].tolist() == [LOST, 0]
        assert load.failed == 1

    asyncio.run(scene())


def test_a_connection_closed_between_queries_loses_none() -> None:
    async def scene() -> None:
        client = FakeClient()
        load = await load_of(client, 2)
        client.slots[0].connection.broken = True
        load.start(2)
        await load.finished()
        await load.stop(1)
        assert (load.failed, len(load.records), client.renewed) == (0, 2, 1)

    asyncio.run(scene())


def test_a_server_that_stays_away_costs_a_query_an_attempt() -> None:
    async def scene() -> None:
        client = FakeClient()
        client.refusals = 2
        load = await load_of(client, 1)
        client.slots[0].connection.broken = True
        load.start(4)
        await load.finished()
        await load.stop(1)
        assert load.records.since(0)["status"].tolist() == [LOST, LOST, 0, 0]
        assert load.failed == 2

    asyncio.run(scene())


def test_a_server_that_stays_away_is_not_asked_again_when_nothing_is_left_to_send() -> None:
    async def scene() -> None:
        client = FakeClient()
        client.refusals = 1000
        load = await load_of(client, 1)
        client.slots[0].connection.broken = True
        load.start(1)
        await load.finished()
        await load.stop(0.01)
        assert (client.sent, client.refusals) == ([], 999)

    asyncio.run(scene())


def test_stopping_lets_the_query_in_flight_end_and_gives_up_one_that_does_not() -> None:
    async def scene(client: FakeClient, patience_s: float) -> tuple[int, int]:
        load = await load_of(client, 3)
        load.start()
        await asyncio.sleep(0.005)
        await load.stop(patience_s)
        return len(load.records), len(client.sent)

    rows, sent = asyncio.run(scene(FakeClient(service_s=0.002), 1))
    assert rows * 3 == sent
    rows, sent = asyncio.run(scene(FakeClient(answer=only_answers(lambda n: n == 1, None)), 0.01))
    assert (rows, sent) == (0, 3)
