"""The load of one configuration found from where it is expected, instead of from the least load upwards."""

import math
from collections.abc import Callable

from tpx.analyzer.results.measurement import Measurement, Trial, Variant
from tpx.analyzer.search.known import Asking, Known, Merit
from tpx.analyzer.search.ladder import Ladder

WORTH_A_STEP = math.log(1.02)
"""More load is tried as long as it brings more than two percent."""

Decide = Callable[[str], None]


def measure(variant: Variant, ladder: Ladder, step: int) -> Asking[Measurement | None]:
    """The measurement at a step of the ladder, None where it failed."""
    outcome = yield Trial(variant=variant, load=ladder.at(step))
    if isinstance(outcome, Measurement) and outcome.throughput > 0:
        return outcome
    return None


def climb(
    variant: Variant, ladder: Ladder, known: Known, step: int, decide: Decide
) -> Asking[Measurement | None]:
    """Measure at this step of the ladder, then above and below it while that is better.

    Returns the best measurement of the configuration, None where nothing could be measured.
    """
    start = yield from measure(variant, ladder, step)
    if start is None:
        decide(f"stopped: {ladder.at(step)} could not be measured")
        return None
    best = start
    if known.merit(start)[0]:
        best = yield from _on(variant, ladder, known, range(step + 1, len(ladder)), start)
    if best is start and _may_be_better_below(known, start):
        best = yield from _on(variant, ladder, known, range(step - 1, -1, -1), start)
    decide(f"best at {best.load}: {best.throughput:.0f} infer/sec")
    return best


def _on(
    variant: Variant, ladder: Ladder, known: Known, steps: range, best: Measurement
) -> Asking[Measurement]:
    for step in steps:
        there = yield from measure(variant, ladder, step)
        if there is None:
            break
        better = is_step(known.merit(best), known.merit(there))
        best = max(best, there, key=known.merit)
        if not better:
            break
    return best


def is_step(before: Merit, after: Merit) -> bool:
    """Whether the second is better by enough to go on in its direction."""
    if before[0] != after[0]:
        return after[0]
    if not before[0]:
        return after[1] > before[1]
    return after[1] - before[1] > WORTH_A_STEP


def _may_be_better_below(known: Known, start: Measurement) -> bool:
    """Less load gives no more throughput, unless the server chokes; it helps latency and constraints."""
    tags = {objective.tag for objective in known.goals.all_objectives}
    return tags != {"perf_throughput"} or not known.merit(start)[0]
