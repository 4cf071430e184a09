"""Priorities, limits and deadlines of a queue, replayed."""

import tracemalloc

import pytest

from tests.serving.fakes import MS, request_of
from tests.serving.scheduling.replay import Replay
from tpx.errors import Code, Overloaded
from tpx.serving.scheduling.dynamic import DynamicBatcher
from tpx.serving.scheduling.queue import PolicyQueue, QueuePolicies, QueuePolicy

TIMEOUT = QueuePolicies(default=QueuePolicy(timeout_ns=5 * MS))
LEVELS = QueuePolicies(levels=3, default_level=2)


def batcher(policies: QueuePolicies, max_batch: int = 1, delay_ns: int = 0) -> DynamicBatcher:
    return DynamicBatcher(max_batch, (), delay_ns, policies)


def test_a_request_of_higher_priority_leaves_first() -> None:
    low, middle, high = (request_of(at, priority=level) for at, level in ((1, 3), (2, 2), (3, 1)))
    departures = Replay(batcher(LEVELS), 1, lambda _: MS).run([request_of(0), low, middle, high])
    assert [d.requests[0] for d in departures[1:]] == [high, middle, low]


@pytest.mark.parametrize("asked", [0, 4, 1000])
def test_a_priority_that_does_not_exist_is_the_default_one(asked: int) -> None:
    queue = PolicyQueue(LEVELS)
    low, odd, high = request_of(priority=3), request_of(priority=asked), request_of(priority=1)
    for request in (low, odd, high):
        queue.append(request)
    assert [queue.popleft() for _ in range(3)] == [high, odd, low]


def test_a_default_level_without_levels_means_nothing() -> None:
    queue = PolicyQueue(QueuePolicies(levels=0, default_level=3, default=QueuePolicy(max_queue_size=9)))
    first, second = request_of(priority=2), request_of(priority=1)
    queue.append(first)
    queue.append(second)
    assert [queue.popleft(), queue.popleft()] == [first, second]


def test_within_a_level_the_first_to_come_is_the_first_to_leave() -> None:
    arrivals = [request_of(at, priority=1 + at % 2) for at in range(8)]
    departures = Replay(batcher(LEVELS), 1, lambda _: MS).run(arrivals)
    order = [d.requests[0].arrived_ns for d in departures]
    assert order == [0, 2, 4, 6, 1, 3, 5, 7]


def test_batches_cross_levels() -> None:
    arrivals = [request_of(0), request_of(1, priority=3), request_of(2, priority=1)]
    departures = Replay(batcher(LEVELS, 8), 1, lambda _: MS).run(arrivals)
    assert [r.head.priority for r in departures[1].requests] == [1, 3]


def test_a_request_is_refused_when_its_timeout_ends_and_not_later() -> None:
    arrivals = [request_of(0), request_of(MS), request_of(2 * MS)]
    replay = Replay(batcher(TIMEOUT), 1, lambda _: 6500 * 1000)
    replay.run(arrivals)
    [rejection] = replay.rejections
    assert rejection.request is arrivals[1]
    assert rejection.at_ns == 6 * MS
    assert rejection.error.message == "Request timeout expired"
    assert rejection.error.code is Code.UNAVAILABLE
    assert replay.computed == [arrivals[0], arrivals[2]]


def test_with_delay_as_action_a_late_request_comes_last_but_comes() -> None:
    policies = QueuePolicies(default=QueuePolicy(timeout_ns=5 * MS, delays=True))
    arrivals = [request_of(0), request_of(1), request_of(9 * MS)]
    replay = Replay(batcher(policies), 1, lambda _: 10 * MS)
    replay.run(arrivals)
    assert replay.computed == [arrivals[0], arrivals[2], arrivals[1]]
    assert not replay.rejections


@pytest.mark.parametrize(
    ("allowed", "asked_us", "refused_ms"),
    [(True, 2000, 3), (True, 60_000, 6), (True, 0, 6), (False, 2000, 6)],
)
def test_a_request_may_shorten_its_timeout_where_that_is_allowed_but_not_lengthen_it(
    allowed: bool, asked_us: int, refused_ms: int
) -> None:
    policy = QueuePolicy(timeout_ns=5 * MS, allow_timeout_override=allowed)
    arrivals = [request_of(0), request_of(MS, timeout=asked_us)]
    replay = Replay(batcher(QueuePolicies(default=policy)), 1, lambda _: 50 * MS)
    replay.run(arrivals)
    assert [rejection.at_ns for rejection in replay.rejections] == [refused_ms * MS]


def test_a_timeout_of_a_request_needs_one_of_the_configuration_to_override() -> None:
    policies = QueuePolicies(default=QueuePolicy(allow_timeout_override=True, max_queue_size=5))
    replay = Replay(batcher(policies), 1, lambda _: 50 * MS)
    replay.run([request_of(0), request_of(0, timeout=1000)])
    assert len(replay.computed) == 2


