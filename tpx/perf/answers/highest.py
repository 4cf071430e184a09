"""The highest load that meets the objectives, found with few levels: the steps along the range grow while
loads meet them, then what is left is halved."""

from collections.abc import Callable, Generator, Sequence

from tpx.perf.levels import REQUEST_RATE, Level, LevelRange
from tpx.perf.results import LevelResult, Verdict

DELIVERED = 0.95
"""An open loop whose answers come at less than this share of its rate builds up a queue."""
MOST_STEPS = 1 << 16
"""Where a range without an end is given up: so many steps from its start."""


def meets_objectives(result: LevelResult) -> bool:
    """Whether a level is an answer: every objective is met with safety, and the load was really carried."""
    return bearable(result) and result.meets_slo


def bearable(result: LevelResult) -> bool:
    """Whether more load may be tried: nothing is broken that more load can only make worse."""
    if result.interrupted or result.verdict in (Verdict.ERRORS, Verdict.OVER_LIMIT, Verdict.BORDERLINE):
        return False
    grows = [a for a in result.slo if a.objective.quantity == "throughput" and not a.objective.below]
    return all(a.met for a in result.slo if a not in grows) and not falls_behind(result)


def highest_answer(results: Sequence[LevelResult]) -> Level | None:
    """The highest measured load that is an answer."""
    return max((r.level for r in results if meets_objectives(r)), key=lambda at: at.value, default=None)


def falls_behind(result: LevelResult) -> bool:
    """Whether an open loop sent more than was answered."""
    if result.level.kind is not REQUEST_RATE:
        return False
    return result.throughput_infer_per_s < DELIVERED * result.level.value * result.batch_size


def highest_course(levels: LevelRange) -> Generator[float, bool, None]:
    """Yields the value to measure next, and is told whether that level met the objectives.

    Assumes that more load never helps. The steps double, so that no load is tried that is far beyond what
    the server carries; then the gap between the last good and the first bad level is halved.
    """
    at = _values(levels)
    if not (yield at(0)):
        return
    good, step = 0, 1
    last = _last_index(levels)
    while good < last:
        tried = min(good + step, last)
        if (yield at(tried)):
            good, step = tried, step * 2
            continue
        bad = tried
        while bad - good > 1:
            middle = (good + bad) // 2
            if (yield at(middle)):
                good = middle
            else:
                bad = middle
        return


def _values(levels: LevelRange) -> Callable[[int], float]:
    """The n-th value of a range."""
    if levels.listed:
        ordered: Sequence[float] = sorted(set(levels.listed))
        return lambda index: ordered[index]
    if not levels.factor:
        return lambda index: round(levels.start + index * levels.step, 9)
    known = [levels.start]

    def value(index: int) -> float:
        while len(known) <= index:
            following = known[-1] * levels.factor
            known.append(max(known[-1] + 1, int(following)) if levels.kind.whole else round(following, 9))
        return known[index]

    return value


def _last_index(levels: LevelRange) -> int:
    if levels.listed:
        return len(set(levels.listed)) - 1
    if levels.unbounded:
        return 64 if levels.factor else MOST_STEPS
    end = levels.highest or levels.start
    if not levels.factor:
        return int((end - levels.start) / levels.step + 1e-9)
    value, index = _values(levels), 0
    while value(index + 1) <= end:
        index += 1
    return index
