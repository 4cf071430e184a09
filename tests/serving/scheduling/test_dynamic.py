"""Dynamic batching: replays of arrival traces, checked batch by batch."""

from collections.abc import Sequence

import pytest

from tests.serving.fakes import MS, request_of
from tests.serving.scheduling.replay import Replay
from tpx.serving.scheduling.dynamic import DynamicBatcher


def batcher_with(batcher: DynamicBatcher, rows: Sequence[int], at_ns: int = 0) -> DynamicBatcher:
    """The batcher with requests of these many rows waiting."""
    for count in rows:
        batcher.add(request_of(at_ns, count))
    return batcher


def sizes(batcher: DynamicBatcher, now_ns: int = 0, *, idle: bool = True) -> list[int]:
    """The rows of the requests that leave now."""
    return [request.head.batch_size for request in batcher.take(now_ns, idle=idle)]


def test_without_a_delay_what_waits_leaves_as_it_is() -> None:
    batcher = batcher_with(DynamicBatcher(8), [1, 1, 1])
    assert sizes(batcher) == [1, 1, 1]


def test_without_a_delay_a_busy_instance_waits_for_a_fuller_batch() -> None:
    batcher = batcher_with(DynamicBatcher(4), [1, 1])
    assert sizes(batcher, idle=False) == []
    batcher_with(batcher, [1, 1])
    assert sizes(batcher, idle=False) == [1, 1, 1, 1]


def test_a_full_batch_leaves_before_its_delay_ends() -> None:
    batcher = DynamicBatcher(4, max_queue_delay_ns=10 * MS)
    assert sizes(batcher_with(batcher, [1, 1, 1]), 1 * MS) == []
    assert sizes(batcher_with(batcher, [1]), 1 * MS) == [1, 1, 1, 1]


def test_a_batch_leaves_when_its_oldest_request_has_waited_the_delay() -> None:
    batcher = DynamicBatcher(8, max_queue_delay_ns=10 * MS)
    batcher_with(batcher, [1], at_ns=0)
    batcher_with(batcher, [1], at_ns=9 * MS)
    assert sizes(batcher, 10 * MS - 1) == []
    assert sizes(batcher, 10 * MS) == [1, 1]


def test_the_delay_runs_again_for_what_stays_behind() -> None:
    batcher = DynamicBatcher(2, max_queue_delay_ns=10 * MS)
    batcher_with(batcher, [1, 1], at_ns=0)
    batcher_with(batcher, [1], at_ns=4 * MS)
    assert sizes(batcher, 5 * MS) == [1, 1]
    assert batcher.wake_ns(5 * MS) == 14 * MS
    assert sizes(batcher, 14 * MS - 1) == []
    assert sizes(batcher, 14 * MS) == [1]


def test_an_overdue_batch_still_waits_for_an_instance() -> None:
    batcher = batcher_with(DynamicBatcher(8, max_queue_delay_ns=MS), [1])
    assert sizes(batcher, 5 * MS, idle=False) == []
    assert sizes(batcher, 5 * MS, idle=True) == [1]


def test_rows_count_and_not_requests() -> None:
    batcher = batcher_with(DynamicBatcher(8), [3, 3, 3])
    assert sizes(batcher) == [3, 3]
    assert sizes(batcher) == [3]


def test_a_request_that_does_not_fit_lets_the_ones_before_it_go() -> None:
    batcher = batcher_with(DynamicBatcher(8, max_queue_delay_ns=MS), [5, 5])
    assert sizes(batcher, 0, idle=False) == [5]
    assert sizes(batcher, 0) == []
    assert sizes(batcher, MS) == [5]


def test_requests_of_other_shapes_are_not_stacked_and_not_overtaken() -> None:
    batcher = DynamicBatcher(8)
    shapes = [(2,), (2,), (3,), (2,), (2,)]
    requests = [request_of(0, 1, shape) for shape in shapes]
    for request in requests:
        batcher.add(request)
    assert list(batcher.take(0, idle=True)) == requests[:2]
    assert list(batcher.take(0, idle=True)) == requests[2:3]
    assert list(batcher.take(0, idle=True)) == requests[3:]


def test_another_shape_behind_it_ends_the_wait_of_a_batch() -> None:
    batcher = DynamicBatcher(8, max_queue_delay_ns=10 * MS)
    batcher.add(request_of(0, 1, (2,)))
    assert sizes(batcher, 1) == []
    batcher.add(request_of(1, 1, (3,)))
    assert sizes(batcher, 1) == [1]
    assert sizes(batcher, 1) == []


