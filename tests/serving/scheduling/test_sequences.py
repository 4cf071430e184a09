"""Sequences and their slots, replayed."""

from collections.abc import Callable, Mapping
from typing import cast

import pytest

from tests.serving.fakes import MS, request_of
from tests.serving.scheduling.replay import Replay, present
from tpx.errors import Cancelled, InvalidRequest, Overloaded
from tpx.protocol.tensors import Array
from tpx.protocol.v2 import Parameter
from tpx.serving.request import CorrelationId, InferRequest
from tpx.serving.scheduling.dynamic import DynamicBatcher
from tpx.serving.scheduling.sequences import SequenceTable
from tpx.serving.scheduling.strategies import DirectSequences, OldestSequences

IDLE = 1000 * MS


def part(
    correlation_id: CorrelationId,
    at_ns: int = 0,
    flags: str = "",
    dims: tuple[int, ...] = (2,),
    **more: Parameter,
) -> InferRequest:
    """A request of a sequence; `flags` has S where it starts it, E where it ends it."""
    parameters: dict[str, Parameter] = {"sequence_id": correlation_id, **more}
    parameters |= {"sequence_start": "S" in flags, "sequence_end": "E" in flags}
    return request_of(at_ns, 1, dims, **parameters)


def table(instances: int = 1, slots: int = 2, idle_ns: int = IDLE) -> SequenceTable:
    return SequenceTable("net", instances, slots, idle_ns, lambda _: None)


def direct(
    instances: int = 1, slots: int = 2, *, delay_ns: int = 0, utilization: float = 0, idle_ns: int = IDLE
) -> DirectSequences:
    return DirectSequences(table(instances, slots, idle_ns), slots, delay_ns, utilization)


def oldest(
    instances: int = 1,
    slots: int = 4,
    *,
    max_batch: int = 2,
    delay_ns: int = 0,
    preferred: tuple[int, ...] = (),
) -> OldestSequences:
    return OldestSequences(table(instances, slots), lambda: DynamicBatcher(max_batch, preferred, delay_ns))


def ids(departures: list[tuple[InferRequest, ...]]) -> list[list[CorrelationId]]:
    return [[request.live_sequence.id for request in requests] for requests in departures]


def slots_of(requests: tuple[InferRequest, ...]) -> list[tuple[int, int]]:
    return [(request.live_sequence.instance, request.live_sequence.slot) for request in requests]


# what is asked of a request

MISSING_ID = "inference request to model 'net' must specify a non-zero or non-empty correlation ID"


