"""Confidence intervals of rates, means and percentiles of requests that are not independent.

Rates and means use batch means with Student's t, widened if neighboring batches are still correlated.
Percentiles use binomial order statistics with the effective sample size that the batches show.
The distributions' tails and quantiles are computed here, too.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from tpx.protocol.tensors import Array

_TINY = 1e-300
_PRECISION = 1e-14
_MAX_STEPS = 20_000


normal_quantile = NormalDist().inv_cdf
"""Returns the quantile z of the standard normal distribution."""


def incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularized incomplete beta function I_x(a, b), for a, b > 0.

    Continued fraction of DLMF 8.17.22, evaluated by Lentz's method.
    """
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    # the fraction converges quickly only below this; above, use the symmetry of I_x
    if x > (a + 1) / (a + b + 2):
        return 1.0 - incomplete_beta(b, a, 1.0 - x)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    log_front += a * math.log(x) + b * math.log1p(-x)
    # exp would underflow
    if log_front < -700:
        return 0.0
    return math.exp(log_front) / (a * _evaluate_fraction(a, b, x))


def _evaluate_fraction(a: float, b: float, x: float) -> float:
    """Return the denominator 1 + d1/(1 + d2/(1 + ...)) of the continued fraction."""
    value = c = 1.0
    d = 0.0
    for step in range(1, _MAX_STEPS):
        m = step // 2
        if step % 2:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1.0 / ((1.0 + term * d) or _TINY)
        c = (1.0 + term / c) or _TINY
        value *= c * d
        if abs(c * d - 1.0) < _PRECISION:
            break
    return value


def binomial_at_most(trials: float, probability: float, successes: float) -> float:
    """Return P[Binomial(trials, probability) <= successes].

    Trials and successes may be fractions, because effective sample sizes are.
    """
    if successes < 0:
        return 0.0
    if successes >= trials:
        return 1.0
    return incomplete_beta(trials - successes, successes + 1.0, 1.0 - probability)


def t_two_sided(t: float, degrees: float) -> float:
    """Return the probability that Student's t deviates by at least |t|."""
    return incomplete_beta(degrees / 2, 0.5, degrees / (degrees + t * t))


@lru_cache(maxsize=512)
def t_quantile(probability: float, degrees: float) -> float:
    """Return the quantile of Student's t distribution, for a probability of at least one half."""
    low, high = 0.0, 1.0
    tail = 2 * (1 - probability)
    while t_two_sided(high, degrees) > tail:
        low, high = high, high * 2
    for _ in range(80):
        middle = (low + high) / 2
        if t_two_sided(middle, degrees) > tail:
            low = middle
        else:
            high = middle
    return (low + high) / 2


CONFIDENCE = 0.95
SAFE_CONFIDENCE = 0.99
"""Confidence that MLPerf requires; a percentile without enough requests for it counts as unknown."""
NOTICED_CORRELATION = 0.2
"""Correlation up to which batches count as independent."""
GREATEST_CORRELATION = 0.9
"""Upper limit of the correlation, which limits the widening to a factor of 4.4."""
NORMAL_ABOVE = 100.0
"""Variance of a count above which the normal distribution approximates the binomial."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A figure and the range that contains its true value with this confidence.

    `high` is None if there are too few samples for an upper bound.
    """

    value: float
    low: float
    high: float | None
    confidence: float = CONFIDENCE

    @property
    def half_width(self) -> float:
        """The greater distance from the value to either end; infinite without an upper end."""
        return math.inf if self.high is None else max(self.high - self.value, self.value - self.low)

    def within(self, share: float) -> bool:
        """Return True if both ends are within a fraction of the value, such as 0.05."""
        return self.half_width <= share * abs(self.value)

    def holds(self, value: float) -> bool:
        return self.low <= value and (self.high is None or value <= self.high)


def lag_one(values: Array) -> float:
    """Return the correlation of neighboring values; 0 if they do not vary."""
    centred = values - values.mean()
    total = float(np.dot(centred, centred))
    return float(np.dot(centred[:-1], centred[1:])) / total if total > 0 else 0.0


def widening(residuals: Array) -> float:
    """Return the factor by which correlated batches (first-order autoregression) widen a standard error."""
    count = len(residuals)
    # correct the bias: an estimate from few values is too low by (1 + 3 rho) / n (Kendall 1954)
    correlation = (lag_one(residuals) + 1 / count) / max(1 - 3 / count, 0.25)
    correlation = min(correlation, GREATEST_CORRELATION)
    if correlation <= NOTICED_CORRELATION:
        return 1.0
    return math.sqrt((1 + correlation) / (1 - correlation))