def test_a_full_queue_refuses_and_says_so() -> None:
    policies = QueuePolicies(default=QueuePolicy(max_queue_size=2))
    full = batcher(policies)
    full.add(request_of())
    full.add(request_of())
    with pytest.raises(Overloaded, match=r"\[request id: <id_unknown>\] Exceeds maximum queue size"):
        full.add(request_of())
    full.take(0, idle=True)
    full.add(request_of())
    assert len(full) == 2


def test_late_requests_count_for_the_size_of_their_queue() -> None:
    policies = QueuePolicies(default=QueuePolicy(timeout_ns=5, delays=True, max_queue_size=2))
    full = batcher(policies)
    full.add(request_of(0))
    full.add(request_of(0))
    assert not full.expire(10)
    with pytest.raises(Overloaded):
        full.add(request_of(10))


def test_each_level_has_its_own_policy() -> None:
    policies = QueuePolicies(
        levels=2,
        default_level=2,
        default=QueuePolicy(timeout_ns=9 * MS),
        by_level={1: QueuePolicy(timeout_ns=2 * MS, max_queue_size=1)},
    )
    arrivals = [request_of(0, priority=2), *(request_of(1, priority=p) for p in (1, 1, 2))]
    replay = Replay(batcher(policies), 1, lambda _: 20 * MS)
    replay.run(arrivals)
    assert [(r.request, r.at_ns) for r in replay.rejections] == [
        (arrivals[2], 1),
        (arrivals[1], 2 * MS + 1),
        (arrivals[3], 9 * MS + 1),
    ]


def test_priorities_and_deadlines_are_judged_when_an_instance_is_free() -> None:
    waiting = batcher(LEVELS, max_batch=2)
    waiting.add(request_of(0, priority=2))
    waiting.add(request_of(0, priority=2))
    assert not waiting.take(0, idle=False)
    high = request_of(1, priority=1)
    waiting.add(high)
    assert waiting.take(2, idle=True)[0] is high


def test_the_delay_of_a_batch_counts_from_its_oldest_request_whatever_the_level() -> None:
    waiting = batcher(LEVELS, max_batch=4, delay_ns=10 * MS)
    waiting.add(request_of(0, priority=3))
    waiting.add(request_of(5 * MS, priority=1))
    assert not waiting.take(9 * MS, idle=True)
    assert waiting.wake_ns(9 * MS) == 10 * MS
    assert [r.head.priority for r in waiting.take(10 * MS, idle=True)] == [1, 3]


def test_levels_exist_while_requests_wait_at_them() -> None:
    queue = PolicyQueue(QueuePolicies(levels=2**64 - 1, default_level=2**64 - 1))
    arrivals = [request_of(priority=level) for level in (0, 2**64 - 1, 2**63, 7)]
    for request in arrivals:
        queue.append(request)
    last, same, middle, first = arrivals
    assert list(queue) == [first, middle, last, same]
    assert [queue.popleft() for _ in range(4)] == [first, middle, last, same]
    assert not list(queue)


def test_requests_of_many_levels_cost_no_look_at_each_level() -> None:
    timeout = QueuePolicy(timeout_ns=10**12)
    waiting = batcher(QueuePolicies(levels=2**40, default_level=1, default=timeout))
    for at in range(20_000):
        waiting.add(request_of(at, priority=1 + at))
    for now in range(20_000):  # quadratic, it would take minutes
        waiting.expire(now)
        assert waiting.wake_ns(now) == now + 10**12
        waiting.take(now, idle=True)
    assert len(waiting) == 0


def test_deadlines_of_requests_that_have_left_are_not_kept() -> None:
    tracemalloc.start()
    try:
        queue = PolicyQueue(QueuePolicies(default=QueuePolicy(timeout_ns=2**64)))
        request = request_of()
        for _ in range(20_000):
            queue.append(request)
            queue.popleft()
        assert tracemalloc.get_traced_memory()[0] < 100_000
    finally:
        tracemalloc.stop()


def test_a_queue_that_is_only_called_special_is_plain() -> None:
    assert QueuePolicies(default=QueuePolicy(delays=True, allow_timeout_override=True)).plain
    assert not QueuePolicies(levels=1, default_level=1).plain


def test_a_long_queue_of_deadlines_costs_no_look_at_each() -> None:
    waiting = batcher(QueuePolicies(default=QueuePolicy(timeout_ns=10**12)))
    for at in range(20_000):
        waiting.add(request_of(at))
    for now in range(20_000):  # quadratic, it would take minutes
        waiting.expire(now)
        assert waiting.wake_ns(now) == now + 10**12
        waiting.take(now, idle=True)
    assert len(waiting) == 0
