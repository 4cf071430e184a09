"""Requests of several models, each drawn by weight: the same ones, in the same order, with the same seed."""

from collections.abc import Iterator, Sequence, Set
from typing import Any

import numpy as np

from tpx.perf.clients.base import Prepared
from tpx.perf.inputs.feed import Check, Feed, SharedSource
from tpx.perf.levels import Level
from tpx.perf.plan import ALL, Share
from tpx.perf.records import MODEL_SHIFT
from tpx.perf.seeds import level_seed

BLOCK = 1 << 12


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
