"""The gain of one configuration over another as a ratio with a confidence interval, from paired
repetitions.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tpx.perf.statistics.intervals import CONFIDENCE, t_quantile, t_two_sided
from tpx.report.digits import percent

TIE_MARGIN = 0.02
"""Relative difference below which two configurations count as equally good."""
EQUIVALENCE = 0.05
"""Bound on the whole confidence interval of a difference for configurations to count as tied."""
LEAST_SPREAD = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """A ratio minus one, such as 0.67, with its 95% confidence interval."""

    value: float
    low: float
    high: float
    p_value: float
    """Probability of a difference at least this large if there is none."""
    rounds: int

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2

    @property
    def tied(self) -> bool:
        """True if a difference within the margin is plausible and one beyond the equivalence bound is
        ruled out.
        """
        within = self.low >= -EQUIVALENCE and self.high <= EQUIVALENCE
        return within and self.low <= TIE_MARGIN and self.high >= -TIE_MARGIN

    @property
    def interval(self) -> str:
        """` [64, 70]`; empty with fewer than two rounds, or if both bounds print like the value."""
        low, high = f"{self.low * 100:.0f}", f"{self.high * 100:.0f}"
        return "" if self.rounds < 2 or low == high == f"{self.value * 100:.0f}" else f" [{low}, {high}]"

    def __str__(self) -> str:
        return f"{percent(self.value)}{self.interval}"


UNKNOWN = Gain(value=0.0, low=-1.0, high=math.inf, p_value=1.0, rounds=0)
"""The gain from fewer than two rounds, which carries no information."""


def compare_scores(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Gain:
    """Return the gain of the first over the second; scores are logarithms by round.

    A paired Student's t-test over the rounds that both took part in: pairing cancels what affected both
    in the same round.
    """
    common = sorted(ours.keys() & theirs.keys())
    differences = np.asarray([ours[n] - theirs[n] for n in common])
    rounds = len(common)
    if rounds < 2 or not np.isfinite(differences).all():
        return UNKNOWN
    mean = float(differences.mean())
    error = float(differences.std(ddof=1)) / math.sqrt(rounds)
    # without spread between rounds there is no t statistic: the difference is exact
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
