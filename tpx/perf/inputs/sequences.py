"""Requests of sequences: each slot sends one after another, each with an id that no other open one has."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tpx.errors import UsageError
from tpx.perf.clients.base import Check, Prepared, Template
from tpx.perf.inputs.base import SequenceSpec
from tpx.perf.inputs.feed import ALL, Share
from tpx.perf.levels import Level, level_seed

START, END = 2, 1
"""Bits of a request's flags."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceStream:
    """Templates for one stream of the data: for each step, one per combination of flags that it can
    have.

    `length` is the number of requests in a sequence; if 0, it is random and the steps repeat. Steps are
    numbered from `first_step`.
    """

    steps: Sequence[dict[int, Template]]
    length: int
    first_step: int = 0


def needed_flags(step: int, steps: int, *, repeats: bool) -> tuple[int, ...]:
    """Return the combinations of flags that a step of a stream can have."""
    if repeats:
        return (0, END, START, START | END) if step == 0 else (0, END)
    return ((START if step == 0 else 0) | (END if step == steps - 1 else 0),)


class SequenceIds:
    """Every `step`-th id in [first, end), assigned in turn; ids of open sequences are skipped."""

    def __init__(self, first: int, end: int, step: int = 1) -> None:
        self._all = range(first, end, step)
        self._turn = 0
        self.open: set[int] = set()
        """Ids of open sequences."""

    def exchange(self, old: int) -> int:
        """Release `old` and return an id that no open sequence has; return `old` if all ids are in use."""
        for _ in self._all:
            fresh = self._all[self._turn % len(self._all)]
            self._turn += 1
            if fresh not in self.open:
                self.open.discard(old)
                self.open.add(fresh)
                return fresh
        return old


class SequenceFeed:
    """Implements Feed: every slot has one sequence open at a time.

    Each slot draws lengths and streams from its own generator, seeded by the seed, the level and the
    slot's number.
    """

    def __init__(
        self,
        streams: Sequence[SequenceStream],
        settings: SequenceSpec,
        seed: int = 0,
        check: Check | None = None,
    ) -> None:
        self.check = check
        self.streams = streams
        self.settings = settings
        self.ids = SequenceIds(settings.sequence_id_range.first, settings.sequence_id_range.end)
        self.unfinished: set[int] = set()
        """Sequences of this load that were ended early."""
        self._share = ALL
        self._seed = seed
        self._entropy: tuple[int, ...] = (seed,)

    def divide(self, process: Share) -> None:
        """Restrict this feed to one process's share of the ids, so that processes never use the same id."""
        ids = self.settings.sequence_id_range
        self.ids = SequenceIds(ids.first + process.number, ids.end, process.of)

    def begin(self, level: Level, share: Share = ALL) -> None:
        self._share = share
        self.ids.open.clear()
        self.unfinished.clear()
        self._entropy = tuple(int(n) for n in level_seed(self._seed, level).generate_state(2))

    def source(self, slot: int) -> "SequenceSource":
        """Return the source of a slot.

        Slots are numbered across all processes, so that one process sends a whole sequence. Raises
        UsageError if there are fewer ids than slots.
        """
        slot = self._share.number + slot * self._share.of
        ids = self.settings.sequence_id_range
        if slot >= ids.end - ids.first:
            raise UsageError(
                f"--sequence-id-range {ids}: sequence id range specified is "
                f"smaller than the number of sequences that are open at a time ({ids.end - ids.first} ids)"
            )
        return SequenceSource(self, np.random.default_rng((*self._entropy, slot)))


class SequenceSource:
    """Implements Source."""

    __slots__ = ("_at", "_feed", "_remaining", "_rng", "_sent", "_steps", "_stream", "sequence", "step")

    def __init__(self, feed: SequenceFeed, rng: np.random.Generator) -> None:
        self._feed = feed
        self._rng = rng
        self._stream = feed.streams[0]
        self._steps = self._stream.steps
        self._at = 0
        self._remaining = 0
        self._sent = 0
        self.step = 0
        self.sequence = 0

    def next(self) -> Prepared:
        remaining = self._remaining
        if not remaining:
            remaining = self._begin_sequence()
        at, sent = self._at, self._sent
        flags = (0 if sent else START) | (remaining == 1)
        self._remaining = remaining - 1
        self._sent = sent + 1
        self.step = self._stream.first_step + at
        at += 1
        self._at = 0 if at == len(self._steps) else at
        return self._steps[at - 1][flags].fill(self.sequence)

    def take_back(self) -> None:
        self._remaining += 1
        self._sent -= 1
        self._at = (self._at or len(self._steps)) - 1

    def failed(self, sequence: int) -> None:
        """Start another sequence if the first request failed, because the server does not know this one."""
        if sequence == self.sequence and self._sent == 1:
            self._remaining = 0

    def closing(self) -> Prepared | None:
        remaining, self._remaining = self._remaining, 0
        if not remaining or not self._sent:
            return None
        self._feed.unfinished.add(self.sequence)
        # only the last step of a stream can end a sequence; if steps repeat, any can
        last = 0 if not self._stream.length else len(self._steps) - 1
        return self._steps[last][END].fill(self.sequence)

    def _begin_sequence(self) -> int:
        feed, rng = self._feed, self._rng
        streams = feed.streams
        stream = streams[int(rng.integers(len(streams)))] if len(streams) > 1 else streams[0]
        self._stream, self._steps = stream, stream.steps
        self._at = self._sent = 0
        self.sequence = feed.ids.exchange(self.sequence)
        return stream.length or varied(feed.settings, float(rng.random()))


def varied(settings: SequenceSpec, chance: float) -> int:
    """Return a length around the mean, by perf_analyzer's formula; `chance` is in [0, 1)."""
    mean = settings.length
    return max(1, mean + int((2 * chance - 1) * settings.sequence_length_variation / 100 * mean))
