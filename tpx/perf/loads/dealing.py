"""One worker's part of what is sent: all workers together walk through the data, and have the sequences, that
one would."""

import math
import os

from tpx.perf.clients.base import Prepared
from tpx.perf.inputs.feed import Feed, Source
from tpx.perf.inputs.sequences import SequenceFeed
from tpx.perf.levels import Level, LevelRange
from tpx.perf.loads.schedules import Share
from tpx.perf.plan import LoadPlan


def workers_for(levels: LevelRange, plan: LoadPlan, processors: int | None = None) -> int:
    """How many processes a run gets: those that were asked for, or one for so many requests per second or in
    flight as a process does with ease, but no more than half of the processors, nor than there are sequences
    to be kept open."""
    if plan.workers:
        return plan.workers
    most = (processors or os.cpu_count() or 1) // 2
    if plan.most_workers:
        most = min(most, plan.most_workers)
    if plan.sequences and levels.kind.open_loop:
        most = min(most, plan.sequences)
    return max(1, min(most, math.ceil((levels.highest or levels.start) / levels.kind.per_worker)))


def deal(feed: Feed, share: Share) -> Feed:
    """A worker's part of a feed."""
    return DealtSequences(feed, share) if isinstance(feed, SequenceFeed) else Dealt(feed, share)


class DealtSequences:
    """Implements Feed: every `share.of`-th slot, so a sequence is sent by one worker from start to end."""

    def __init__(self, feed: SequenceFeed, share: Share) -> None:
        self.check = feed.check
        self._feed = feed
        self._share = share

    def begin(self, level: Level) -> None:
        """A load of this level begins."""
        self._feed.begin(level)

    def source(self, slot: int) -> Source:
        return self._feed.source(self._share.number + slot * self._share.of)


class Dealt:
    """Implements Feed over one whose slots share a walk: takes every `share.of`-th step of it."""

    def __init__(self, feed: Feed, share: Share) -> None:
        self.check = feed.check
        self._feed = feed
        self._passed = share.number
        self._between = share.of - 1

    def begin(self, level: Level) -> None:
        """A load of this level begins."""
        self._feed.begin(level)

    def source(self, slot: int) -> "DealtSource":
        return DealtSource(self, self._feed.source(slot))

    def take_skip(self) -> int:
        """How many steps belong to others before the next one."""
        skip, self._passed = self._passed, self._between
        return skip


class DealtSource:
    """Implements Source."""

    __slots__ = ("_dealt", "_source", "sequence", "step")

    def __init__(self, dealt: Dealt, source: Source) -> None:
        self._dealt = dealt
        self._source = source
        self.step = 0
        self.sequence = 0

    def next(self) -> Prepared:
        source = self._source
        for _ in range(self._dealt.take_skip()):
            source.next()
        request = source.next()
        self.step, self.sequence = source.step, source.sequence
        return request

    def take_back(self) -> None:
        self._source.take_back()

    def failed(self, sequence: int) -> None:
        self._source.failed(sequence)

    def closing(self) -> Prepared | None:
        return self._source.closing()
