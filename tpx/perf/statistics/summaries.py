"""Summaries of a set of requests: latency statistics by perf_analyzer's formulas, and batches.

Batches are equal intervals of a measurement; their figures are nearly independent, unlike those of
single requests.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

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


BATCHES = 25
BATCH_REQUESTS = 10
"""Minimum mean number of requests per batch, unless it would leave fewer than FEWEST_BATCHES."""
FEWEST_BATCHES = 5
BINS_PER_OCTAVE = 64
"""Resolution of the histograms: a bin is 1.1% wide; quantiles interpolate within it."""

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batches:
    """Requests by the interval in which they ended: `len(requests)` equal intervals between two times.

    `requests`, `failed` and `latency_sum_ns` have one entry per batch; `histogram` has one row per
    batch and one column for each of `bins`: bin i holds latencies from 2**(i/64) ns to 2**((i+1)/64)
    ns.
    """

    start_ns: int
    end_ns: int
    requests: Integers
    failed: Integers
    latency_sum_ns: Floats
    bins: Integers
    histogram: Integers

    @property
    def count(self) -> int:
        return len(self.requests)

    @property
    def seconds(self) -> float:
        """Length of one batch."""
        return (self.end_ns - self.start_ns) / 1e9 / self.count


def batch_count(requests: int) -> int:
    """Return the number of batches to divide this many requests into."""
    return min(BATCHES, max(FEWEST_BATCHES, requests // BATCH_REQUESTS))


def cut(
    end_ns: Array,
    latency_ns: Array,
    ok: npt.NDArray[np.bool_],
    span_ns: tuple[int, int],
    count: int | None = None,
) -> Batches:
    """Divide the requests that ended in `span_ns` into batches; `ok` marks those that succeeded."""
    start, end = span_ns
    k = count or batch_count(int(ok.sum()))
    # a request that ended exactly at `end` belongs to the last batch
    place: Integers = np.minimum((end_ns - start) * k // max(end - start, 1), k - 1).astype(np.int64)
    good = place[ok]
    latencies = latency_ns[ok]
    bins, column = _find_distinct(bin_of(latencies))
    # a histogram per batch from one bincount over (batch, bin) pairs
    cells = np.bincount(good * max(len(bins), 1) + column, minlength=k * len(bins))
    return Batches(
        start_ns=start,
        end_ns=end,
        requests=np.bincount(good, minlength=k).astype(np.int64),
        failed=np.bincount(place[~ok], minlength=k).astype(np.int64),
        latency_sum_ns=np.bincount(good, weights=latencies, minlength=k).astype(np.float64),
        bins=bins,
        histogram=cells.reshape(k, len(bins)).astype(np.int64),
    )


def _find_distinct(values: Integers) -> tuple[Integers, Integers]:
    """Return the distinct values in order, and the index of each value among them.

    np.unique does the same, but imports numpy.ma, which costs as much as the rest of a level's
    statistics.
    """
    if not len(values):
        return values, values
    least = int(values.min())
    found = np.flatnonzero(np.bincount(values - least)) + least
    return found, np.searchsorted(found, values)


def bin_of(latency_ns: Array) -> Integers:
    """Return the bin number of each latency."""
    bins: Integers = np.floor(np.log2(np.maximum(latency_ns, 1)) * BINS_PER_OCTAVE).astype(np.int64)
    return bins


def quantiles(histograms: Array, bins: Integers, probability: float) -> Floats:
    """Return the quantile in ns of each row, interpolated within its bin; NaN for an empty row."""
    below = np.cumsum(histograms, axis=1, dtype=np.float64)
    total = below[:, -1] if len(bins) else np.zeros(len(histograms))
    out = np.full(len(total), np.nan)
    filled = np.flatnonzero(total > 0)
    if not len(filled):
        return out
    wanted = probability * total[filled]
    column = np.minimum((below[filled] < wanted[:, None]).sum(axis=1), len(bins) - 1)
    inside = histograms[filled, column]
    before = below[filled, column] - inside
    share = np.clip((wanted - before) / np.maximum(inside, 1e-12), 0, 1)
    out[filled] = 2.0 ** ((bins[column] + share) / BINS_PER_OCTAVE)
    return out
