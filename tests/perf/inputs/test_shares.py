"""What each of several workers sends, without processes."""

import asyncio
from collections.abc import Callable, Sequence

import pytest

from tests.perf.inputs.models import model
from tests.perf.inputs.test_sequences import FakeWriter, Sent
from tpx.errors import UsageError
from tpx.perf.inputs.base import IdRange, InputSpec, SequenceSpec
from tpx.perf.inputs.dataset import open_data
from tpx.perf.inputs.feed import ALL, Feed, MixedFeed, RoundRobin, Share, Source
from tpx.perf.inputs.requests import FeedSettings, make_requests
from tpx.perf.inputs.sequences import SequenceFeed
from tpx.perf.levels import Level

SEQUENTIAL = model(1, scheduler="sequence")


def feed_of(settings: SequenceSpec) -> SequenceFeed:
    data = open_data(SEQUENTIAL, InputSpec())
    made = make_requests(FakeWriter(), SEQUENTIAL, data, FeedSettings(sequences=settings, seed=3))
    feed = asyncio.run(made).feed
    assert isinstance(feed, SequenceFeed)
    return feed


def sources(settings: SequenceSpec, slots: int, workers: int, active: int | None = None) -> list[Source]:
    """Those of all slots, dealt out to the workers that have one."""
    active = min(slots, workers) if active is None else active
    found: dict[int, Source] = {}
    for number in range(active):
        feed = feed_of(settings)
        feed.divide(Share(number, workers))
        share = Share(number, active)
        feed.begin(Level("concurrency", slots), share)
        found |= {number + i * active: feed.source(i) for i in range(share.part(slots))}
    return [found[slot] for slot in range(slots)]


def taken(source: Source, count: int) -> Sequence[Sent]:
    return [source.next() for _ in range(count)]


@pytest.mark.parametrize(("slots", "workers"), [(5, 2), (4, 4), (2, 4), (9, 3)])
def test_no_id_is_ever_in_two_workers(slots: int, workers: int) -> None:
    settings = SequenceSpec(
        sequence_length=4, sequence_length_variation=50, sequence_id_range=IdRange(100, 100 + 4 * slots)
    )
    owners: dict[int, int] = {}
    for slot, source in enumerate(sources(settings, slots, workers)):
        worker = slot % min(slots, workers)
        ids = {sent.sequence for sent in taken(source, 500)}
        assert all(100 <= number < 100 + 4 * slots for number in ids)
        assert {owners.setdefault(number, worker) for number in ids} == {worker}
        assert len(ids) > 1


def test_ids_stay_those_of_their_worker_when_another_level_has_fewer_workers() -> None:
    settings = SequenceSpec(sequence_length=2, sequence_length_variation=0)
    whole = {sent.sequence for source in sources(settings, 3, 3) for sent in taken(source, 100)}
    (alone,) = sources(settings, 1, 3)
    assert {sent.sequence % 3 for sent in taken(alone, 100)} == {settings.sequence_id_range.first % 3}
    assert len(whole) == 150


def test_a_slot_has_the_same_sequences_whichever_worker_it_is_in() -> None:
    settings = SequenceSpec(sequence_length=10, sequence_length_variation=60)
    flags = []
    for workers in (1, 2, 3):
        found = sources(settings, 6, workers)
        flags.append([[(sent.start, sent.end) for sent in taken(source, 200)] for source in found])
    assert flags[0] == flags[1] == flags[2]
    assert flags[0][0] != flags[0][1]


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_as_many_ids_as_slots_are_enough_and_fewer_are_not(workers: int) -> None:
    exactly = SequenceSpec(sequence_length=3, sequence_length_variation=0, sequence_id_range=IdRange(1, 6))
    open_at_once = [source.next().sequence for source in sources(exactly, 5, workers)]
    assert sorted(open_at_once) == [1, 2, 3, 4, 5]
    with pytest.raises(UsageError, match=r"1:6: .* open at a time \(5 ids\)"):
        sources(exactly, 6, workers)


def walked(feed: Feed, share: Share, count: int) -> list[tuple[int, str]]:
    """The next steps and requests of a feed whose two slots take turns, at a level of its own."""
    feed.begin(Level("concurrency", 2), share)
    slots = [feed.source(0), feed.source(1)]
    return [(slots[i % 2].next(), slots[i % 2].step)[::-1] for i in range(count)]


@pytest.mark.parametrize(
    "make",
    [
        lambda: RoundRobin(("a",)),
        lambda: RoundRobin(("a", "b", "c", "d", "e")),
        lambda: MixedFeed([RoundRobin(("a", "b", "c")), RoundRobin(("d", "e"))], [2, 1], seed=5),
    ],
)
def test_all_workers_together_walk_through_the_data_as_one_does(make: Callable[[], Feed]) -> None:
    whole = walked(make(), ALL, 300)
    for workers in (2, 3):
        for number in range(workers):
            part = walked(make(), Share(number, workers), 300 // workers)
            assert part == whole[number::workers]
