"""Where a measurement has become steady: MSER-5, which cuts off a beginning that only widens the error of the
mean.

K. P. White, "An effective truncation heuristic for bias reduction in simulation output", Simulation 69, 1997.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

GROUP = 5


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
    than `tolerance` (as 0.05) from the median of those that stay.
    """
    return max(
        (_leading(values, start, tolerance) for values, start in zip(figures, starts, strict=True)), default=0
    )


def _leading(values: Sequence[float], start: float, tolerance: float) -> int:
    proposed = min(round(start), len(values) - 1)
    if proposed <= 0:
        return 0
    steady = float(np.median(values[proposed:]))
    while proposed and abs(values[proposed - 1] - steady) <= tolerance * abs(steady):
        proposed -= 1
    return proposed
