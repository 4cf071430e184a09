"""Feeds of requests made beforehand, in an order that depends on the kind of model; of several models, each
drawn by weight; turns of conversations."""

import math
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import cycle, repeat
from typing import Any, Protocol

import numpy as np

from tpx.perf.clients.base import Prepared
from tpx.perf.levels import Level, level_seed
from tpx.perf.plan import ALL, Share
from tpx.perf.records import MODEL_SHIFT

BLOCK = 1 << 12
Check = Callable[[int, Any], str]
"""Says what is wrong with a response to the request of a step; nothing where it is as expected."""


class Source(Protocol):
    """The requests of one slot of a load, one after the other."""

    step: int
    """Which of the data's steps the last one carries."""
    sequence: int
    """The number of its sequence; 0 where it belongs to none."""

    def next(self) -> Prepared:
        """The request to send now."""

    def take_back(self) -> None:
        """The last request was not sent: of a sequence it comes again, as none may be missing."""

    def failed(self, sequence: int) -> None:
        """A request of this sequence has failed."""

    def closing(self) -> Prepared | None:
        """Return the request that ends the open sequence; None where none is open."""


class Feed(Protocol):
    """Gives every slot of a load its source."""

    check: Check | None
    """Compares responses with their expectation; None where none is known."""

    @property
    def unfinished(self) -> Set[int]:
        """Sequences of the load that were ended before their time."""

    def begin(self, level: Level, share: Share = ALL) -> None:
        """Begin a load of this level, or one worker's share of it: all workers together walk through the
        data, and have the sequences, that one would. Chance is the level's own."""

    def source(self, slot: int) -> Source:
        """That of a slot, which starts anew with each load."""


class RoundRobin:
    """Implements Feed: all slots together walk through the requests, again and again, from load to load."""

    unfinished: Set[int] = frozenset()

    def __init__(self, requests: Sequence[Prepared], check: Check | None = None) -> None:
        self.check = check
        self._only = requests[0] if len(requests) == 1 else None
        self._steps = cycle(enumerate(requests))
        self._mine: Iterator[tuple[int, Prepared]] = self._steps

    def begin(self, level: Level, share: Share = ALL) -> None:  # noqa: ARG002 (the order is always the same)
        self._mine = share.of_all(self._steps)

    def source(self, slot: int) -> "SharedSource | OneRequest":  # noqa: ARG002 (all take from the same)
        return SharedSource(self._mine) if self._only is None else OneRequest(self._only)


class _Independent:
    """The common part of Sources whose requests do not need each other."""

    __slots__ = ("sequence", "step")

    def __init__(self) -> None:
        self.step = 0
        self.sequence = 0

    def take_back(self) -> None:
        """Forget it: any other request will do."""

    def failed(self, sequence: int) -> None:
        """Go on: the next request does not depend on it."""

    def closing(self) -> None:
        """Return None: nothing is ever open."""


class OneRequest(_Independent):
    """Implements Source over the only request there is, so that taking it is no call into Python."""

    __slots__ = ("next",)

    def __init__(self, request: Prepared) -> None:
        super().__init__()
        self.next = repeat(request).__next__


class SharedSource(_Independent):
    """Implements Source over steps and their requests, from which all slots take."""

    __slots__ = ("_turn",)

    def __init__(self, steps: Iterator[tuple[int, Prepared]]) -> None:
        super().__init__()
        self._turn = steps.__next__

    def next(self) -> Prepared:
        self.step, request = self._turn()
        return request


def batches(total: int, size: int) -> list[range]:
    """The steps of each request that takes `size` of `total` steps, modulo `total`, until they repeat."""
    return [range(k * size, (k + 1) * size) for k in range(total // math.gcd(total, size))]


class MixedFeed:
    """Implements Feed over one of each model, of which none takes sequences. A request's step also tells its
    model: `records.models_of`."""

    unfinished: Set[int] = frozenset()

    def __init__(self, feeds: Sequence[Feed], weights: Sequence[float], seed: int = 0) -> None:
        self._feeds = tuple(feeds)
        self._weights = np.asarray(weights, np.float64) / sum(weights)
        self._seed = seed
        self._mine: Iterator[tuple[int, Prepared]] = iter(())
        self.check: Check | None = self._compare if any(feed.check for feed in feeds) else None

    def begin(self, level: Level, share: Share = ALL) -> None:
        for feed in self._feeds:
            feed.begin(level)
        self._mine = share.of_all(self._drawn(np.random.default_rng(level_seed(self._seed, level))))

    def source(self, slot: int) -> SharedSource:  # noqa: ARG002 (all take from the same)
        return SharedSource(self._mine)

    def _compare(self, step: int, response: Any) -> str:
        check = self._feeds[step >> MODEL_SHIFT].check
        return check(step & (1 << MODEL_SHIFT) - 1, response) if check else ""

    def _drawn(self, rng: np.random.Generator) -> Iterator[tuple[int, Prepared]]:
        sources = [feed.source(0) for feed in self._feeds]
        while True:
            for number in rng.choice(len(sources), BLOCK, p=self._weights).tolist():
                request = sources[number].next()
                yield number << MODEL_SHIFT | sources[number].step, request


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationTurn:
    """One request of a conversation; `delay_ns` passes between its answer and the turn after it."""

    request: Prepared
    step: int
    delay_ns: int = 0


Conversation = tuple[ConversationTurn, ...]
