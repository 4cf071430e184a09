"""Tests for a difference between two measurements: by resampling their batches and by ranks, which
assume no distribution; and the correction for multiple tests.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tpx.perf.statistics.intervals import normal_quantile, t_quantile, widening
from tpx.perf.statistics.summaries import BINS_PER_OCTAVE, Batches, Floats, quantiles
from tpx.protocol.tensors import Array

RESAMPLES = 2000

Figure = Callable[[Batches, Floats], Floats]
"""A figure of weighted batches: maps weights, one row per resample, to one value per row."""


def rate_figure(batches: Batches, weights: Floats) -> Floats:
    """Return successful requests per second; a resample without requests counts as having one."""
    value: Floats = np.maximum(weights @ batches.requests, 1) / (weights.sum(axis=1) * batches.seconds)
    return value


def quantile_figure(probability: float) -> Figure:
    """Return a figure that computes a latency quantile in ns."""

    def figure(batches: Batches, weights: Floats) -> Floats:
        return quantiles(weights @ batches.histogram, batches.bins, probability)

    return figure


def by_batch(batches: Batches, figure: Figure) -> Floats:
    """Return the figure of each batch that has requests."""
    return figure(batches, np.eye(batches.count)[batches.requests > 0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The relative change of a figure from the first measurement to the second, with its interval.

    `p_value` is the probability of such a change if there is no difference.
    """

    before: float
    after: float
    low: float
    high: float
    p_value: float


def deviations(
    batches: Batches, figure: Figure, confidence: float, resamples: int, rng: np.random.Generator
) -> Floats:
    """Return the deviations of a figure's logarithm from its mean, over batches drawn with replacement.

    They are widened by a known factor, because few batches understate the spread. A resample without
    requests has no latency, and counts as the mean.
    """
    count = batches.count
    weights = rng.multinomial(count, np.full(count, 1 / count), size=resamples).astype(np.float64)
    with np.errstate(divide="ignore"):
        drawn = np.log(figure(batches, weights))
    known = np.isfinite(drawn)
    drawn[~known] = drawn[known].mean()
    side = 0.5 + confidence / 2
    # t instead of normal quantiles, and n - 1 degrees of freedom instead of the bootstrap's n
    few = t_quantile(side, count - 1) / normal_quantile(side) * np.sqrt(count / (count - 1))
    widened: Floats = (drawn - drawn.mean()) * few
    return widened


def change(
    first: Batches,
    second: Batches,
    figure: Figure,
    *,
    confidence: float,
    rng: np.random.Generator,
    resamples: int = RESAMPLES,
    values: tuple[float, float] | None = None,
) -> Change:
    """Return the change of a figure between two measurements, relative to the first.

    `values` are the figure's values without the error of the bins, if they are known.
    """
    before, after = values or (float(figure(b, np.ones((1, b.count)))[0]) for b in (first, second))
    observed = float(np.log(after / before))
    chance = deviations(second, figure, confidence, resamples, rng) - deviations(
        first, figure, confidence, resamples, rng
    )
    # correlation between neighboring batches understates the spread: assume the more dependent of the two
    alone = [by_batch(batches, figure) for batches in (first, second)]
    chance *= max(widening(values - values.mean()) for values in alone)
    if figure is not rate_figure:
        # the bins of a histogram hide up to half a bin in either direction, in terms of the logarithm
        chance += rng.uniform(-0.5, 0.5, resamples) * np.log(2) / BINS_PER_OCTAVE
    side = (1 - confidence) / 2
    low, high = np.quantile(chance, (side, 1 - side))
    reached = int((np.abs(chance) >= abs(observed)).sum())
    return Change(
        before=before,
        after=after,
        low=float(np.expm1(observed + low)),
        high=float(np.expm1(observed + high)),
        # the observation counts as one of the resamples, so p is never 0
        p_value=(reached + 1) / (resamples + 1),
    )


def mann_whitney(first: Array, second: Array) -> float:
    """Return the p-value of the Mann-Whitney U test: the probability of ranks at least this different
    between two samples of one distribution.

    Two-sided, by the normal approximation with corrections for ties and continuity.
    """
    n, m = len(first), len(second)
    values = np.concatenate((first, second))
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    u = float(ranks[:n].sum()) - n * (n + 1) / 2
    total = n + m
    ties = float((counts.astype(np.float64) ** 3 - counts).sum()) / (total * (total - 1))
    variance = n * m / 12 * (total + 1 - ties)
    if variance <= 0:
        return 1.0
    return math.erfc(max(0.0, abs(u - n * m / 2) - 0.5) / math.sqrt(2 * variance))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values corrected for multiple testing, in the same order.

    S. Holm, "A simple sequentially rejective multiple test procedure", Scand. J. Statist. 6 (1979).
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    corrected = [1.0] * len(p_values)
    greatest = 0.0
    for place, i in enumerate(order):
        greatest = max(greatest, min(1.0, p_values[i] * (len(p_values) - place)))
        corrected[i] = greatest
    return corrected
