"""Requests of several models, each drawn by weight: the same ones, in the same order, with the same seed."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tpx.perf.clients.base import Prepared
from tpx.perf.inputs.feed import Check, Feed, Source
from tpx.perf.levels import Level
from tpx.perf.records import MODEL_SHIFT
from tpx.perf.seeds import level_seed

BLOCK = 1 << 12


class MixedFeed:
    """Implements Feed over one of each model. A request's step also tells its model: `records.models_of`."""

    def __init__(self, feeds: Sequence[Feed], weights: Sequence[float], seed: int = 0) -> None:
        self._feeds = tuple(feeds)
        self._weights = np.asarray(weights, np.float64) / sum(weights)
        self._seed = seed
        self._draws = self._drawn(np.random.default_rng(seed))
        self.check: Check | None = self._compare if any(feed.check for feed in feeds) else None

    def begin(self, level: Level) -> None:
        self._draws = self._drawn(np.random.default_rng(level_seed(self._seed, level)))
        for feed in self._feeds:
            feed.begin(level)

    def source(self, slot: int) -> "MixedSource":
        return MixedSource(self, [feed.source(slot) for feed in self._feeds])

    def draw(self) -> int:
        """The model of the next request."""
        return next(self._draws)

    def _compare(self, step: int, response: Any) -> str:
        check = self._feeds[step >> MODEL_SHIFT].check
        return check(step & (1 << MODEL_SHIFT) - 1, response) if check else ""

    def _drawn(self, rng: np.random.Generator) -> Iterator[int]:
        while True:
            yield from rng.choice(len(self._feeds), BLOCK, p=self._weights).tolist()


class MixedSource:
    """Implements Source."""

    __slots__ = ("_feed", "_last", "_sources", "sequence", "step")

    def __init__(self, feed: MixedFeed, sources: Sequence[Source]) -> None:
        self._feed = feed
        self._sources = sources
        self._last = sources[0]
        self.step = 0
        self.sequence = 0

    def next(self) -> Prepared:
        number = self._feed.draw()
        self._last = source = self._sources[number]
        request = source.next()
        self.step = number << MODEL_SHIFT | source.step
        return request

    def take_back(self) -> None:
        self._last.take_back()

    def failed(self, sequence: int) -> None:
        """Models that take sequences are not mixed."""

    def closing(self) -> None:
        """Nothing is ever open."""