def test_a_preferred_size_leaves_at_once() -> None:
    batcher = DynamicBatcher(8, (4,), 10 * MS)
    assert sizes(batcher_with(batcher, [1, 1, 1])) == []
    assert sizes(batcher_with(batcher, [1])) == [1, 1, 1, 1]


def test_the_largest_preferred_size_that_waits_leaves() -> None:
    batcher = DynamicBatcher(16, (2, 4, 6), 10 * MS)
    assert sizes(batcher_with(batcher, [1] * 5)) == [1] * 4
    batcher_with(batcher, [1] * 6)
    assert sizes(batcher) == [1] * 6
    assert sizes(batcher) == []


def test_a_full_batch_that_is_a_preferred_size_is_not_cut_to_a_smaller_one() -> None:
    batcher = batcher_with(DynamicBatcher(8, (4, 8), 10 * MS), [1] * 8)
    assert sizes(batcher) == [1] * 8


def test_what_would_overshoot_the_largest_preferred_size_leaves_before_it() -> None:
    batcher = batcher_with(DynamicBatcher(8, (4,), 10 * MS), [3, 3])
    assert sizes(batcher) == [3]
    assert sizes(batcher) == []


def test_a_request_over_every_preferred_size_does_not_wait() -> None:
    batcher = batcher_with(DynamicBatcher(8, (4,), 10 * MS), [6])
    assert sizes(batcher, idle=False) == [6]
    assert len(batcher_with(batcher, [6, 1])) == 2
    assert sizes(batcher) == [6]


def test_after_the_delay_all_that_fits_leaves_whatever_is_preferred() -> None:
    batcher = batcher_with(DynamicBatcher(8, (2,), 10 * MS), [1] * 5)
    assert sizes(batcher, 10 * MS) == [1] * 5


def test_without_a_delay_sizes_that_are_not_preferred_leave_to_an_idle_instance() -> None:
    batcher = batcher_with(DynamicBatcher(8, (4,)), [1] * 3)
    assert sizes(batcher, idle=False) == []
    assert sizes(batcher, idle=True) == [1] * 3


@pytest.mark.parametrize("delay_ns", [0, MS])
def test_there_is_a_time_to_look_again_only_while_something_waits_for_it(delay_ns: int) -> None:
    batcher = DynamicBatcher(8, max_queue_delay_ns=delay_ns)
    assert batcher.timed == (delay_ns > 0)
    assert batcher.wake_ns(7) is None
    batcher.add(request_of(7))
    assert batcher.wake_ns(7) == (7 + delay_ns if delay_ns else None)
    assert batcher.wake_ns(7 + delay_ns) is None, "it would be looked at for ever while instances are busy"
    batcher.take(7 + delay_ns, idle=True)
    assert batcher.wake_ns(7) is None


def test_a_trace_of_light_load_is_served_one_by_one_without_delay() -> None:
    arrivals = [request_of(at * 10 * MS) for at in range(5)]
    departures = Replay(DynamicBatcher(8), 1, lambda _: MS).run(arrivals)
    assert [(d.at_ns, d.size) for d in departures] == [(at * 10 * MS, 1) for at in range(5)]


def test_a_trace_of_heavy_load_forms_batches_while_the_instance_is_busy() -> None:
    # one request a ms, five ms a batch: while one batch is computed the next five requests come
    arrivals = [request_of(at * MS) for at in range(1, 21)]
    departures = Replay(DynamicBatcher(8), 1, lambda _: 5 * MS).run(arrivals)
    assert [(d.at_ns // MS, d.size) for d in departures] == [(1, 1), (6, 5), (11, 5), (16, 5), (21, 4)]


def test_a_trace_with_a_delay_collects_what_comes_within_it() -> None:
    arrivals = [request_of(at * MS) for at in (0, 1, 2, 20, 21, 40)]
    departures = Replay(DynamicBatcher(8, max_queue_delay_ns=5 * MS), 1, lambda _: MS).run(arrivals)
    assert [(d.at_ns // MS, d.size) for d in departures] == [(5, 3), (25, 2), (45, 1)]


def test_a_trace_on_two_instances_gives_a_full_second_batch_to_a_busy_one() -> None:
    arrivals = [request_of(0) for _ in range(5)] + [request_of(MS) for _ in range(2)]
    departures = Replay(DynamicBatcher(2), 2, lambda _: 100 * MS).run(arrivals)
    assert [(d.at_ns // MS, d.size, d.idle) for d in departures] == [
        (0, 2, True),
        (0, 2, True),
        (1, 2, False),
        (100, 1, True),
    ]
