"""Where a measurement has become steady: MSER-5, which cuts off a beginning that only widens the error of the
mean.

K. P. White, "An effective truncation heuristic for bias reduction in simulation output", Simulation 69, 1997.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tpx.perf.statistics.distributions import t_quantile

GROUP = 5
FEWEST_STEADY = 2
SURE = 0.9999


def steady_from(values: npt.NDArray[Any]) -> int:
    """The index of the first value of the steady part, at most the middle; a multiple of five."""
    groups = len(values) // GROUP
    if groups < 2:
        return 0
    means = values[: groups * GROUP].reshape(groups, GROUP).mean(axis=1)
    left = np.arange(groups, 0, -1)
    sums = np.cumsum(means[::-1])[::-1]
    squares = np.cumsum(np.square(means)[::-1])[::-1]
    spread = np.maximum(squares - sums**2 / left, 0.0) / left**2
    return int(np.argmin(spread[: groups // 2 + 1])) * GROUP


def warm_windows(figures: Sequence[Sequence[float]], starts: Sequence[float], tolerance: float) -> int:
    """How many leading windows are warm-up.

    `figures` are those of every window, one sequence for each quantity; `starts` says for each quantity where
    it becomes steady, in windows. A window goes when most of it lies before that, and its figure is further
    than `tolerance` (as 0.05) from the mean of those that stay, and further than their own spread explains:
    what only looks unlike the rest by chance must stay, or the mean would be that of a selection.
    """
    return max(
        (_leading(values, start, tolerance) for values, start in zip(figures, starts, strict=True)), default=0
    )


def _leading(values: Sequence[float], start: float, tolerance: float) -> int:
    proposed = min(round(start), len(values) - FEWEST_STEADY)
    for count in range(proposed, 0, -1):
        steady = np.asarray(values[count:])
        mean, spread = float(steady.mean()), float(steady.std(ddof=1))
        chance = t_quantile(0.5 + SURE / 2, len(steady) - 1) * spread * math.sqrt(1 + 1 / len(steady))
        if abs(values[count - 1] - mean) > max(tolerance * abs(mean), chance):
            return count
    return 0
