"""Differences of two measurements by resampling their batches."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tpx.perf.statistics.batches import BINS_PER_OCTAVE, Batches, Floats, quantiles
from tpx.perf.statistics.distributions import normal_quantile, t_quantile
from tpx.perf.statistics.intervals import NOTICED_CORRELATION, lag_one

RESAMPLES = 2000

Figure = Callable[[Batches, Floats], Floats]
"""A figure of weighted batches: from weights, one row a resample, to one value a row."""


def rate_figure(batches: Batches, weights: Floats) -> Floats:
    """Successful requests per second."""
    value: Floats = weights @ batches.requests / (weights.sum(axis=1) * batches.seconds)
    return value


def mean_figure(batches: Batches, weights: Floats) -> Floats:
    """Mean latency in ns."""
    value: Floats = weights @ batches.latency_sum_ns / np.maximum(weights @ batches.requests, 1)
    return value


def quantile_figure(probability: float) -> Figure:
    """A quantile of the latency in ns."""

    def figure(batches: Batches, weights: Floats) -> Floats:
        return quantiles(weights @ batches.histogram, batches.bins, probability)

    return figure


def by_batch(batches: Batches, figure: Figure) -> Floats:
    """The figure of each batch that has requests."""
    return figure(batches, np.eye(batches.count)[batches.requests > 0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The second measurement's figure over the first's, less one, with its interval and how probable such a
    change is without a difference."""

    before: float
    after: float
    low: float
    high: float
    p_value: float

    @property
    def relative(self) -> float:
        return self.after / self.before - 1


def resampled(batches: Batches, figure: Figure, resamples: int, rng: np.random.Generator) -> Floats:
    """Values of the figure over batches drawn with replacement; as runs of three where neighbours resemble
    each other, so that their dependence stays."""
    count = batches.count
    length = 3 if lag_one(by_batch(batches, figure)) > NOTICED_CORRELATION else 1
    starts = rng.integers(0, count, size=(resamples, -(-count // length)))
    chosen = (starts[:, :, None] + np.arange(length)).reshape(resamples, -1)[:, :count] % count
    weights = np.zeros((resamples, count))
    np.add.at(weights, (np.arange(resamples)[:, None], chosen), 1.0)
    return figure(batches, weights)


def change(
    first: Batches,
    second: Batches,
    figure: Figure,
    *,
    confidence: float,
    rng: np.random.Generator,
    resamples: int = RESAMPLES,
) -> Change:
    """How a figure of one measurement differs from that of another, relative to the first."""
    before, after = (float(figure(b, np.ones((1, b.count)))[0]) for b in (first, second))
    drawn = np.log(resampled(second, figure, resamples, rng)) - np.log(
        resampled(first, figure, resamples, rng)
    )
    observed = float(np.log(after / before))
    deviations = _widened(drawn - observed, min(first.count, second.count), confidence)
    deviations += _rounding(figure, rng, resamples)
    side = (1 - confidence) / 2
    low, high = np.quantile(deviations, (side, 1 - side))
    reached = int((np.abs(deviations) >= abs(observed)).sum())
    return Change(
        before=before,
        after=after,
        low=float(np.expm1(observed + low)),
        high=float(np.expm1(observed + high)),
        p_value=(reached + 1) / (resamples + 1),
    )


def _widened(deviations: npt.NDArray[Any], batches: int, confidence: float) -> Floats:
    """Resampling few batches understates their spread by a factor that is known."""
    finite = np.nan_to_num(deviations, nan=0.0)
    side = 0.5 + confidence / 2
    few = t_quantile(side, batches - 1) / normal_quantile(side) * np.sqrt(batches / (batches - 1))
    widened: Floats = (finite - finite.mean()) * few
    return widened


def _rounding(figure: Figure, rng: np.random.Generator, resamples: int) -> Floats:
    """What the bins of a histogram may hide of a quantile; nothing of other figures."""
    if figure in (rate_figure, mean_figure):
        return np.zeros(resamples)
    hidden: Floats = rng.uniform(-0.5, 0.5, resamples) * np.log(2) / BINS_PER_OCTAVE
    return hidden
