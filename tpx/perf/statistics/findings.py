"""Findings about the differences between repeated measurements: different, equivalent, or undecided.

One method gives the interval, the test and the finding, so they cannot disagree. Values are natural
logarithms, so that differences are ratios. The unit of repetition is a whole measurement, a round or a
saved run: windows within one differ less than repetitions do, and only inform the prior.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from tpx.perf.statistics.intervals import t_quantile, t_two_sided
from tpx.perf.statistics.summaries import Floats

Finding = Literal["different", "equivalent", "undecided"]

ALPHA = 0.05
MARGIN = 0.05
"""Ratio minus one up to which two figures count as equivalent."""
FEWEST_RUNS = 3
"""Saved runs that a baseline needs: one run, however long, does not tell how runs differ."""
TOO_NOISY = math.log(1.5)
"""Reach of an interval above which its bounds say nothing."""

_EXACT = 1e-9
"""Difference, and standard error, that is only an error of rounding."""
_PRIOR_DEGREES = 3
"""Degrees of freedom that the prior variance is worth (G. K. Smyth, "Linear models and empirical Bayes
methods", Stat. Appl. Genet. Mol. Biol. 3, 2004)."""
_LOAD_VARIANCE = 0.03**2
"""Variance between loads of one model: loads of the same file differ by up to 6%."""
_RUN_VARIANCE = 0.04**2
"""Variance between runs of the same thing, made at different times: they differ by 2 to 5%."""
WINDOW_VARIANCE = 0.04**2
"""Variance of a measurement with a single window, which shows none."""
_MEDIAN_VARIANCE = 1.35
"""Variance of a median of three or more values, relative to that of their mean."""
_CONTRADICTION = 3
"""Ratio to the prior above which a variance counts alone, if that is more cautious."""


@dataclass(frozen=True, slots=True)
class StandardError:
    """The standard error of a difference, and its degrees of freedom."""

    error: float
    degrees: float

    def reach(self, tail: float) -> float:
        """Return the distance from the estimate to a bound that is wrong with probability `tail`."""
        return t_quantile(1 - tail, self.degrees) * self.error

    def p_value(self, change: float) -> float:
        if self.error < _EXACT:
            return float(abs(change) < _EXACT)
        return t_two_sided(change / self.error, self.degrees)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """The difference of two logarithmic levels, with its interval at 1 - alpha and its findings.

    `comparisons` is the number of differences among which this one is (Bonferroni's correction).
    """

    change: float
    errors: tuple[StandardError, ...] = ()
    """The most cautious counts; empty if the measurements do not tell how repetitions differ."""
    repeats: int = 0
    """Rounds, or runs of the side with fewer."""
    alpha: float = ALPHA
    comparisons: int = 1
    margin: float = MARGIN

    @property
    def confidence(self) -> float:
        return 1 - self.alpha

    @property
    def value(self) -> float:
        """The ratio minus one."""
        return math.expm1(self.change)

    @property
    def low(self) -> float:
        return math.expm1(self.change - self.reach)

    @property
    def high(self) -> float:
        return math.expm1(self.change + self.reach)

    @property
    def reach(self) -> float:
        """Half the width of the interval, as a logarithm; infinite if nothing is known."""
        return self._reach_at(self.alpha / (2 * self.comparisons))

    @property
    def too_noisy(self) -> bool:
        """True if an undecided difference is not bounded within 50%, so that its bounds say nothing."""
        return math.isfinite(self.reach) and self.reach > TOO_NOISY and self.finding == "undecided"

    @property
    def p_value(self) -> float:
        """Probability of a difference at least this large if there is none, corrected."""
        raw = max((each.p_value(self.change) for each in self.errors), default=1.0)
        return min(1.0, raw * self.comparisons)

    @property
    def different(self) -> bool:
        """True if the interval excludes zero."""
        return abs(self.change) > max(self.reach, _EXACT)

    @property
    def equivalent(self) -> bool:
        """True if the difference lies within the margin, by two one-sided tests."""
        return abs(self.change) + self._reach_at(self.alpha) <= math.log1p(self.margin)

    @property
    def finding(self) -> Finding:
        """The finding; a certain difference that is certainly within the margin counts as none."""
        return "equivalent" if self.equivalent else "different" if self.different else "undecided"

    @property
    def holds_up(self) -> bool:
        """True if the difference is certainly not below the margin, by a corrected one-sided test."""
        return self.change - self._reach_at(self.alpha / self.comparisons) >= -math.log1p(self.margin)

    @property
    def needed(self) -> int:
        """Repeats in all that would probably decide an undecided difference; 0 if nothing is known."""
        distance, reach, margin = abs(self.change), self.reach, math.log1p(self.margin)
        ways = [way for way in (distance, margin - distance) if way > 0]
        if not ways or not math.isfinite(reach):
            return 0
        return max(self.repeats + 1, math.ceil(self.repeats * (reach / max(ways)) ** 2))

    def _reach_at(self, tail: float) -> float:
        return max((each.reach(tail) for each in self.errors), default=math.inf)


class RoundTable:
    """The levels of several items that were measured side by side in rounds.

    The items and rounds of each measurement add up to its value, the median of its windows; the variance
    of what is left is common to all items, and shrunk toward what windows, loads and rounds show.
    """

    def __init__(
        self, measured: Mapping[str, Mapping[int, Sequence[float]]], *, moderated: bool = True
    ) -> None:
        """`measured` holds the windows of each item by round; unknown (infinite) values are left out.

        Without `moderated`, the residual variance counts alone, which needs several rounds.
        """
        finite = {
            name: {number: known for number, windows in own.items() if len(known := _finite(windows))}
            for name, own in measured.items()
        }
        self._rounds = {name: frozenset(own) for name, own in finite.items() if own}
        self._names = {name: place for place, name in enumerate(self._rounds)}
        numbers = sorted(frozenset().union(*self._rounds.values()))
        cells = [
            (i, numbers.index(n), finite[name][n]) for name, i in self._names.items() for n in finite[name]
        ]
        if not cells:
            return
        design = np.zeros((len(cells), len(self._names) + len(numbers)))
        for row, (item, number, _) in enumerate(cells):
            design[row, item] = design[row, len(self._names) + number] = 1
        design = np.delete(design, len(self._names), axis=1)  # the first round is the reference
        values = np.array([np.median(windows) for *_, windows in cells])
        self._inverse = np.linalg.pinv(design.T @ design)
        fit = self._inverse @ design.T @ values
        degrees = len(cells) - int(np.linalg.matrix_rank(design))
        self._levels = fit[: len(self._names)]
        self._variances: tuple[tuple[float, float], ...] = ()
        if degrees:
            variance = float(np.square(values - design @ fit).sum()) / degrees
            rounds = float(np.var(np.append(0.0, fit[len(self._names) :]), ddof=1))
            windows = float(np.median([_variance_of_median(windows) for *_, windows in cells]))
            prior = windows + _LOAD_VARIANCE + rounds
            self._variances = moderate(variance, degrees, prior) if moderated else ((variance, degrees),)

    @property
    def names(self) -> tuple[str, ...]:
        """The items that have a value, in order."""
        return tuple(self._names)

    def level(self, name: str) -> float:
        """Return the logarithmic level of an item, as if it had been measured in every round."""
        return float(self._levels[self._names[name]])

    def contrast(self, one: str, other: str, *, alpha: float = ALPHA, comparisons: int = 1) -> Contrast:
        """Return the difference of `one` from `other`; unknown with fewer than two common rounds."""
        if one not in self._names or other not in self._names:
            return Contrast(change=0.0, alpha=alpha, comparisons=comparisons)
        i, j, part = self._names[one], self._names[other], self._inverse
        factor = max(0.0, float(part[i, i] + part[j, j] - 2 * part[i, j]))
        common = len(self._rounds[one] & self._rounds[other])
        return Contrast(
            change=self.level(one) - self.level(other),
            errors=_errors(self._variances, factor) if common > 1 else (),
            repeats=common,
            alpha=alpha,
            comparisons=comparisons,
        )


def contrast_runs(
    before: Sequence[float], after: Sequence[float], within: float = WINDOW_VARIANCE
) -> Contrast:
    """Return the difference of a figure between two sets of runs; unknown with fewer than three before.

    `within` is the variance of a single run's value that the run itself shows.
    """
    first, second = np.asarray(before), np.asarray(after)
    change = float(second.mean() - first.mean())
    repeats = min(len(first), len(second))
    if len(first) < FEWEST_RUNS:
        return Contrast(change=change, repeats=repeats)
    degrees = len(first) + len(second) - 2
    squares = sum(float(np.square(side - side.mean()).sum()) for side in (first, second))
    variances = moderate(squares / degrees, degrees, within + _RUN_VARIANCE)
    return Contrast(
        change=change, errors=_errors(variances, 1 / len(first) + 1 / len(second)), repeats=repeats
    )


def mean_error(values: Sequence[float]) -> tuple[StandardError, ...]:
    """Return the errors of the mean of two or more repetitions."""
    found = np.asarray(values)
    variances = moderate(float(found.var(ddof=1)), len(found) - 1, WINDOW_VARIANCE + _LOAD_VARIANCE)
    return _errors(variances, 1 / len(found))


def corrected(contrasts: Sequence[Contrast], alpha: float, margin: float) -> tuple[Contrast, ...]:
    """Return the differences of one comparison, corrected for their number."""
    return tuple(
        replace(each, alpha=alpha, margin=margin, comparisons=max(1, len(contrasts))) for each in contrasts
    )


def moderate(variance: float, degrees: float, prior: float) -> tuple[tuple[float, float], ...]:
    """Return variances with their degrees of freedom, of which the most cautious counts.

    The variance is shrunk toward the prior; one that contradicts the prior counts unshrunk, too.
    """
    total = _PRIOR_DEGREES + degrees
    shrunk = (_PRIOR_DEGREES * prior + degrees * variance) / total, total
    return (shrunk, (variance, degrees)) if variance > _CONTRADICTION * prior else (shrunk,)


def _errors(variances: Iterable[tuple[float, float]], factor: float) -> tuple[StandardError, ...]:
    return tuple(StandardError(math.sqrt(variance * factor), degrees) for variance, degrees in variances)


def _finite(windows: Sequence[float]) -> Floats:
    found: Floats = np.asarray([value for value in windows if math.isfinite(value)])
    return found


def _variance_of_median(windows: Floats) -> float:
    """Return the variance of the median of a measurement's windows, whose noise this estimates.

    The median over measurements of these variances is unbiased: the median of chi-squared is divided out.
    """
    count = len(windows)
    if count < 2:
        return WINDOW_VARIANCE
    typical = (1 - 2 / (9 * (count - 1))) ** 3
    return float(windows.var(ddof=1)) / typical * (_MEDIAN_VARIANCE if count > 2 else 1.0) / count
