"""Tails and quantiles of the normal, Student's t and binomial distributions."""

import math
from functools import lru_cache
from statistics import NormalDist

_NORMAL = NormalDist()
_TINY = 1e-300
_PRECISION = 1e-14
_MAX_STEPS = 20_000


def normal_quantile(probability: float) -> float:
    """Return the quantile z of the standard normal distribution."""
    return _NORMAL.inv_cdf(probability)


def normal_two_sided(z: float) -> float:
    """Return the probability that a standard normal variable deviates by at least |z|."""
    return math.erfc(abs(z) / math.sqrt(2))


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
    return math.exp(log_front) / (a * _fraction(a, b, x))


def _fraction(a: float, b: float, x: float) -> float:
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
def t_quantile(probability: float, degrees: int) -> float:
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
