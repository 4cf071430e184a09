"""The load of one configuration found from where it is expected, instead of from the least load upwards."""

import math
from bisect import bisect_left
from collections.abc import Callable

from tpx.analyzer.results.measurement import Load, Measurement, Trial, Variant
from tpx.analyzer.search.base import LoadSpace
from tpx.analyzer.search.known import Asking, Known

WORTH_A_STEP = math.log(1.02)
"""More load is tried as long as it brings more than two percent."""

Merit = tuple[bool, float]
Decide = Callable[[str], None]


def nearest_load(space: LoadSpace, wanted: float) -> int:
    """The place of the smallest load that is at least `wanted`, or of the greatest there is."""
    values = sorted(space.values)
    return min(bisect_left(values, wanted), len(values) - 1)


def climb(
    variant: Variant, space: LoadSpace, known: Known, place: int, *, batch_size: int, decide: Decide
) -> Asking[Measurement | None]:
    """Measure at the load of this place, then at greater or smaller ones while they are better.

    Returns the best measurement of the configuration, None where nothing could be measured.
    """
    values = sorted(space.values)

    def at(index: int) -> Asking[Measurement | None]:
        load = Load(kind=space.kind, value=values[index], batch_size=batch_size)
        outcome = yield Trial(variant=variant, load=load)
        if isinstance(outcome, Measurement) and outcome.throughput > 0:
            return outcome
        return None

    here = yield from at(place)
    if here is None:
        decide(f"stopped: {space.kind.replace('_', ' ')} {values[place]} could not be measured")
        return None
    start = here
    satisfied, _ = known.merit(start)
    index, best = place, here
    while satisfied and index + 1 < len(values):
        index += 1
        there = yield from at(index)
        if there is None or not _is_step(known.merit(best), known.merit(there)):
            best = max(best, there or best, key=known.merit)
            break
        best = there
    if best is start and _may_be_better_below(known, start, there_below=place > 0):
        best = yield from _down(at, known, place, best)
    decide(f"best at {best.load}: {best.throughput:.0f} infer/sec")
    return best


def _down(
    at: Callable[[int], Asking[Measurement | None]], known: Known, place: int, best: Measurement
) -> Asking[Measurement]:
    for index in range(place - 1, -1, -1):
        there = yield from at(index)
        if there is None:
            break
        step = _is_step(known.merit(best), known.merit(there))
        best = max(best, there, key=known.merit)
        if not step:
            break
    return best


def _is_step(before: Merit, after: Merit) -> bool:
    """Whether the second is better by enough to go on in its direction."""
    if before[0] != after[0]:
        return after[0]
    if not before[0]:
        return after[1] > before[1]
    return after[1] - before[1] > WORTH_A_STEP


def _may_be_better_below(known: Known, start: Measurement, *, there_below: bool) -> bool:
    """Less load gives no more throughput, unless the server chokes; it helps latency and constraints."""
    if not there_below:
        return False
    tags = {objective.tag for objective in known.goals.all_objectives}
    return tags != {"perf_throughput"} or not known.merit(start)[0]
