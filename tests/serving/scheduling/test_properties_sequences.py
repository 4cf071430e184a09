"""What holds of both strategies of sequence batching on every trace."""

import itertools
from collections import defaultdict
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.serving.fakes import request_of
from tests.serving.scheduling.replay import Departure, Replay
from tpx.errors import Cancelled, InvalidRequest, Overloaded
from tpx.serving.request import InferRequest
from tpx.serving.scheduling.base import Scheduler
from tpx.serving.scheduling.dynamic import DynamicBatcher
from tpx.serving.scheduling.sequences import SequenceTable
from tpx.serving.scheduling.strategies import DirectSequences, OldestSequences

IDLE_NS = 400
SERVICE_NS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A strategy and its numbers."""

    oldest: bool
    instances: int
    slots: int
    rows: int
    delay_ns: int
    utilization: float

    @property
    def most(self) -> int:
        return self.rows if self.oldest else self.slots

    def scheduler(self) -> Scheduler:
        table = SequenceTable("net", self.instances, self.slots, IDLE_NS, lambda _: None)
        if self.oldest:
            return OldestSequences(table, lambda: DynamicBatcher(self.rows, (), self.delay_ns))
        return DirectSequences(table, self.slots, self.delay_ns, self.utilization)


settings_of_strategies = st.builds(
    Setting,
    oldest=st.booleans(),
    instances=st.integers(1, 3),
    slots=st.integers(1, 3),
    rows=st.integers(1, 3),
    delay_ns=st.sampled_from([0, 0, 25]),
    utilization=st.sampled_from([0.0, 0.5, 1.0]),
)


@st.composite
def traces(draw: st.DrawFn, *, polite: bool) -> list[InferRequest]:
    """Requests of a few sequences, interleaved; polite ones start once, end, and have the same shape."""
    arrivals = []
    now = 0
    open_ids: set[int] = set()
    for _ in range(draw(st.integers(1, 25))):
        now += draw(st.sampled_from([0, 0, 1, 10, 60] if polite else [0, 0, 1, 10, 60, 500]))
        correlation_id = draw(st.integers(1, 6))
        starts = correlation_id not in open_ids if polite else draw(st.booleans())
        ends = draw(st.sampled_from([False, False, True]))
        (open_ids.discard if ends else open_ids.add)(correlation_id)
        dims = (2,) if polite else draw(st.sampled_from([(2,), (2,), (3,)]))
        timeout_us = 0 if polite else draw(st.sampled_from([0, 0, 0, 1]))
        arrivals.append(
            request_of(
                now,
                1,
                dims,
                sequence_id=correlation_id,
                sequence_start=starts,
                sequence_end=ends,
                timeout=timeout_us,
            )
        )
    return arrivals


@settings(max_examples=120, deadline=None)
@given(
    settings_of_strategies,
    traces(polite=False),
    st.dictionaries(st.integers(0, 24), st.integers(0, 300), max_size=2),
    st.booleans(),
)
def test_sequences_keep_their_promises(
    setting: Setting, arrivals: list[InferRequest], cancelled: dict[int, int], purges: bool
) -> None:
    cancelled = {index: at for index, at in cancelled.items() if index < len(arrivals)}
    scheduler = setting.scheduler()
    replay = Replay(scheduler, setting.instances, lambda _: SERVICE_NS, cancelled, purges=purges)
    replay.run(arrivals)

    ended = [id(r) for r in replay.computed] + [id(r.request) for r in replay.rejections]
    assert sorted(ended) == sorted(id(request) for request in arrivals), "lost, or answered twice"
    assert len(scheduler) == 0
    assert scheduler.wake_ns(2**62) is None
    for rejection in replay.rejections:
        assert isinstance(rejection.error, Cancelled | Overloaded | InvalidRequest)
        assert cancelled or not isinstance(rejection.error, Cancelled)
    for departure in replay.departures:
        assert departure.size <= setting.most
        assert len({request.head.batch_key for request in departure.requests}) == 1
    _each_in_order_at_one_place(replay.departures)
    _no_slot_has_two(replay.departures)


@settings(max_examples=60, deadline=None)
@given(settings_of_strategies, traces(polite=True))
def test_sequences_that_keep_the_rules_lose_nothing(setting: Setting, arrivals: list[InferRequest]) -> None:
    replay = Replay(setting.scheduler(), setting.instances, lambda _: SERVICE_NS)
    replay.run(arrivals)
    refused = [rejection.error.message for rejection in replay.rejections]
    assert all("must specify the START flag" in message for message in refused), "but for idle ones"
    if max(r.arrived_ns for r in arrivals) < IDLE_NS:
        assert not refused


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 2), st.sampled_from([0, 25]), st.sampled_from([0.5, 1.0]), traces(polite=True))
def test_nobody_waits_beyond_the_delay_while_its_instance_is_free(
    instances: int, delay_ns: int, utilization: float, arrivals: list[InferRequest]
) -> None:
    slots = 25  # enough for all: a sequence has its slot as soon as it begins
    setting = Setting(
        oldest=False, instances=instances, slots=slots, rows=1, delay_ns=delay_ns, utilization=utilization
    )
    replay = Replay(setting.scheduler(), instances, lambda _: SERVICE_NS)
    departures = replay.run(arrivals)
    ends: dict[int, int] = {}
    for departure in departures:
        for request in departure.requests:
            ready_ns = max(request.arrived_ns, ends.get(id(request.sequence), 0))
            latest_ns = max(ready_ns, request.arrived_ns + delay_ns)
            busy_until = [
                d.ends_ns
                for d in departures
                if d.queue == departure.queue and d.at_ns < latest_ns < d.ends_ns and d is not departure
            ]
            assert departure.at_ns <= max([latest_ns, *busy_until])
            ends[id(request.sequence)] = departure.ends_ns


def _each_in_order_at_one_place(departures: list[Departure]) -> None:
    """A sequence is computed in order, one request after the other, by one instance."""
    parts: dict[int, list[tuple[Departure, InferRequest]]] = defaultdict(list)
    for departure in departures:
        for request in departure.requests:
            assert request.live_sequence.instance == departure.queue
            parts[id(request.sequence)].append((departure, request))
    for of_one in parts.values():
        times = [request.arrived_ns for _, request in of_one]
        assert times == sorted(times)
        for (before, _), (after, _) in itertools.pairwise(of_one):
            assert before.ends_ns <= after.begins_ns


def _no_slot_has_two(departures: list[Departure]) -> None:
    """Sequences that have the same slot have it one after the other."""
    spans: dict[tuple[int, int], dict[int, list[int]]] = defaultdict(dict)
    for departure in departures:
        for request in departure.requests:
            sequence = request.live_sequence
            span = spans[sequence.instance, sequence.slot].setdefault(
                id(sequence), [departure.begins_ns, departure.ends_ns]
            )
            span[1] = departure.ends_ns
    for of_slot in spans.values():
        ordered = sorted(of_slot.values())
        for before, after in itertools.pairwise(ordered):
            assert before[1] <= after[0]
