"""How many queries show a percentile: the bound by which MLPerf's load generator stops early.

Of n queries with t over a limit, the percentile p is shown to be below the limit when a server that keeps it
just so would have at most t of n over it with a probability of at most 1 - confidence.
"""

from tpx.perf.statistics.distributions import binomial_at_most
from tpx.perf.statistics.intervals import SAFE_CONFIDENCE

_MOST = 2**40


def shown(queries: int, over: int, percentile: float, confidence: float = SAFE_CONFIDENCE) -> bool:
    """Whether so many queries with so many of them over a limit show that the percentile is below it."""
    return queries > over and binomial_at_most(queries, 1 - percentile / 100, over) <= 1 - confidence


def least_queries(over: int, percentile: float, confidence: float = SAFE_CONFIDENCE) -> int:
    """How many queries it takes when `over` of them are over the limit."""
    high = over + 1
    while not shown(high, over, percentile, confidence) and high < _MOST:
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        if shown(middle, over, percentile, confidence):
            high = middle
        else:
            low = middle
    return high


def most_over(queries: int, percentile: float, confidence: float = SAFE_CONFIDENCE) -> int | None:
    """How many of the queries may be over a limit that they still show; None where they are too few."""
    if not shown(queries, 0, percentile, confidence):
        return None
    low, high = 0, queries
    while high - low > 1:
        middle = (low + high) // 2
        if shown(queries, middle, percentile, confidence):
            low = middle
        else:
            high = middle
    return low
