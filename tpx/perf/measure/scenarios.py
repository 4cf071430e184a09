"""The validity of a level as a result of an MLPerf scenario: long enough, enough queries, few enough late.

The bound is that by which MLPerf's load generator stops early: of n queries with t over a limit, the
percentile p is shown to be below the limit when a server that keeps it just so would have at most t of n over
it with a probability of at most 1 - confidence.
"""

import numpy as np

from tpx.perf.records import Rows, succeeded
from tpx.perf.results import Condition, Validity
from tpx.perf.settings import LevelSettings
from tpx.perf.statistics.distributions import binomial_at_most
from tpx.perf.statistics.intervals import SAFE_CONFIDENCE

_MOST = 2**40


def validity(settings: LevelSettings, rows: Rows, duration_ns: int) -> Validity:
    """Judge a level by its rows, a row a query. The estimate is a percentile that at least 99 in 100 such
    runs would not find too low."""
    ordered = np.sort(succeeded(rows)["end_ns"] - succeeded(rows)["intended_ns"])
    failed = len(rows) - len(ordered)
    conditions = [Condition("no query failed", failed == 0, f"{failed} of {len(rows)} did" if failed else "")]
    if settings.request_count:
        short = settings.request_count - len(rows)
        return _summed([*conditions, _least("samples", settings.request_count, short)], None)
    floor_s = settings.count_window_floor_ms / 1000
    took_s = duration_ns / 1e9
    missing = f"{took_s:.3g} s of {floor_s:g} s: a longer --min-duration or an undisturbed run"
    conditions.append(Condition("minimum duration", took_s >= floor_s, "" if took_s >= floor_s else missing))
    conditions.append(_least("queries", settings.window_requests, settings.window_requests - len(rows)))
    percentile = settings.percentile
    if percentile is None:
        return _summed(conditions, None)
    if settings.latency_limit_ms:
        late = int(np.count_nonzero(ordered > settings.latency_limit_ms * 1e6))
        conditions.append(_under(settings.latency_limit_ms, len(ordered), late, percentile))
    over = most_over(len(ordered), percentile)
    if over is None:
        more = least_queries(0, percentile) - len(ordered)
        advice = f"p{percentile:g} needs at least {more} more queries: --min-query-count"
        return _summed([*conditions, Condition("early stopping", False, advice)], None)
    return _summed([*conditions, Condition("early stopping", True, "")], int(ordered[-1 - over]))


def _summed(conditions: list[Condition], estimate_ns: int | None) -> Validity:
    return Validity(conditions=tuple(conditions), estimate_ns=estimate_ns)


def _least(what: str, wanted: int, missing: int) -> Condition:
    return Condition(
        f"minimum {what}", missing <= 0, f"{missing} of {wanted} are missing" if missing > 0 else ""
    )


def _under(limit_ms: int, queries: int, late: int, percentile: float) -> Condition:
    name = f"p{percentile:g} under {limit_ms} ms"
    if shown(queries, late, percentile):
        return Condition(name, True, "")
    if late > queries * (1 - percentile / 100):
        return Condition(name, False, f"{late} of {queries} queries took longer: a lower load")
    more = least_queries(late, percentile) - queries
    return Condition(
        name, False, f"{late} of {queries} took longer, too few to tell: at least {more} more queries"
    )


def shown(queries: int, over: int, percentile: float, confidence: float = SAFE_CONFIDENCE) -> bool:
    """Return whether this many queries, of them `over` over a limit, show that the percentile is below it."""
    return queries > over and binomial_at_most(queries, 1 - percentile / 100, over) <= 1 - confidence


def least_queries(over: int, percentile: float, confidence: float = SAFE_CONFIDENCE) -> int:
    """Return how many queries it takes when `over` of them are over the limit."""
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
    """Return how many of the queries may be over a limit that they still show; None where they are too
    few."""
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
