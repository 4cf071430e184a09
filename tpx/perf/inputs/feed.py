"""Feeds of prepared requests, in an order that depends on the kind of model; also mixed feeds of
several models, drawn by weight, and turns of conversations.
"""

import math
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import cycle, islice, repeat
from typing import Any, Protocol, TypeVar

import numpy as np

from tpx.perf.clients.base import Check, Prepared
from tpx.perf.levels import Level, level_seed
from tpx.perf.records import MODEL_SHIFT

Item = TypeVar("Item")

BLOCK = 1 << 12


@dataclass(frozen=True, slots=True)
class Share:
    """One of `of` workers that share a load; number 0 of 1 is all of it."""

    number: int = 0
    of: int = 1

    def part(self, total: int) -> int:
        """Return this worker's part of `total` equal items; the first workers take the remainder."""
        return total // self.of + (self.number < total % self.of)

    def of_all(self, items: Iterator[Item]) -> Iterator[Item]:
        """Yield this worker's items: every `of`-th."""
        return islice(items, self.number, None, self.of) if self.of > 1 else items

    def part_in_turn(self, total: int, senders: int = 0) -> int:
        """Return this worker's part of `total` requests that `senders` send in turn.

        The senders are split among the workers, too; 0 means one per worker.
        """
        senders = senders or self.of
        return total // senders * self.part(senders) + self.part(total % senders)

    def part_by(self, total: int, senders: int) -> int:
        """Return this worker's part of `total` requests if each of `senders` sends equally many."""
        # differences of cumulative shares, so that the parts add up to `whole`
        before = sum(Share(i, self.of).part(senders) for i in range(self.number))
        return total * (before + self.part(senders)) // senders - total * before // senders


ALL = Share()


class Source(Protocol):
    """The sequence of requests for one slot of a load."""

    step: int
    """Index of the step whose data the last request carries."""
    sequence: int
    """Number of the last request's sequence; 0 if it belongs to none."""

    def next(self) -> Prepared:
        """Return the next request to send."""

    def take_back(self) -> None:
        """Undo `next` for a request that was not sent; within a sequence it is sent again."""

    def failed(self, sequence: int) -> None:
        """Record that a request of this sequence failed."""

    def closing(self) -> Prepared | None:
        """Return the request that ends the open sequence; None if none is open."""


class Feed(Protocol):
    """Provides a source for every slot of a load."""

    check: Check | None
    """Inspects responses; None if nothing does."""

    @property
    def unfinished(self) -> Set[int]:
        """Sequences of the load that were ended early."""

    def begin(self, level: Level, share: Share = ALL) -> None:
        """Begin a load of this level, or one worker's share of it.

        Together the workers go through the same data and sequences as a single process would. The
        random generator is seeded by the level.
        """

    def source(self, slot: int) -> Source:
        """Return a new source for a slot; sources do not outlive their load."""


class RoundRobin:
    """Implements Feed: all slots share one cycle through the requests, which continues from load to load."""

    unfinished: Set[int] = frozenset()

    def __init__(self, requests: Sequence[Prepared], check: Check | None = None) -> None:
        self.check = check
        self._only = requests[0] if len(requests) == 1 else None
        self._steps = cycle(enumerate(requests))
        self._mine: Iterator[tuple[int, Prepared]] = self._steps

    def begin(self, level: Level, share: Share = ALL) -> None:  # noqa: ARG002 (the order is always the same)
        self._mine = share.of_all(self._steps)

    def source(self, slot: int) -> "SharedSource | OneRequest":  # noqa: ARG002 (slots share one iterator)
        return SharedSource(self._mine) if self._only is None else OneRequest(self._only)


class _Independent:
    """The common part of Sources whose requests are independent of each other."""

    __slots__ = ("sequence", "step")

    def __init__(self) -> None:
        self.step = 0
        self.sequence = 0

    def take_back(self) -> None:
        """Do nothing: the next request need not be the same one."""

    def failed(self, sequence: int) -> None:
        """Do nothing: the next request does not depend on this one."""

    def closing(self) -> None:
        """Return None: no sequence is ever open."""


class OneRequest(_Independent):
    """Implements Source for a single request, without a Python call per request."""

    __slots__ = ("next",)

    def __init__(self, request: Prepared) -> None:
        super().__init__()
        self.next = repeat(request).__next__


class SharedSource(_Independent):
    """Implements Source over an iterator of steps and requests that all slots share."""

    __slots__ = ("_turn",)

    def __init__(self, steps: Iterator[tuple[int, Prepared]]) -> None:
        super().__init__()
        self._turn = steps.__next__

    def next(self) -> Prepared:
        self.step, request = self._turn()
        return request


def batches(total: int, size: int) -> list[range]:
    """Return the steps, modulo `total`, of each request that takes `size` of them, until they repeat."""
    return [range(k * size, (k + 1) * size) for k in range(total // math.gcd(total, size))]


class MixedFeed:
    """Implements Feed over the feeds of several models, none of which takes sequences.

    A request's step number also encodes its model: see `records.MODEL_SHIFT`.
    """

    unfinished: Set[int] = frozenset()

    def __init__(self, feeds: Sequence[Feed], weights: Sequence[float], seed: int = 0) -> None:
        self._feeds = tuple(feeds)
        self._weights = np.asarray(weights, np.float64) / sum(weights)
        self._seed = seed
        self._mine: Iterator[tuple[int, Prepared]] = iter(())
        self.check: Check | None = self._check_response if any(feed.check for feed in feeds) else None

    def begin(self, level: Level, share: Share = ALL) -> None:
        for feed in self._feeds:
            # without `share`: every worker draws the whole mix and takes its part of it below
            feed.begin(level)
        self._mine = share.of_all(self._draw_requests(np.random.default_rng(level_seed(self._seed, level))))

    def source(self, slot: int) -> SharedSource:  # noqa: ARG002 (slots share one iterator)
        return SharedSource(self._mine)

    def _check_response(self, row: int, step: int, response: Any) -> str:
        check = self._feeds[step >> MODEL_SHIFT].check
        return check(row, step & (1 << MODEL_SHIFT) - 1, response) if check else ""

    def _draw_requests(self, rng: np.random.Generator) -> Iterator[tuple[int, Prepared]]:
        sources = [feed.source(0) for feed in self._feeds]
        while True:
            for number in rng.choice(len(sources), BLOCK, p=self._weights).tolist():
                request = sources[number].next()
                yield number << MODEL_SHIFT | sources[number].step, request


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationTurn:
    """One request of a conversation; the next turn is sent `delay_ns` after its response."""

    request: Prepared
    step: int
    delay_ns: int = 0


Conversation = tuple[ConversationTurn, ...]