def ratio_interval(sums: Array, weights: Array, confidence: float = CONFIDENCE) -> Interval:
    """Return the interval of sum(sums) / sum(weights), both given by batch (at least two): requests
    over seconds, or nanoseconds over requests.

    Student's t. For skewed batches, Willink's correction extends the side of the long tail, on which
    the true value lies further from a sample's mean.
    """
    count = len(sums)
    total = float(weights.sum())
    value = float(sums.sum()) / total
    residuals = sums - value * weights
    spread = math.sqrt(float(np.dot(residuals, residuals)) / (count - 1))
    error = spread * math.sqrt(count) / total * widening(residuals)
    t = t_quantile(0.5 + confidence / 2, count - 1)
    skewness = 0.0
    if spread > 0 and count > 2:
        third = float(np.power(residuals, 3).sum()) * count / ((count - 1) * (count - 2))
        skewness = third / spread**3
    beta = skewness / (6 * math.sqrt(count))
    return Interval(
        value=value,
        low=max(0.0, value - max(t, _correct_skewness(t, beta)) * error),
        high=value + max(t, -_correct_skewness(-t, beta)) * error,
        confidence=confidence,
    )


def _correct_skewness(t: float, beta: float) -> float:
    """Correct t for skewness: R. Willink, "A confidence interval and test for the mean of an asymmetric
    distribution", Communications in Statistics 34, 2005, equation 3.
    """
    if abs(beta) < 1e-3:
        return t
    return (math.cbrt(1 + 6 * beta * (t - beta)) - 1) / (2 * beta)


def design_effect(inside: Array, requests: Array, confidence: float = CONFIDENCE) -> float:
    """Return the design effect: how many dependent requests carry the information of one independent
    request, at least 1.

    Computed for the share of requests with some property, `inside` of `requests` by batch: its variance
    relative to that of independent requests, times the uncertainty that comes from having few batches.
    """
    total, count = float(requests.sum()), len(requests)
    share = float(inside.sum()) / total
    independent = share * (1 - share) / total
    if independent <= 0 or count < 2:
        return 1.0
    residuals = inside - share * requests
    variance = float(np.dot(residuals, residuals)) * count / (count - 1) / total**2
    side = 0.5 + confidence / 2
    # few batches leave the variance itself uncertain: widen as t does over the normal
    few = (t_quantile(side, count - 1) / normal_quantile(side)) ** 2
    return max(1.0, variance * widening(residuals) ** 2 * few / independent)


def needed_samples(probability: float) -> int:
    """Return the number of requests needed for one to exceed a quantile with SAFE_CONFIDENCE: 459 for p99."""
    return math.ceil(math.log(1 - SAFE_CONFIDENCE) / math.log(probability))


def too_few(percentile: float, count: int, effect: float = 1.0) -> str:
    """Return the reason why a percentile cannot be estimated; empty if it can."""
    needed = needed_samples(percentile / 100)
    if count / effect >= needed:
        return ""
    if count < needed:
        return f"n too small for p{percentile:g} (need >= {needed})"
    return (
        f"too few unrelated requests for p{percentile:g} (need >= {needed:,}; slow ones come in groups, "
        f"so these {count:,} tell as much as {count / effect:,.0f})"
    )


def quantile_interval(
    ordered: Array, value: float, probability: float, effect: float = 1.0, confidence: float = CONFIDENCE
) -> Interval:
    """Return the interval of a quantile of sorted values; `effect` is their design effect.

    By order statistics: the bounds are the values at the ranks given by quantiles of a binomial count.
    """
    count = len(ordered)
    effective = count / effect
    side = (1 - confidence) / 2
    low = math.floor(_find_rank(effective, probability, side) * effect) + 1
    high = math.ceil((_find_rank(effective, probability, 1 - side) + 1) * effect)
    known = effective >= needed_samples(probability) and high <= count
    return Interval(
        value=value,
        low=float(ordered[low - 1]) if low >= 1 else 0.0,
        high=float(ordered[max(high, 1) - 1]) if known else None,
        confidence=confidence,
    )


_RANK_PRECISION = 1e-4


def _find_rank(count: float, probability: float, side: float) -> float:
    """Return the number k with P[Binomial(count, probability) <= k] = side, as a fraction."""
    mean, variance = count * probability, count * probability * (1 - probability)
    if variance > NORMAL_ABOVE:
        return mean + normal_quantile(side) * math.sqrt(variance)
    # Cantelli's inequality: a tail of this probability begins within so many standard deviations
    reach = math.sqrt(variance / min(side, 1 - side)) + 1
    low, high = max(-1.0, mean - reach), min(count, mean + reach)
    while high - low > _RANK_PRECISION:
        middle = (low + high) / 2
        if binomial_at_most(count, probability, middle) < side:
            low = middle
        else:
            high = middle
    return low
