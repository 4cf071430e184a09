"""Latency statistics of a set of requests, by perf_analyzer's formulas."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tpx.protocol.tensors import Array

REPORTED_PERCENTILES = (50.0, 90.0, 95.0, 99.0)
EXTRA_PERCENTILES = (99.9,)
"""Percentiles computed for JSON in addition to those that perf_analyzer reports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencySummary:
    """Durations of `count` requests in ns; `std_ns` is the sample standard deviation, 0 for one request."""

    count: int
    mean_ns: int
    std_ns: float
    min_ns: int
    max_ns: int
    percentiles_ns: dict[float, int]

    def at(self, percentile: float | None) -> int:
        """Return a percentile, or the mean for None."""
        return self.mean_ns if percentile is None else self.percentiles_ns[percentile]


def reported_percentiles(chosen: float | None) -> list[float]:
    """Return the percentiles that perf_analyzer shows and the chosen one, in order."""
    return sorted({*REPORTED_PERCENTILES, *(() if chosen is None else (chosen,))})


def rank(percentile: float, count: int) -> int:
    """Return the index of a percentile among `count` sorted values: nearest rank, rounding half up.

    Same formula as perf_analyzer: inference_profiler.cc, SummarizeLatency.
    """
    return int(percentile / 100 * (count - 1) + 0.5)


def summarize(durations_ns: Array, percentiles: Iterable[float] = ()) -> LatencySummary:
    """Return the statistics of at least one duration; `percentiles` are added to the default ones."""
    ordered = np.sort(durations_ns)
    count = len(ordered)
    mean = int(ordered.sum()) // count
    spread = float(np.square((ordered - mean).astype(np.float64)).sum())
    wanted = sorted({*REPORTED_PERCENTILES, *EXTRA_PERCENTILES, *percentiles})
    return LatencySummary(
        count=count,
        mean_ns=mean,
        std_ns=math.sqrt(spread / (count - 1)) if count > 1 else 0.0,
        min_ns=int(ordered[0]),
        max_ns=int(ordered[-1]),
        percentiles_ns={p: int(ordered[rank(p, count)]) for p in wanted},
    )
