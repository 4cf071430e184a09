"""Requests that nobody waits for any more leave every scheduler while all instances are busy."""

import itertools
from collections.abc import Callable

import pytest

from tests.serving.fakes import MS, request_of
from tests.serving.scheduling.replay import present
from tpx.errors import Cancelled, Overloaded
from tpx.serving.request import InferRequest
from tpx.serving.scheduling.base import Scheduler
from tpx.serving.scheduling.direct import DirectScheduler
from tpx.serving.scheduling.dynamic import DynamicBatcher
from tpx.serving.scheduling.queue import QueuePolicies, QueuePolicy
from tpx.serving.scheduling.sequences import SequenceTable
from tpx.serving.scheduling.strategies import DirectSequences, OldestSequences

SLOTS = 2


def table() -> SequenceTable:
    return SequenceTable("net", 1, SLOTS, 1000 * MS, lambda _: None)


def iterative() -> DirectSequences:
    slots = SequenceTable("net", 1, SLOTS, 1000 * MS, lambda _: None, iterative=True)
    return DirectSequences(slots, SLOTS, 0, 0)


def levels(**policy: int | bool) -> DynamicBatcher:
    return DynamicBatcher(
        4,
        (),
        0,
        QueuePolicies(levels=2, default_level=1, default=QueuePolicy(**policy)),  # type: ignore[arg-type]
    )


SCHEDULERS: dict[str, Callable[[], Scheduler]] = {
    "no batching": DirectScheduler,
    "dynamic": lambda: DynamicBatcher(4),
    "dynamic with a delay": lambda: DynamicBatcher(4, (4,), 1000 * MS),
    "dynamic with levels": levels,
    "dynamic with late ones": lambda: levels(timeout_ns=1, delays=True),
    "sequences, direct": lambda: DirectSequences(table(), SLOTS, 0, 0),
    "sequences, oldest": lambda: OldestSequences(table(), lambda: DynamicBatcher(4)),
    "iterative": iterative,
}


@pytest.fixture(params=SCHEDULERS, ids=lambda name: name.replace(" ", "-"))
def scheduler(request: pytest.FixtureRequest) -> Scheduler:
    return SCHEDULERS[request.param]()


def queued(scheduler: Scheduler, count: int) -> list[InferRequest]:
    """Requests that wait, each a sequence of its own where clients begin sequences."""
    affinity = scheduler.affinity
    sequences = isinstance(affinity, SequenceTable) and not affinity.iterative
    requests = []
    for number in range(1, count + 1):
        more = {"sequence_id": number, "sequence_start": True, "sequence_end": True} if sequences else {}
        requests.append(request_of(number, 1, (2,), **more))
        scheduler.add(requests[-1])
    scheduler.expire(2 * MS)
    return requests


def drained(scheduler: Scheduler) -> list[InferRequest]:
    """Everything that is computed when there are instances again, by its arrival."""
    left: list[InferRequest] = []
    for now_ns in itertools.count(2000 * MS):
        batch = present(scheduler.take(now_ns, idle=True))
        if not batch:
            return sorted(left, key=lambda request: request.arrived_ns)
        left += batch
        scheduler.affinity.finished(batch, now_ns)
    raise AssertionError


def test_those_that_are_left_alone_are_computed_and_the_others_are_given_up(
    scheduler: Scheduler,
) -> None:
    requests = queued(scheduler, 9)
    for request in requests[::2]:
        request.cancel()
    refusals = scheduler.purge_cancelled(3 * MS)
    assert {id(refusal.request) for refusal in refusals} == {id(request) for request in requests[::2]}
    assert all(isinstance(refusal.error, Cancelled) for refusal in refusals)
    assert len(scheduler) == 4
    assert drained(scheduler) == requests[1::2]
    assert len(scheduler) == 0


def test_nobody_is_given_up_while_somebody_waits(scheduler: Scheduler) -> None:
    requests = queued(scheduler, 3)
    assert not scheduler.purge_cancelled(3 * MS)
    assert drained(scheduler) == requests


def test_a_queue_of_which_all_have_left_is_empty_and_takes_others(scheduler: Scheduler) -> None:
    for request in queued(scheduler, 5):
        request.cancel()
    assert len(scheduler.purge_cancelled(3 * MS)) == 5
    assert len(scheduler) == 0
    assert scheduler.wake_ns(4 * MS) is None
    assert drained(scheduler) == []
    others = queued(scheduler, 2)
    assert drained(scheduler) == others


def test_a_queue_has_room_again_for_those_who_wait() -> None:
    scheduler = levels(max_queue_size=2)
    for request in queued(scheduler, 2):
        request.cancel()
    with pytest.raises(Overloaded):
        scheduler.add(request_of())
    scheduler.purge_cancelled(MS)
    assert len(queued(scheduler, 2)) == 2
