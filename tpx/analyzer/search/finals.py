"""The final repetitions: finalists and the default once more, side by side, so that what is said of them does
not come from a lucky moment.

Each round measures all of them in an order of its own, drawn by the seed: what drifts on the machine meets
all alike. The figures of the search only choose the finalists.
"""

import math
import random
from collections.abc import Sequence

from tpx.analyzer.gains import compare_scores
from tpx.analyzer.objectives import score
from tpx.analyzer.results.measurement import Decision, Failure, Measurement, Trial, Variant
from tpx.analyzer.search.base import Limits
from tpx.analyzer.search.known import Asking, BudgetSpent, Known
from tpx.analyzer.search.walk import Steps, Strategy

NEAR = math.log(1.05)
"""A configuration this near to the best may tie with it; the cheapest of these is a finalist too."""
SURE_HALF_WIDTH = 0.02
FEWEST_ROUNDS = 3


class Repeated:
    """A strategy, followed by the final repetitions; ends where the budget does."""

    def __init__(self, strategy: Strategy, known: Known, limits: Limits) -> None:
        self._strategy = strategy
        self._known = known
        self._limits = limits
        self._decisions: list[Decision] = []
        self._seen = 0

    @property
    def decisions(self) -> Sequence[Decision]:
        own = self._strategy.decisions
        self._decisions.extend(own[self._seen :])
        self._seen = len(own)
        return self._decisions

    @property
    def configurations_at_most(self) -> int:
        return self._strategy.configurations_at_most

    @property
    def loads_at_most(self) -> int:
        return self._strategy.loads_at_most

    def steps(self) -> Steps:
        known, limits = self._known, self._limits
        known.reserved = reserve(limits)
        try:
            reason = yield from known.through(self._strategy.steps())
        except BudgetSpent:
            reason = "the budget was spent"
            self._decide("", f"search ended after {known.measurements} measurements: {reason}")
        known.reserved = 0
        if limits.final_rounds:
            try:
                yield from known.through(self._finals())
            except BudgetSpent:
                self._decide("", "the budget ended before the final repetitions did")
        return reason

    def _finals(self) -> Asking[None]:
        finalists = choose(self._known, self._limits.finalists)
        if len(finalists) < 2:
            return
        names = ", ".join(variant.name for variant in finalists)
        self._decide("", f"final repetitions: {names}, each at its best load, in shuffled order")
        best = {variant.name: self._known.best(variant.name) for variant in finalists}
        scores: dict[str, list[float]] = {variant.name: [] for variant in finalists}
        for number in range(1, self._limits.final_rounds + 1):
            # a generator of its own for each round: a shuffle must not depend on how many there were before
            order = random.Random(f"{self._limits.seed}:{number}").sample(finalists, len(finalists))
            for variant in order:
                measured = best[variant.name]
                if measured is None or variant.name not in scores:
                    continue
                outcome = yield Trial(variant=variant, load=measured.load, round=number)
                if isinstance(outcome, Failure):
                    self._decide(variant.name, f"out of the final repetitions: {outcome.reason}")
                    del scores[variant.name]
                else:
                    scores[variant.name].append(score(outcome, self._known.goals))
            if number >= FEWEST_ROUNDS and _sure(list(scores.values())):
                self._decide("", f"final repetitions ended after {number} rounds: the figures are within 2%")
                return

    def _decide(self, variant: str, text: str) -> None:
        _ = self.decisions  # those of the strategy so far come first
        self._decisions.append(Decision(variant=variant, text=text))


def reserve(limits: Limits) -> int:
    """Measurements of a budget that are kept for the final repetitions: a third at most."""
    if limits.max_measurements is None or not limits.final_rounds:
        return 0
    wanted = (limits.finalists + 1) * min(FEWEST_ROUNDS, limits.final_rounds)
    return min(wanted, limits.max_measurements // 3)


def choose(known: Known, count: int) -> list[Variant]:
    """The best by what the search saw, the cheapest that comes near them, and the default."""
    ranked = known.ranked()
    if not ranked:
        return []
    top = ranked[:count]
    best = known.best(top[0].name)
    near = [v for v in ranked[count:] if _near(known, known.best(v.name), best)]
    if near:
        cheapest = min(near, key=instances_of)
        if instances_of(cheapest) < min(map(instances_of, top)):
            top.append(cheapest)
    return top + [v for v in ranked if v.is_default and v not in top]


def instances_of(variant: Variant) -> int:
    """Instances that a variant asks for, its members' together; 1 where it does not say."""
    if variant.members:
        return sum(map(instances_of, variant.members))
    groups = variant.delta.get("instance_group") or [{}]
    return sum(int(group.get("count", 1)) for group in groups)


def _near(known: Known, one: Measurement | None, best: Measurement | None) -> bool:
    (kept, merit), (best_kept, best_merit) = known.merit(one), known.merit(best)
    return kept and best_kept and best_merit - merit <= NEAR


def _sure(scores: Sequence[Sequence[float]]) -> bool:
    """Whether every finalist's score lies within 2% of the first's, up to chance, and known that well."""
    first, *others = scores or ((),)
    return all(compare_scores(one, first).half_width <= SURE_HALF_WIDTH for one in others)
