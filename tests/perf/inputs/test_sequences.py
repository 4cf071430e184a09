"""Sequences: flags, lengths, ids that never collide, streams of the user's data, and what ends them."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import pytest

from tests.perf.inputs.models import data_of, model
from tpx.errors import UsageError
from tpx.perf.clients.base import PLAIN, RequestFields, Template
from tpx.perf.inputs.base import IdRange, InputSpec, SequenceSpec
from tpx.perf.inputs.dataset import open_data
from tpx.perf.inputs.feed import Feed, Source
from tpx.perf.inputs.requests import FeedSettings, make_requests
from tpx.perf.inputs.sequences import varied
from tpx.perf.inputs.steps import DataSet
from tpx.perf.levels import Level
from tpx.protocol.tensors import Tensor


@dataclass(frozen=True)
class Sent:
    """A request as FakeWriter makes it."""

    values: list[float]
    start: bool
    end: bool
    sequence: int = 0


class FakeWriter:
    """Implements Writer."""

    async def prepare(self, tensors: Sequence[Tensor], fields: RequestFields = PLAIN) -> Sent:
        return Sent(tensors[0].numpy().reshape(-1).tolist(), fields.sequence_start, fields.sequence_end)

    async def template(self, tensors: Sequence[Tensor], fields: RequestFields) -> Template:
        return FakeTemplate(await self.prepare(tensors, fields))


@dataclass(frozen=True)
class FakeTemplate:
    """Implements Template."""

    sent: Sent

    def fill(self, sequence: int) -> Sent:
        return Sent(self.sent.values, self.sent.start, self.sent.end, sequence)


SEQUENTIAL = model(1, scheduler="sequence")


def feed_of(settings: SequenceSpec, data: DataSet | None = None, seed: int = 0) -> Feed:
    data = open_data(SEQUENTIAL, InputSpec()) if data is None else data
    made = make_requests(FakeWriter(), SEQUENTIAL, data, FeedSettings(sequences=settings, seed=seed))
    feed = asyncio.run(made).feed
    feed.begin(Level("concurrency", 1))
    return feed


def taken(source: Source, count: int) -> list[Sent]:
    return [source.next() for _ in range(count)]


def lengths(requests: Sequence[Sent]) -> list[int]:
    """Of the sequences that are whole."""
    groups = [list(group) for _, group in groupby(requests, key=lambda sent: sent.sequence)]
    return [len(group) for group in groups if group[0].start and group[-1].end]


def streams(directory: object, *values: Sequence[float]) -> DataSet:
    import json
    from pathlib import Path

    path = Path(str(directory)) / "data.json"
    path.write_text(json.dumps({"data": [[{"x": [v]} for v in stream] for stream in values]}))
    return data_of(SEQUENTIAL, path)


def test_the_first_request_starts_a_sequence_and_the_last_ends_it() -> None:
    settings = SequenceSpec(sequence_length=4, sequence_length_variation=0, sequence_id_range=IdRange(7, 100))
    requests = taken(feed_of(settings).source(0), 8)
    assert [(s.start, s.end) for s in requests[:4]] == [(True, False)] + [(False, False)] * 2 + [
        (False, True)
    ]
    assert [s.sequence for s in requests] == [7] * 4 + [8] * 4


def test_a_sequence_of_one_request_starts_and_ends_with_it() -> None:
    requests = taken(feed_of(SequenceSpec(sequence_length=1, sequence_length_variation=0)).source(0), 3)
    assert [(s.start, s.end, s.sequence) for s in requests] == [(True, True, n) for n in (1, 2, 3)]


def test_lengths_vary_around_the_mean_by_no_more_than_was_said() -> None:
    found = lengths(
        taken(feed_of(SequenceSpec(sequence_length=20, sequence_length_variation=20)).source(0), 4000)
    )
    assert 16 <= min(found) <= 17
    assert 23 <= max(found) <= 24
    assert 19 < sum(found) / len(found) < 21


@pytest.mark.parametrize(("chance", "length"), [(0.0, 16), (0.5, 20), (0.9999, 23)])
def test_a_length_is_perf_analyzers(chance: float, length: int) -> None:
    assert varied(SequenceSpec(sequence_length=20, sequence_length_variation=20), chance) == length
    assert varied(SequenceSpec(sequence_length=1, sequence_length_variation=100), 0.0) == 1


def test_no_two_open_sequences_have_the_same_id() -> None:
    feed = feed_of(
        SequenceSpec(sequence_length=3, sequence_length_variation=60, sequence_id_range=IdRange(10, 18))
    )
    sources = [feed.source(slot) for slot in range(5)]
    running: dict[int, int] = {}
    for turn in range(3000):
        slot = turn * 7 % 5 if turn % 3 else 0
        sent = sources[slot].next()
        assert 10 <= sent.sequence < 18
        others = {running[other] for other in running if other != slot}
        assert sent.sequence not in others
        running[slot] = sent.sequence
        if sent.end:
            del running[slot]


def test_more_slots_than_ids_are_refused() -> None:
    feed = feed_of(SequenceSpec(sequence_id_range=IdRange(1, 3)))
    assert feed.source(1).next().sequence == 1
    with pytest.raises(UsageError, match=r"--sequence-id-range 1:3: .* smaller than .*\(2 ids\)"):
        feed.source(2)


def test_a_stream_of_the_data_is_a_sequence_with_steps_of_its_own(tmp_path: object) -> None:
    feed = feed_of(SequenceSpec(), streams(tmp_path, (1, 2, 3), (9,)))
    source = feed.source(0)
    seen = []
    for _ in range(50):
        sent = source.next()
        seen.append((sent.values[0], sent.start, sent.end, source.step))
    first, middle, last = (1, True, False, 0), (2, False, False, 1), (3, False, True, 2)
    alone = (9, True, True, 3)
    assert set(seen) == {first, middle, last, alone}
    assert all(seen[i + 1 : i + 3] == [middle, last] for i in range(47) if seen[i] == first)


def test_a_given_length_repeats_the_steps_of_a_stream(tmp_path: object) -> None:
    feed = feed_of(SequenceSpec(sequence_length=5, sequence_length_variation=0), streams(tmp_path, (1, 2)))
    requests = taken(feed.source(0), 10)
    assert [s.values[0] for s in requests] == [1, 2, 1, 2, 1] * 2
    assert [s.end for s in requests] == ([False] * 4 + [True]) * 2


def test_what_is_open_is_ended_once_and_what_is_not_is_not(tmp_path: object) -> None:
    source = feed_of(SequenceSpec(), streams(tmp_path, (1, 2, 3))).source(0)
    assert source.closing() is None
    taken(source, 2)
    closing = source.closing()
    assert closing == Sent([3], start=False, end=True, sequence=1)
    assert source.closing() is None
    assert source.next().start
    assert source.sequence == 2


def test_a_sequence_that_has_ended_by_itself_is_not_ended_again() -> None:
    source = feed_of(SequenceSpec(sequence_length=2, sequence_length_variation=0)).source(0)
    taken(source, 2)
    assert source.closing() is None


def test_a_sequence_whose_start_failed_is_given_up_and_others_go_on() -> None:
    source = feed_of(SequenceSpec(sequence_length=5, sequence_length_variation=0)).source(0)
    assert source.next().sequence == 1
    source.failed(1)
    again = source.next()
    assert (again.sequence, again.start) == (2, True)
    source.next()
    source.failed(2)
    assert source.next() == Sent(again.values, start=False, end=False, sequence=2)


def test_the_same_seed_gives_the_same_lengths_and_each_level_others() -> None:
    def drawn(seed: int, level: float, slot: int = 0) -> list[int]:
        feed = feed_of(SequenceSpec(sequence_length=50, sequence_length_variation=90), seed=seed)
        feed.begin(Level("concurrency", level))
        return lengths(taken([feed.source(i) for i in range(slot + 1)][slot], 1000))

    assert drawn(1, 4) == drawn(1, 4)
    assert len({tuple(d) for d in (drawn(1, 4), drawn(1, 5), drawn(2, 4), drawn(1, 4, slot=1))}) == 4
