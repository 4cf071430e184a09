"""Quantiles of a stream of integers with bounded error and memory.

The sketch is that of Greenwald and Khanna, "Space-efficient online computation of quantile summaries"
(SIGMOD 2001), filled and merged in sorted batches as in Agarwal et al., "Mergeable summaries" (PODS
2012), where merging preserves the error. Triton's metrics use the CKMS sketch of prometheus-cpp, which
is tuned for a few quantiles and costs a tree walk per value; batches cost one sort.
"""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]

_NONE = np.empty(0, np.int64)
_SLOTS, _SLOT_NS = 5, 12_000_000_000


class QuantileSketch:
    """A sketch whose `quantiles` have a rank error of at most `error` times the number of values.

    Entry i represents `_weights[i]` values up to `_values[i]`, whose rank is between the sum of the
    weights so far and that plus `_slack[i]`. While no weight plus slack exceeds 2 * error * count,
    every rank has an entry that is close enough. The minimum and maximum are exact.
    """

    __slots__ = ("_error", "_slack", "_values", "_weights", "count")

    def __init__(self, error: float) -> None:
        self.count = 0
        self._error = error
        self._values = self._weights = self._slack = _NONE

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self._values)

    def add(self, values: Sequence[int]) -> None:
        """Add values in any order."""
        exact = QuantileSketch(self._error)
        exact._values = np.sort(np.array(values, np.int64))
        exact._weights = np.ones(len(values), np.int64)
        exact._slack = np.zeros(len(values), np.int64)
        exact.count = len(values)
        self.merge(exact)
        self.compress()

    def merge(self, other: "QuantileSketch") -> None:
        """Merge the values of another sketch with the same error, including all of its entries."""
        if not self.count:
            self._values, self._weights, self._slack = other._values, other._weights, other._slack
            self.count = other.count
            return
        values = np.concatenate([self._values, other._values])
        slack = np.concatenate(
            [
                self._slack + other._uncertainty_above(self._values, "left"),
                other._slack + self._uncertainty_above(other._values, "right"),
            ]
        )
        weights = np.concatenate([self._weights, other._weights])
        order = np.argsort(values, kind="stable")  # two sorted runs: equal values of `self` stay first
        self._values, self._weights, self._slack = values[order], weights[order], slack[order]
        self.count += other.count

    def compress(self) -> None:
        """Merge entries into their successors as far as the error allows."""
        most = math.floor(2 * self._error * self.count)
        last = len(self._values) - 1
        if most < 2 or last < 2:
            return
        upto = np.cumsum(self._weights)
        first = np.searchsorted(upto - self._weights, upto + self._slack - most)
        before = np.minimum(first, np.arange(last + 1)).tolist()
        kept = []
        entry = last
        while entry > 0:
            kept.append(entry)
            entry = before[entry] - 1
        kept.append(0)
        keep = np.array(kept[::-1])
        self._values, self._slack = self._values[keep], self._slack[keep]
        self._weights = np.diff(upto[keep], prepend=0)

    def quantiles(self, shares: Sequence[float]) -> list[int | None]:
        """Return the values below which these shares lie; None before the first value."""
        if not self.count:
            return [None] * len(shares)
        lowest = np.cumsum(self._weights)
        highest = lowest + self._slack
        found: list[int | None] = []
        for share in shares:
            rank = min(max(math.ceil(share * self.count), 1), self.count)
            found.append(int(self._values[np.argmin(np.maximum(rank - lowest, highest - rank))]))
        return found

    def _uncertainty_above(self, values: Integers, side: Literal["left", "right"]) -> Integers:
        """Return how many values may lie between each of `values` and the entry before its successor."""
        uncertainty = np.append(self._weights + self._slack - 1, 0)
        return uncertainty[np.searchsorted(self._values, values, side)]


class SlidingQuantiles:
    """Quantiles of the values of about the last minute: those of the current slot and of earlier ones."""

    def __init__(self, error: float, now_ns: int) -> None:
        self._error = error
        self._slots = [QuantileSketch(error) for _ in range(_SLOTS)]
        self._past: QuantileSketch | None = None
        """All slots except the current one, merged on first read."""
        self.ends_ns = now_ns + _SLOT_NS
        """End of the current slot; call `turn` before adding later values."""

    def add(self, values: Sequence[int]) -> None:
        """Add values to the current slot."""
        self._slots[-1].add(values)

    def expire(self, now_ns: int) -> None:
        """Drop slots that have expired."""
        ended = max(0, (now_ns - self.ends_ns) // _SLOT_NS + 1)
        self.ends_ns += ended * _SLOT_NS
        fresh = [QuantileSketch(self._error) for _ in range(min(ended, _SLOTS))]
        self._slots = [*self._slots[len(fresh) :], *fresh]
        self._past = None

    def read(self, shares: Sequence[float]) -> list[int | None]:
        """Return the value of each quantile, None if nothing was added lately."""
        if self._past is None:
            self._past = self._merge_sketches(self._slots[:-1])
            self._past.compress()
        current = self._slots[-1]
        if not current.count:
            return self._past.quantiles(shares)
        return self._merge_sketches([self._past, current]).quantiles(shares)

    def _merge_sketches(self, sketches: Sequence[QuantileSketch]) -> QuantileSketch:
        merged = QuantileSketch(self._error)
        for sketch in sketches:
            if sketch.count:
                merged.merge(sketch)
        return merged


_TOGETHER = 2048
"""Durations added to the sketch with one sort."""


class Summary:
    """Buffers durations and adds them to the sketch in batches."""

    __slots__ = ("_quantiles", "_waiting", "count", "total_ns")

    def __init__(self, error: float, now_ns: int) -> None:
        self.count = 0
        self.total_ns = 0
        self._quantiles = SlidingQuantiles(error, now_ns)
        self._waiting: list[int] = []

    def observe(self, ns: int, count: int, now_ns: int) -> None:
        if now_ns >= self._quantiles.ends_ns:
            self._turn_window(now_ns)
        self.count += count
        self.total_ns += ns * count
        waiting = self._waiting
        if count == 1:
            waiting.append(ns)
        else:
            waiting.extend([ns] * count)
        if len(waiting) >= _TOGETHER:
            self._add_waiting()

    def read_ns(self, shares: Sequence[float], now_ns: int) -> list[int | None]:
        """Return the quantiles of the last minute, None if there are no values."""
        if now_ns >= self._quantiles.ends_ns:
            self._turn_window(now_ns)
        self._add_waiting()
        return self._quantiles.read(shares)

    def _add_waiting(self) -> None:
        if self._waiting:
            self._quantiles.add(self._waiting)
            self._waiting.clear()

    def _turn_window(self, now_ns: int) -> None:
        self._add_waiting()
        self._quantiles.expire(now_ns)
