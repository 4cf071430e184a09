"""A Prometheus histogram of durations: one bisection and two additions an observation."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate


class Histogram:
    """Counts by buckets; a duration belongs to the first bucket whose bound it does not exceed."""

    __slots__ = ("_bounds_ns", "_counts", "bounds", "count", "total_ns")

    def __init__(self, bounds: Sequence[float], unit_ns: int) -> None:
        """`bounds` are finite and rise; they count units of `unit_ns`."""
        self.bounds = tuple(bounds)
        self.count = 0
        self.total_ns = 0
        self._bounds_ns = [math.floor(bound * unit_ns) for bound in bounds]
        self._counts = [0] * (len(bounds) + 1)

    def observe(self, ns: int, count: int, now_ns: int) -> None:  # noqa: ARG002 (the seam's signature)
        self.count += count
        self.total_ns += ns * count
        self._counts[bisect_left(self._bounds_ns, ns)] += count

    def cumulative(self) -> list[int]:
        """How many did not exceed each of `bounds`."""
        return list(accumulate(self._counts[:-1]))
