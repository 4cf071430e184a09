"""How much better one configuration is than another, by repetitions that were measured side by side: a ratio
with its confidence interval."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tpx.perf.statistics.distributions import t_quantile, t_two_sided
from tpx.perf.statistics.intervals import CONFIDENCE

TIE_MARGIN = 0.02
"""Two configurations that differ by no more are as good as each other."""
LEAST_SPREAD = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """A ratio less one, as 0.67, and where it lies with 95% confidence."""

    value: float
    low: float
    high: float
    p_value: float
    """How probable a difference like this is where there is none."""
    rounds: int

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2

    @property
    def tied(self) -> bool:
        """Whether a difference of no more than the margin is possible."""
        return self.low <= TIE_MARGIN and self.high >= -TIE_MARGIN

    @property
    def equal(self) -> bool:
        """Whether a difference of more than the margin is ruled out."""
        return self.low >= -TIE_MARGIN and self.high <= TIE_MARGIN

    def __str__(self) -> str:
        low, high = (f"{end * 100:+.0f}" for end in (self.low, self.high))
        return f"{self.value * 100:+.0f}% [{low}, {high}]"


UNKNOWN = Gain(value=0.0, low=-1.0, high=math.inf, p_value=1.0, rounds=0)
"""Of fewer than two rounds nothing can be said."""


def compare_scores(ours: Sequence[float], theirs: Sequence[float]) -> Gain:
    """The gain of the first over the second; scores are logarithms, one of each round, paired.

    Student's t on the differences of each round: what a round's moment did to both goes out.
    """
    rounds = min(len(ours), len(theirs))
    paired = np.asarray((ours[:rounds], theirs[:rounds]), dtype=float)
    if rounds < 2 or not np.isfinite(paired).all():
        return UNKNOWN
    differences = paired[0] - paired[1]
    mean = float(differences.mean())
    error = float(differences.std(ddof=1)) / math.sqrt(rounds)
    if error < LEAST_SPREAD:
        value = math.expm1(mean)
        same = abs(mean) < LEAST_SPREAD
        return Gain(value=value, low=value, high=value, p_value=1.0 if same else 0.0, rounds=rounds)
    reach = t_quantile(0.5 + CONFIDENCE / 2, rounds - 1) * error
    return Gain(
        value=math.expm1(mean),
        low=math.expm1(mean - reach),
        high=math.expm1(mean + reach),
        p_value=t_two_sided(mean / error, rounds - 1),
        rounds=rounds,
    )
