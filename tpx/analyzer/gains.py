"""How much better one configuration is than another, by repetitions that were measured side by side: a ratio
with its confidence interval."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tpx.perf.statistics.distributions import t_quantile, t_two_sided
from tpx.perf.statistics.intervals import CONFIDENCE
from tpx.report.digits import percent

TIE_MARGIN = 0.02
"""Two configurations that differ by no more are as good as each other."""
EQUIVALENCE = 0.05
"""Two configurations whose difference surely is no more than this are tied."""
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
        """True where a difference within the margin is possible, and one beyond the equivalence is not."""
        within = self.low >= -EQUIVALENCE and self.high <= EQUIVALENCE
        return within and self.low <= TIE_MARGIN and self.high >= -TIE_MARGIN

    @property
    def interval(self) -> str:
        """` [64, 70]`; empty where there is none, or where both ends read like the value."""
        low, high = f"{self.low * 100:.0f}", f"{self.high * 100:.0f}"
        return "" if self.rounds < 2 or low == high == f"{self.value * 100:.0f}" else f" [{low}, {high}]"

    def __str__(self) -> str:
        return f"{percent(self.value)}{self.interval}"


UNKNOWN = Gain(value=0.0, low=-1.0, high=math.inf, p_value=1.0, rounds=0)
"""Of fewer than two rounds nothing can be said."""


def compare_scores(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Gain:
    """Return the gain of the first over the second; scores are logarithms, by round.

    Student's t on the differences of the rounds that both were in: what a round's moment did to both goes
    out.
    """
    common = sorted(ours.keys() & theirs.keys())
    differences = np.asarray([ours[n] - theirs[n] for n in common])
    rounds = len(common)
    if rounds < 2 or not np.isfinite(differences).all():
        return UNKNOWN
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
