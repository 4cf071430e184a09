"""Conclusions from the final rounds: the best configuration, its cheaper ties, its gain over the
default with a confidence interval, and whether the machine was quiet enough for a result.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from tpx.analyzer.objectives import RankedVariant, gain_percent, gpu_mb, ram_mb, score
from tpx.analyzer.results.goals import Goals
from tpx.perf.statistics.differences import holm
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
    def tied(self) -> bool:
        """True if a difference within the margin is plausible and one beyond the bound is ruled out."""
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


def compare_scores(scores: Mapping[int, float], baseline: Mapping[int, float]) -> Gain:
    """Return the gain of the first over the second; scores are logarithms by round.

    A paired Student's t-test over the common rounds: pairing cancels what affected both in one round.
    """
    common = sorted(scores.keys() & baseline.keys())
    differences = np.asarray([scores[n] - baseline[n] for n in common])
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


SIGNIFICANT = 1 - CONFIDENCE
STEAL_PERCENT = 5.0
OTHER_PERCENT = 15.0
DRIFT = 0.15
"""Spread between rounds, common to all configurations, above which the machine is considered noisy."""
NOISY_GAIN = 0.05
"""On a noisy machine the whole confidence interval of a gain must lie above this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """The conclusion from the final rounds of one model's search."""

    recommended: RankedVariant
    """The cheapest configuration tied with the best: fewest instances, then least memory, then lowest p99."""
    tied: tuple[str, ...]
    """Names of the other configurations tied with the best."""
    passes_over: bool
    """True if a tied configuration is cheaper but may be worse than the default."""
    gains: Mapping[str, Gain]
    """Gain of each finalist over the default, by name."""
    noise: tuple[str, ...]
    """Disturbances on the machine during the rounds."""
    inconclusive: str
    """Reason why nothing can be recommended; empty if something can."""

    @property
    def gain(self) -> Gain | None:
        """The gain of the recommended configuration over the default."""
        return self.gains.get(self.recommended.name)


def conclude(ranking: Sequence[RankedVariant], goals: Goals) -> Conclusion | None:
    """Return the conclusion from a ranking; None if its first is no repeated one within the constraints."""
    finalists = [r for r in ranking if r.settled is not None and r.satisfies]
    if not finalists or finalists[0] is not ranking[0]:
        return None
    scores = {r.name: {m.round: score(m, goals) for m in r.settled.samples} for r in finalists if r.settled}
    best = finalists[0]
    against = [compare_scores(scores[r.name], scores[best.name]) for r in finalists[1:]]
    # Holm's correction, since each of several comparisons with the best may err
    corrected = holm([gain.p_value for gain in against])
    tied = [best] + [
        r
        for r, gain, p in zip(finalists[1:], against, corrected, strict=True)
        if not (gain.high < -TIE_MARGIN and p < SIGNIFICANT)
    ]
    default = next((r for r in finalists if r.run.variant.is_default), None)
    gains: dict[str, Gain] = {}
    if default is not None:
        # the gain between the displayed figures, with the interval from the paired rounds
        for r in finalists:
            paired = compare_scores(scores[r.name], scores[default.name])
            shown = gain_percent(r.figures, default.figures, goals)
            gains[r.name] = (
                paired if shown is None or paired is UNKNOWN else replace(paired, value=shown / 100)
            )
    noise = tuple(_describe_noise(finalists, scores))
    # a tied configuration must not be worse than the default, with certainty or by its estimate, nor may
    # it be doubtful unless the default is tied too
    known = [(r, gains.get(r.name, UNKNOWN)) for r in tied]
    behind = [r for r, gain in known if gain.rounds >= 2 and (gain.high < 0 or gain.value < -TIE_MARGIN)]
    worthwhile = [r for r in tied if r is default or r not in behind]
    if default not in tied:
        worthwhile = [r for r in worthwhile if not _explain_doubt(gains.get(r.name), noise)]
    recommended = min(worthwhile, key=_compute_cost, default=best)

    def as_good(ranked: RankedVariant) -> bool:
        return compare_scores(scores[ranked.name], scores[recommended.name]).high >= -TIE_MARGIN

    others = [r for r in tied if r is not recommended and as_good(r)]
    return Conclusion(
        recommended=recommended,
        tied=tuple(r.name for r in others),
        passes_over=any(_compute_cost(r) < _compute_cost(recommended) for r in others),
        gains=gains,
        noise=noise,
        inconclusive="" if recommended is default else _explain_doubt(gains.get(recommended.name), noise),
    )


def _compute_cost(ranked: RankedVariant) -> tuple[float, ...]:
    """Return a configuration's cost as a sort key: instances, memory, p99, then the order of the search."""
    figures = ranked.figures
    number = ranked.name.rpartition("_")[2]
    return (
        ranked.run.configuration.instances,
        # in steps of 10 MB: smaller differences are noise
        round((ram_mb(figures.memory) or 0.0) + (gpu_mb(figures) or 0.0), -1),
        float(figures.latency.p99_ns or 0),
        float(number) if number.isdigit() else -1.0,
    )


def _explain_doubt(gain: Gain | None, noise: Sequence[str]) -> str:
    """Return why a gain over the default cannot be trusted; empty if it can, or if there is no evidence."""
    if gain is None or gain is UNKNOWN or gain.rounds < 2:
        return ""
    if gain.low <= 0 and not gain.tied:
        return f"the gain is {gain}, which may be chance"
    if noise and gain.low < NOISY_GAIN and not gain.tied:
        return f"the gain is {gain}, too little to trust on a machine that was not quiet"
    return ""


def _describe_noise(
    finalists: Sequence[RankedVariant], scores: Mapping[str, Mapping[int, float]]
) -> list[str]:
    found = []
    hosts = [m.host for r in finalists for m in r.run.repetitions if m.host is not None]
    if hosts:
        steal = fmean(h.steal_percent for h in hosts)
        other = fmean(h.other_percent for h in hosts)
        if steal > STEAL_PERCENT:
            found.append(f"other guests of the host took {steal:.0f}% of the processors' time")
        if other > OTHER_PERCENT:
            load, cores = fmean(h.load_average for h in hosts), hosts[0].cores
            found.append(
                f"other programs took {other:.0f}% of the processors' time (load average {load:.1f} on "
                f"{cores} cores)"
            )
    # how much faster the fastest round is than the slowest, averaged over all configurations
    rounds = set.intersection(*map(set, scores.values()))
    levels = [fmean(own[number] for own in scores.values()) for number in rounds]
    known = len(levels) > 1 and bool(np.isfinite(levels).all())
    drift = math.expm1(max(levels) - min(levels)) if known else 0.0
    if drift > DRIFT:
        found.append(f"the final rounds differ by {drift * 100:.0f}%, for all configurations alike")
    return found
