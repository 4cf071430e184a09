"""Tests that need no assumption about distributions, and the correction for making many of them."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tpx.perf.statistics.distributions import normal_two_sided


def mann_whitney(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> float:
    """How probable it is that two samples of the same distribution are ordered as differently as these.

    Two-sided, by the normal approximation with corrections for ties and continuity.
    """
    n, m = len(first), len(second)
    values = np.concatenate((first, second))
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    u = float(ranks[:n].sum()) - n * (n + 1) / 2
    total = n + m
    ties = float((counts.astype(np.float64) ** 3 - counts).sum()) / (total * (total - 1))
    variance = n * m / 12 * (total + 1 - ties)
    if variance <= 0:
        return 1.0
    return normal_two_sided(max(0.0, abs(u - n * m / 2) - 0.5) / math.sqrt(variance))


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values, corrected for being as many as they are, in the same order.

    S. Holm, "A simple sequentially rejective multiple test procedure", Scand. J. Statist. 6 (1979).
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    corrected = [1.0] * len(p_values)
    greatest = 0.0
    for place, i in enumerate(order):
        greatest = max(greatest, min(1.0, p_values[i] * (len(p_values) - place)))
        corrected[i] = greatest
    return corrected
