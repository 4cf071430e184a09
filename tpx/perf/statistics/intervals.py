"""How far a figure can be trusted: confidence intervals of rates, means and percentiles of requests that
depend on each other.

Rates and means by batch means with Student's t, widened where neighbouring batches still resemble each other;
percentiles by binomial order statistics, over as many independent requests as the batches show there were.
"""

import math
from dataclasses import dataclass

import numpy as np

from tpx.perf.statistics.distributions import binomial_at_most, normal_quantile, t_quantile
from tpx.protocol.tensors import Array

CONFIDENCE = 0.95
SAFE_CONFIDENCE = 0.99
"""That with which MLPerf says that a percentile holds, and below which a percentile is called unknown."""
NOTICED_CORRELATION = 0.2
GREATEST_CORRELATION = 0.9
NORMAL_ABOVE = 100.0
"""Variance of a count from which the normal distribution does for the binomial."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A figure and the range in which its true value lies with this confidence.

    `high` None: there are too few samples to say how high it is.
    """

    value: float
    low: float
    high: float | None
    confidence: float = CONFIDENCE

    @property
    def half_width(self) -> float:
        """The greater of the distances to both ends; infinite where there is no upper one."""
        return math.inf if self.high is None else max(self.high - self.value, self.value - self.low)

    def within(self, share: float) -> bool:
        """Return whether both ends lie within a share of the value, as 0.05."""
        return self.half_width <= share * abs(self.value)

    def holds(self, value: float) -> bool:
        return self.low <= value and (self.high is None or value <= self.high)


def lag_one(values: Array) -> float:
    """The correlation of neighbouring values; 0 where they do not vary."""
    centred = values - values.mean()
    total = float(np.dot(centred, centred))
    return float(np.dot(centred[:-1], centred[1:])) / total if total > 0 else 0.0


def widening(residuals: Array) -> float:
    """By how much dependent batches widen a standard error: that of a first-order autoregression."""
    count = len(residuals)
    # an estimate from few values is too low by (1 + 3 rho) / n (Kendall 1954)
    correlation = (lag_one(residuals) + 1 / count) / max(1 - 3 / count, 0.25)
    correlation = min(correlation, GREATEST_CORRELATION)
    if correlation <= NOTICED_CORRELATION:
        return 1.0
    return math.sqrt((1 + correlation) / (1 - correlation))


def ratio_interval(sums: Array, weights: Array, confidence: float = CONFIDENCE) -> Interval:
    """Return the interval of sum(sums) / sum(weights), both given by batch (at least two): requests by
    seconds, or nanoseconds by requests.

    Student's t, and where batches are skewed Willink's correction on the side of their rare values: the
    truth lies further from the mean of a sample on that side.
    """
    count = len(sums)
    total = float(weights.sum())
    value = float(sums.sum()) / total
    residuals = sums - value * weights
    spread = math.sqrt(float(np.dot(residuals, residuals)) / (count - 1))
    error = spread * math.sqrt(count) / total * widening(residuals)
    t = t_quantile(0.5 + confidence / 2, count - 1)
    beta = _skewness(residuals, spread) / (6 * math.sqrt(count))
    return Interval(
        value=value,
        low=max(0.0, value - max(t, _corrected(t, beta)) * error),
        high=value + max(t, -_corrected(-t, beta)) * error,
        confidence=confidence,
    )


def _skewness(residuals: Array, spread: float) -> float:
    count = len(residuals)
    if spread <= 0 or count < 3:
        return 0.0
    third = float(np.power(residuals, 3).sum()) * count / ((count - 1) * (count - 2))
    return third / spread**3


def _corrected(t: float, beta: float) -> float:
    """R. Willink, "A confidence interval and test for the mean of an asymmetric distribution",
    Communications in Statistics 34, 2005: equation 3."""
    if abs(beta) < 1e-3:
        return t
    return (math.cbrt(1 + 6 * beta * (t - beta)) - 1) / (2 * beta)


def design_effect(inside: Array, requests: Array, confidence: float = CONFIDENCE) -> float:
    """How many dependent requests say as much as one independent request, at least 1.

    Of the share of requests with some property, `inside` of `requests` by batch: its variance over that of
    independent requests, times what the few batches add to the uncertainty.
    """
    total, count = float(requests.sum()), len(requests)
    share = float(inside.sum()) / total
    independent = share * (1 - share) / total
    if independent <= 0 or count < 2:
        return 1.0
    residuals = inside - share * requests
    variance = float(np.dot(residuals, residuals)) * count / (count - 1) / total**2
    side = 0.5 + confidence / 2
    few = (t_quantile(side, count - 1) / normal_quantile(side)) ** 2
    return max(1.0, variance * widening(residuals) ** 2 * few / independent)


def needed_samples(probability: float, confidence: float = SAFE_CONFIDENCE) -> int:
    """Return how many requests it takes until one lies above a quantile with this confidence: 459 for p99."""
    return math.ceil(math.log(1 - confidence) / math.log(probability))


def too_few(percentile: float, count: int, effect: float = 1.0) -> str:
    """Why nothing can be said of a percentile; empty where something can."""
    needed = needed_samples(percentile / 100)
    if count / effect >= needed:
        return ""
    if count < needed:
        return f"n too small for p{percentile:g} (need >= {needed})"
    return (
        f"too few independent requests for p{percentile:g} (need >= {needed}, "
        f"these {count} are worth {count / effect:.0f})"
    )


def quantile_interval(
    ordered: Array,
    value: float,
    probability: float,
    effect: float = 1.0,
    confidence: float = CONFIDENCE,
) -> Interval:
    """Return the interval of a quantile of sorted values; `effect` is their design effect.

    Order statistics: the ranks between which the quantile lies are those of a binomial count.
    """
    count = len(ordered)
    effective = count / effect
    side = (1 - confidence) / 2
    low = math.floor(_rank(effective, probability, side) * effect) + 1
    high = math.ceil((_rank(effective, probability, 1 - side) + 1) * effect)
    known = effective >= needed_samples(probability) and high <= count
    return Interval(
        value=value,
        low=float(ordered[low - 1]) if low >= 1 else 0.0,
        high=float(ordered[max(high, 1) - 1]) if known else None,
        confidence=confidence,
    )


def _rank(count: float, probability: float, side: float) -> float:
    """The number k with P[Binomial(count, probability) <= k] = side, as a fraction."""
    mean, variance = count * probability, count * probability * (1 - probability)
    if variance > NORMAL_ABOVE:
        return mean + normal_quantile(side) * math.sqrt(variance)
    low, high = -1.0, count
    for _ in range(50):
        middle = (low + high) / 2
        if binomial_at_most(count, probability, middle) < side:
            low = middle
        else:
            high = middle
    return low
