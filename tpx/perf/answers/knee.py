"""The knee: the load beyond which throughput hardly grows, and a scalability model that predicts the peak."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tpx.perf.levels import CONCURRENCY
from tpx.perf.results import LevelResult

FEWEST_FOR_KNEE = 3
FEWEST_FOR_MODEL = 4
"""Minimum levels for a fit of three parameters, leaving one degree of freedom to show a poor fit."""
WORTHWHILE = 0.1
"""Minimum relative gain in throughput, as a fraction of the relative increase in load."""
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Scalability:
    """Gunther's universal scalability law, X(N) = rate N / (1 + contention (N-1) + coherency N (N-1)).

    `fit_error` is the root mean square of the relative deviations from the measurements.
    """

    rate: float
    """Throughput at a load of one."""
    contention: float
    coherency: float
    fit_error: float

    def throughput(self, load: float) -> float:
        """Return the throughput that the law predicts for a load."""
        slow = 1 + self.contention * (load - 1) + self.coherency * load * (load - 1)
        return self.rate * load / slow

    @property
    def peak_load(self) -> float | None:
        """Load with the highest throughput; None if throughput grows with any load."""
        if self.coherency <= 0:
            return None
        return max(1.0, math.sqrt(max(0.0, 1 - self.contention) / self.coherency))

    @property
    def peak_throughput(self) -> float:
        """The highest throughput, or the limit that it approaches; infinite if it has none."""
        if self.peak_load is not None:
            return self.throughput(self.peak_load)
        return self.rate / self.contention if self.contention > 0 else math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Knee:
    """Levels that mark the knee by different criteria; each is None if there are too few levels.

    `bend`: where the curve of p99 latency over throughput bends most (Kneedle); `power`: the highest
    throughput per latency; `worthwhile`: the last level before more load stopped being worthwhile.
    """

    bend: LevelResult | None
    power: LevelResult | None
    worthwhile: LevelResult | None
    model: Scalability | None


def find_knee(levels: Sequence[LevelResult]) -> Knee:
    """Find the knee of closed-loop or open-loop levels; levels without figures are ignored."""
    usable = sorted(
        (r for r in levels if r.latency is not None and r.throughput_infer_per_s > 0 and not r.interrupted),
        key=lambda r: r.level.value,
    )
    closed = [r for r in usable if r.level.kind is CONCURRENCY]
    return Knee(
        bend=_find_bend(usable),
        power=max(
            usable, key=lambda r: r.throughput_infer_per_s / max(r.stabilizing_latency_ns, 1), default=None
        ),
        worthwhile=_find_last_worthwhile(usable),
        model=fit([r.level.value for r in closed], [r.throughput_infer_per_s for r in closed]),
    )


def _find_bend(levels: Sequence[LevelResult]) -> LevelResult | None:
    """Return the level furthest from the straight line between the ends of the curve of p99 over
    throughput, both scaled to 1.

    V. Satopaa et al., "Finding a Kneedle in a Haystack", 2011, without smoothing.
    """
    if len(levels) < FEWEST_FOR_KNEE:
        return None
    x = np.array([r.throughput_infer_per_s for r in levels])
    y = np.array([r.latency.at(99.0) if r.latency else 0 for r in levels], dtype=np.float64)
    if np.ptp(x) <= 0 or np.ptp(y) <= 0:
        return None
    distance = (x - x.min()) / np.ptp(x) - (y - y.min()) / np.ptp(y)
    best = int(np.argmax(distance))
    return levels[best] if distance[best] > 0 and best < len(levels) - 1 else None


def _find_last_worthwhile(levels: Sequence[LevelResult]) -> LevelResult | None:
    if len(levels) < FEWEST_FOR_KNEE:
        return None
    last = levels[0]
    for result in levels[1:]:
        gained = result.throughput_infer_per_s / last.throughput_infer_per_s - 1
        added = result.level.value / last.level.value - 1
        if gained < WORTHWHILE * added:
            return last
        last = result
    return last


def fit(loads: Sequence[float], throughputs: Sequence[float]) -> Scalability | None:
    """Fit the law with the least relative deviations from the measurements; None for fewer than four
    loads.

    N/X is linear in three products of the parameters, so that least squares needs no start values.
    Parameters that would be negative, which has no meaning, are fixed at 0 and the others are fitted
    again.
    """
    if len(set(loads)) < FEWEST_FOR_MODEL:
        return None
    n, x = np.array(loads, dtype=np.float64), np.array(throughputs, dtype=np.float64)
    columns = np.stack((np.ones_like(n), n - 1, n * (n - 1)), axis=1)
    wanted = n / x
    best, least = None, math.inf
    for used in ([0, 1, 2], [0, 1], [0, 2], [0]):
        weighted = columns[:, used] / wanted[:, None]
        solution, *_ = np.linalg.lstsq(weighted, np.ones_like(wanted), rcond=None)
        error = float(np.square(weighted @ solution - 1).sum())
        if solution[0] > 0 and (solution >= 0).all() and error < least:
            best, least = np.zeros(3), error
            best[used] = solution
    found = best
    if found is None:
        return None
    # a coefficient that is only rounding noise would predict a peak at an absurd load
    found[found * columns.max(axis=0) < ROUNDING * found[0]] = 0.0
    law = Scalability(
        rate=float(1 / found[0]),
        contention=float(found[1] / found[0]),
        coherency=float(found[2] / found[0]),
        fit_error=0.0,
    )
    deviations = np.array([law.throughput(load) for load in loads]) / x - 1
    return replace(law, fit_error=float(np.sqrt(np.mean(deviations**2))))
