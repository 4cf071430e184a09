"""The scheduler of models without dynamic batching."""

from tests.serving.fakes import request_of
from tpx.serving.scheduling.direct import DirectScheduler


def test_each_request_leaves_alone_in_order_of_arrival() -> None:
    scheduler = DirectScheduler()
    requests = [request_of(at) for at in range(5)]
    for request in requests:
        scheduler.add(request)
    taken = [scheduler.take(10, idle=True) for _ in range(5)]
    assert [list(batch) for batch in taken] == [[request] for request in requests]
    assert list(scheduler.take(10, idle=True)) == []


def test_a_busy_instance_gets_its_next_request_too() -> None:
    scheduler = DirectScheduler()
    request = request_of(0)
    scheduler.add(request)
    assert list(scheduler.take(0, idle=False)) == [request]


def test_nothing_waits_for_a_time() -> None:
    scheduler = DirectScheduler()
    scheduler.add(request_of(0))
    assert scheduler.wake_ns(0) is None
    assert not scheduler.waits