@pytest.mark.parametrize("given", [{}, {"sequence_id": 0}, {"sequence_id": ""}])
def test_a_request_needs_a_correlation_id(given: dict[str, Parameter]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        direct().add(request_of(0, 1, (2,), sequence_start=True, **given))
    assert caught.value.message == MISSING_ID


def test_a_request_of_several_rows_is_refused_before_all_else() -> None:
    with pytest.raises(InvalidRequest) as caught:
        direct().add(request_of(0, rows=2))
    assert caught.value.message == (
        "inference request to model 'net' must specify batch-size 1 due to requirements of sequence batcher"
    )


@pytest.mark.parametrize("flags", ["", "E"])
def test_the_first_request_of_a_sequence_must_start_it(flags: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        direct().add(part(7, flags=flags))
    assert caught.value.message == (
        "inference request for sequence 7 to model 'net' must specify the START flag on the first request of "
        "the sequence"
    )


def test_a_string_may_have_128_characters_and_no_more() -> None:
    scheduler = direct()
    scheduler.add(part("x" * 128, flags="S"))
    with pytest.raises(InvalidRequest, match="string correlation ID cannot be longer than 128 characters"):
        scheduler.add(part("x" * 129, flags="S"))
    assert len(scheduler) == 1


def test_a_number_and_its_text_are_two_sequences() -> None:
    scheduler = direct()
    scheduler.add(part(1, flags="S"))
    scheduler.add(part("1", flags="S"))
    assert len(scheduler.take(0, idle=True)) == 2


# slots


def test_the_lowest_slot_over_all_instances_is_taken_first() -> None:
    scheduler = direct(instances=2, slots=2)
    arrivals = [part(n, flags="S") for n in (1, 2, 3, 4)]
    for request in arrivals:
        scheduler.add(request)
    assert slots_of(tuple(arrivals)) == [(0, 0), (1, 0), (0, 1), (1, 1)]


def test_a_batch_has_one_request_of_each_sequence_that_is_ready() -> None:
    arrivals = [part(1, 0, "S"), part(2, 0, "S"), part(1, 0), part(1, 0, "E"), part(2, 0, "E")]
    departures = Replay(direct(), 1, lambda _: MS).run(arrivals)
    assert ids([d.requests for d in departures]) == [[1, 2], [1, 2], [1]]


def test_a_free_slot_goes_to_the_sequence_that_has_waited_longest() -> None:
    arrivals = [part(1, 0, "S"), part(2, 0, "SE"), part(3, 1, "SE"), part(4, 2, "SE"), part(1, 3, "E")]
    departures = Replay(direct(slots=1, idle_ns=IDLE), 1, lambda _: MS).run(arrivals)
    assert ids([d.requests for d in departures]) == [[1], [1], [2], [3], [4]]


def test_requests_of_a_sequence_in_the_backlog_stay_in_order() -> None:
    arrivals = [part(1, 0, "S"), part(2, 1, "S"), part(2, 2), part(2, 3, "E"), part(1, 4, "E")]
    departures = Replay(direct(slots=1), 1, lambda _: MS).run(arrivals)
    assert [d.requests[0] for d in departures] == [arrivals[n] for n in (0, 4, 1, 2, 3)]


def test_an_ended_sequence_and_one_that_begins_with_its_id_are_two() -> None:
    arrivals = [part(1, 0, "SE"), part(1, 0, "SE")]
    scheduler = direct()
    departures = Replay(scheduler, 1, lambda _: MS).run(arrivals)
    assert len(departures) == 1
    assert slots_of(departures[0].requests) == [(0, 0), (0, 1)]


def test_a_start_within_a_sequence_goes_on_in_its_slot(caplog: pytest.LogCaptureFixture) -> None:
    arrivals = [part(5, 0, "S"), part(5, 1, "S"), part(5, 2, "E")]
    departures = Replay(direct(), 1, lambda _: MS).run(arrivals)
    assert len(departures) == 3
    assert len({id(request.sequence) for request in arrivals}) == 1
    assert (
        "sequence 5 for model 'net' has a conflict. The previous sequence did not end before this sequence "
        "start. Previous sequence will be terminated early." in caplog.text
    )


def test_requests_of_other_shapes_have_a_batch_of_their_own_and_none_starves() -> None:
    arrivals = [part(1, at, "S" if not at else "", (2,)) for at in range(6)]
    arrivals.insert(1, part(2, 0, "SE", (3,)))
    departures = Replay(direct(), 1, lambda _: MS).run(arrivals)
    assert ids([d.requests for d in departures])[:2] == [[1], [2]]


# when a batch leaves


def test_with_a_delay_few_slots_wait_and_enough_slots_do_not() -> None:
    arrivals = [part(n, at * MS, "S") for n, at in ((1, 0), (2, 3))]
    scheduler = direct(slots=4, delay_ns=10 * MS, utilization=0.5)
    departures = Replay(scheduler, 1, lambda _: MS).run(arrivals)
    assert [(d.at_ns // MS, d.size) for d in departures] == [(3, 2)]


def test_with_a_delay_few_slots_leave_when_it_ends() -> None:
    scheduler = direct(slots=4, delay_ns=10 * MS, utilization=0.5)
    departures = Replay(scheduler, 1, lambda _: MS).run([part(1, 2 * MS, "S")])
    assert [(d.at_ns // MS, d.size) for d in departures] == [(12, 1)]


def test_a_delay_without_a_utilization_means_nothing() -> None:
    departures = Replay(direct(delay_ns=10 * MS), 1, lambda _: MS).run([part(1, 0, "SE")])
    assert departures[0].at_ns == 0


def test_the_oldest_strategy_batches_whoever_is_ready_first() -> None:
    arrivals = [part(n, n, "SE") for n in (1, 2, 3)]
    arrivals = [part(9, 0, "SE"), *arrivals]
    departures = Replay(oldest(max_batch=2), 1, lambda _: MS).run(arrivals)
    assert ids([d.requests for d in departures]) == [[9], [1, 2], [3]]


def test_the_oldest_strategy_has_more_candidates_than_rows() -> None:
    arrivals = [part(n, 0, "SE") for n in range(1, 6)]
    departures = Replay(oldest(slots=4, max_batch=2), 1, lambda _: MS).run(arrivals)
    assert ids([d.requests for d in departures]) == [[1, 2], [3, 4], [5]]


def test_the_delay_of_the_oldest_strategy_counts_from_when_a_request_could_leave() -> None:
    arrivals = [part(1, 0, "S"), part(1, 0, "E"), part(2, 14 * MS, "SE")]
    scheduler = oldest(max_batch=2, delay_ns=10 * MS)
    departures = Replay(scheduler, 1, lambda _: 2 * MS).run(arrivals)
    # the second request of 1 could not leave before 12 ms: it has until 22 ms to find company
    assert [(d.at_ns // MS, d.size) for d in departures] == [(10, 1), (14, 2)]


def test_a_preferred_size_of_the_oldest_strategy_leaves_at_once() -> None:
    arrivals = [part(n, n, "SE") for n in (1, 2, 3)]
    scheduler = oldest(max_batch=8, preferred=(2,), delay_ns=10 * MS)
    departures = Replay(scheduler, 1, lambda _: 1).run(arrivals)
    assert [(d.at_ns, d.size) for d in departures] == [(2, 2), (3 + 10 * MS, 1)]


# what ends a sequence


def test_a_sequence_that_is_idle_for_too_long_leaves_its_slot() -> None:
    scheduler = direct(slots=1, idle_ns=5 * MS)
    arrivals = [part(1, 0, "S"), part(2, MS, "SE"), part(1, 20 * MS)]
    replay = Replay(scheduler, 1, lambda _: MS)
    departures = replay.run(arrivals)
    assert [(d.requests[0], d.at_ns) for d in departures] == [(arrivals[0], 0), (arrivals[1], 6 * MS + 1)]
    [rejection] = replay.rejections
    assert "must specify the START flag" in rejection.error.message


def test_a_sequence_whose_request_is_computed_is_not_idle() -> None:
    scheduler = direct(slots=1, idle_ns=5 * MS)
    arrivals = [part(1, 0, "S"), part(1, 23 * MS, "E")]
    departures = Replay(scheduler, 1, lambda _: 20 * MS).run(arrivals)
    assert len(departures) == 2


def test_idle_sequences_end_without_any_traffic() -> None:
    scheduler = direct(idle_ns=5 * MS)
    replay = Replay(scheduler, 1, lambda _: MS)
    replay.run([part(1, 0, "S")])
    with pytest.raises(InvalidRequest):
        scheduler.add(part(1, 50 * MS))
    assert scheduler.wake_ns(50 * MS) is None
    assert replay.looks < 6


def test_a_sequence_waits_in_the_backlog_no_longer_than_any_of_its_requests_may() -> None:
    arrivals = [part(1, 0, "S"), part(2, 0, "S"), part(2, MS, timeout=2000), part(1, 60 * MS, "E")]
    replay = Replay(direct(slots=1), 1, lambda _: MS)
    replay.run(arrivals)
    assert [(r.request, r.at_ns) for r in replay.rejections] == [(arrivals[1], 3 * MS), (arrivals[2], 3 * MS)]
    assert {r.error.message for r in replay.rejections} == {
        "timeout of the corresponding sequence has been expired"
    }
    assert all(isinstance(r.error, Overloaded) for r in replay.rejections)
    assert replay.computed == [arrivals[0], arrivals[3]]


def test_a_sequence_that_got_its_slot_in_time_has_no_timeout_any_more() -> None:
    arrivals = [part(1, 0, "SE"), part(2, 0, "S", timeout=5000), part(2, 1, "E")]
    replay = Replay(direct(slots=1), 1, lambda _: 3 * MS)
    replay.run(arrivals)
    assert not replay.rejections


@pytest.mark.parametrize("make", [direct, oldest])
def test_an_instance_that_opens_takes_sequences_from_the_backlog(
    make: Callable[..., DirectSequences | OldestSequences],
) -> None:
    scheduler = make(instances=1, slots=1)
    for number in (1, 2, 3):
        scheduler.add(part(number, number, "S"))
    scheduler.affinity.open_instance(7, 5)
    assert [request and request.live_sequence.id for request in scheduler.take(6, idle=True, instance=7)] == [
        2
    ]
    assert scheduler.take(6, idle=True, instance=7) in ((), [])


@pytest.mark.parametrize("make", [direct, oldest])
def test_an_instance_that_closes_keeps_its_sequences_and_gets_no_other(
    make: Callable[..., DirectSequences | OldestSequences],
) -> None:
    scheduler = make(instances=2, slots=1)
    first, second, third = (part(number, number, "S") for number in (1, 2, 3))
    for request in (first, second, third):
        scheduler.add(request)
    for instance, request in enumerate((first, second)):
        assert scheduler.take(5, idle=True, instance=instance) == [request]
        scheduler.affinity.finished([request], 5)
    assert not scheduler.affinity.close_instance(1)
    last = part(2, 6, "E")
    scheduler.add(last)
    assert scheduler.take(7, idle=True, instance=1) == [last]
    assert not scheduler.affinity.close_instance(1)
    scheduler.affinity.finished([last], 8)
    assert scheduler.affinity.close_instance(1)
    assert (len(scheduler), scheduler.affinity.live) == (1, 2), (
        "the third waits for the instance that is open"
    )
    scheduler.add(part(1, 9, "E"))
    scheduler.affinity.finished(present(scheduler.take(10, idle=True)), 10)
    assert scheduler.take(11, idle=True) == [third]


@pytest.mark.parametrize("make", [direct, oldest])
def test_an_instance_without_sequences_closes_at_once(
    make: Callable[..., DirectSequences | OldestSequences],
) -> None:
    scheduler = make(instances=2, slots=1)
    assert scheduler.affinity.close_instance(0)
    scheduler.add(request := part(1, 0, "S"))
    assert request.live_sequence.instance == 1


def rows(scheduler: DirectSequences | OldestSequences, now_ns: int = 10) -> list[CorrelationId | None]:
    """The sequences of the rows that leave now, None for an empty one; they are computed at once."""
    taken = scheduler.take(now_ns, idle=True)
    scheduler.affinity.finished(present(taken), now_ns)
    return [None if request is None else request.live_sequence.id for request in taken]


def test_a_batch_has_a_row_for_every_slot_up_to_the_last_one_that_is_ready() -> None:
    scheduler = direct(slots=4)
    for number in (1, 2, 3, 4):
        scheduler.add(part(number, number, "S"))
    assert rows(scheduler) == [1, 2, 3, 4]
    for number, flags in ((2, ""), (3, "E")):
        scheduler.add(part(number, 5, flags))
    assert rows(scheduler) == [None, 2, 3]
    scheduler.add(part(5, 6, "S"))
    scheduler.add(part(4, 6))
    assert rows(scheduler) == [None, None, 5, 4]
    scheduler.add(part(1, 7))
    assert rows(scheduler) == [1]
    assert rows(scheduler) == []


def test_slots_with_another_shape_are_empty_rows_also_behind_the_last_one_that_fits() -> None:
    scheduler = direct(slots=4)
    for number in (1, 2, 3, 4):
        scheduler.add(part(number, number, "S", dims=(2,) if number in (1, 3) else (5,)))
    assert rows(scheduler) == [1, None, 3, None]
    assert rows(scheduler) == [None, 2, None, 4]


def test_rows_of_the_oldest_strategy_are_no_slots() -> None:
    scheduler = oldest(slots=4)
    for number in (1, 2, 3):
        scheduler.add(part(number, number, "SE" if number < 3 else "S"))
    assert rows(scheduler) == [1, 2]
    scheduler.add(part(3, 5))
    assert rows(scheduler) == [3]


@pytest.mark.parametrize("scheduler", [direct(slots=1), oldest(slots=1)])
def test_a_cancelled_request_ends_its_sequence_and_what_waits_behind_it(
    scheduler: DirectSequences | OldestSequences,
) -> None:
    arrivals = [part(1, 0, "S"), part(1, 1), part(1, 2), part(2, 3, "SE"), part(1, 50 * MS)]
    replay = Replay(scheduler, 1, lambda _: 10 * MS, cancelled={1: 5})
    replay.run(arrivals)
    assert replay.computed == [arrivals[0], arrivals[3]]
    errors = {id(r.request): r.error for r in replay.rejections}
    assert isinstance(errors[id(arrivals[1])], Cancelled)
    assert isinstance(errors[id(arrivals[2])], Cancelled)
    assert "must specify the START flag" in errors[id(arrivals[4])].message


@pytest.mark.parametrize("purges", [False, True])
@pytest.mark.parametrize("scheduler", [direct, oldest])
def test_a_client_that_gives_up_and_starts_its_sequence_anew_is_served(
    scheduler: Callable[..., DirectSequences | OldestSequences],
    purges: bool,
) -> None:
    arrivals = [
        part(9, 0, "S"),
        part(1, 1, "S"),
        part(1, 2),
        part(1, 3, "S"),
        part(1, 4, "E"),
        part(9, 5, "E"),
    ]
    replay = Replay(scheduler(slots=1), 1, lambda _: 10 * MS, cancelled={1: 6}, purges=purges)
    replay.run(arrivals)
    assert replay.computed == [arrivals[n] for n in (0, 5, 3, 4)]
    assert {id(r.request): r.error.message for r in replay.rejections} == {
        id(arrivals[1]): "the request was cancelled",
        id(arrivals[2]): "a request of the sequence was cancelled",
    }


@pytest.mark.parametrize("scheduler", [direct(slots=1), oldest(slots=1)])
def test_what_a_client_still_waits_for_is_computed_before_its_sequence_ends_with_what_it_gave_up(
    scheduler: DirectSequences | OldestSequences,
) -> None:
    arrivals = [part(9, 0, "S"), part(1, 1, "S"), part(1, 2), part(2, 3, "SE"), part(9, 5, "E")]
    replay = Replay(scheduler, 1, lambda _: 10 * MS, cancelled={2: 6}, purges=True)
    replay.run(arrivals)
    assert replay.computed == [arrivals[n] for n in (0, 4, 1, 3)]
    assert [(r.request, r.at_ns) for r in replay.rejections] == [(arrivals[2], 6)]


def test_a_request_that_is_cancelled_while_it_is_computed_does_not_end_its_sequence() -> None:
    arrivals = [part(1, 0, "S"), part(1, 1, "E")]
    replay = Replay(direct(), 1, lambda _: 10 * MS, cancelled={0: 5})
    replay.run(arrivals)
    assert replay.computed == arrivals


@pytest.mark.parametrize("scheduler", [direct(slots=1), oldest(slots=1)])
def test_sequences_that_were_begun_and_forsaken_do_not_pile_up_behind_one_that_stays(
    scheduler: DirectSequences | OldestSequences,
) -> None:
    scheduler.add(part(1, 0, "S"))
    [stays] = present(scheduler.take(0, idle=True))
    waits = part(2, 1, "S")
    scheduler.add(waits)
    forsaken = [part(3 + number, 2, "S", timeout=10**9) for number in range(100)]
    for request in forsaken:
        scheduler.add(request)
        request.cancel()
    assert [refusal.request for refusal in scheduler.purge_cancelled(3)] == forsaken
    assert (len(scheduler), scheduler.affinity.live) == (1, 2)
    assert scheduler.wake_ns(3) is None  # nobody is in the backlog whose time could end
    scheduler.affinity.finished([stays], 4)
    scheduler.add(part(1, 5, "E"))
    scheduler.affinity.finished(present(scheduler.take(5, idle=True)), 6)
    assert scheduler.take(6, idle=True) == [waits]


# states that grow


class Grown:
    """A state of which only the shape matters."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape


def growing(*, oldest_first: bool) -> DirectSequences | OldestSequences:
    """Four slots; states begin with a shape of [1, 2]."""
    slots = SequenceTable("net", 1, 4, IDLE, lambda _: None, [(1, 2)])
    if oldest_first:
        return OldestSequences(slots, lambda: DynamicBatcher(4))
    return DirectSequences(slots, 4, 0, 0)


def leave(
    scheduler: DirectSequences | OldestSequences, grown: Mapping[CorrelationId, int]
) -> list[list[CorrelationId]]:
    """Everything that leaves, batch by batch; afterwards the states have grown so far."""
    out = []
    while batch := present(scheduler.take(0, idle=True)):
        out.append([request.live_sequence.id for request in batch])
        for request in batch:
            request.live_sequence.states["state"] = cast("Array", Grown(grown[request.live_sequence.id], 2))
        scheduler.affinity.finished(batch, 0)
    return out


@pytest.mark.parametrize("oldest_first", [False, True])
def test_states_of_other_shapes_have_a_batch_of_their_own(*, oldest_first: bool) -> None:
    scheduler = growing(oldest_first=oldest_first)
    for sequence in (1, 2, 3):
        scheduler.add(part(sequence, 0, "S"))
    assert leave(scheduler, {1: 2, 2: 2, 3: 3}) == [[1, 2, 3]]
    for at, sequence in enumerate((1, 3, 2)):
        scheduler.add(part(sequence, at))
    together = leave(scheduler, {1: 5, 2: 1, 3: 5})
    assert sorted(map(sorted, together)) == ([[1], [2], [3]] if oldest_first else [[1, 2], [3]])
    scheduler.add(part(1, 9))
    scheduler.add(part(3, 9))
    scheduler.add(part(2, 9))
    scheduler.add(part(4, 9, "S"))
    assert sorted(map(sorted, leave(scheduler, {1: 6, 2: 6, 3: 6, 4: 6}))) == [[1, 3], [2, 4]]


def test_a_sequence_that_begins_anew_has_the_first_shape_again() -> None:
    scheduler = growing(oldest_first=False)
    for sequence in (1, 2):
        scheduler.add(part(sequence, 0, "S"))
    leave(scheduler, {1: 7, 2: 1})
    scheduler.add(part(1, 1, "S"))
    scheduler.add(part(2, 1))
    assert leave(scheduler, {1: 2, 2: 2}) == [[1, 2]]


def test_slots_that_were_never_used_take_no_memory() -> None:
    slots = table(instances=2, slots=2**31 - 1)
    arrivals = [request_of(sequence_id=number, sequence_start=True) for number in (7, 8, 9, 10)]
    for request in arrivals:
        slots.add(request)
    places = [(r.sequence.slot, r.sequence.instance) for r in arrivals if r.sequence is not None]
    assert places == [(0, 0), (0, 1), (1, 0), (1, 1)]
