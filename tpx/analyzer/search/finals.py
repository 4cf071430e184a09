"""The final repetitions: finalists and the default once more, side by side, so that what is said of them does
not come from a lucky moment.

Each round measures all of them in an order of its own, drawn by the seed: what drifts on the machine meets
all alike. The figures of the search only choose the finalists.
"""

import math
import random
from collections.abc import Sequence
from statistics import fmean

from tpx.analyzer.gains import TIE_MARGIN, compare_scores
from tpx.analyzer.objectives import score
from tpx.analyzer.results.measurement import (
    Failure,
    Load,
    Measurement,
    Outcome,
    Trial,
    Variant,
)
from tpx.analyzer.search.history import Asking, History
from tpx.analyzer.search.spec import Limits

NEAR = math.log(1.05)
"""A configuration this near to the best may tie with it; the cheapest of these is a finalist too."""
SURE = 0.02
FEWEST_ROUNDS = 3
COMPARABLE = 2
"""Rounds without which nothing can be said; once begun they are made, and later ones only whole."""
CERTAIN = 0.01
"""A difference less probable by chance than this takes a configuration out of the race."""
FINALISTS_AT_MOST = 6


def final_rounds(history: History) -> Asking[None]:
    """Measure all finalists again in each round, until the figures are sure or the rounds end."""
    limits = history.limits
    enough = min(FEWEST_ROUNDS, limits.final_rounds)
    finalists = affordable(choose(history, limits.finalists), history.left, enough)
    if len(finalists) < 2:
        history.decide("no final repetitions: there is nothing to compare, or no budget for it")
        return
    names = ", ".join(variant.name for variant in finalists)
    history.decide(f"final repetitions: {names}, each at its best load, in shuffled order")
    race = _Race(history, finalists)
    for number in range(1, limits.final_rounds + 1):
        running = race.running
        if number > COMPARABLE and history.left < len(running):
            history.decide("the budget ended before the final repetitions did")
            return
        # a generator of its own for each round: an order must not depend on how many there were before
        for variant in random.Random(f"{limits.seed}:{number}").sample(running, len(running)):
            outcome = yield Trial(variant=variant, load=race.load_of(variant), round=number)
            race.take(variant, outcome)
        race.drop()
        if number >= FEWEST_ROUNDS and race.sure:
            history.decide(f"final repetitions ended after {number} rounds: the figures are within 2%")
            return


def reserve(limits: Limits) -> int:
    """Measurements of a budget that are kept for the final repetitions."""
    return (limits.finalists + 1) * min(FEWEST_ROUNDS, limits.final_rounds)


def choose(history: History, count: int) -> list[Variant]:
    """The best by what the search saw, those that come near them (the cheapest first), and the default."""
    ranked = history.ranked()
    if not ranked:
        return []
    top = ranked[:count]
    best = history.best(top[0].name)
    near = [v for v in ranked[count:] if _near(history, history.best(v.name), best)]
    top += sorted(near, key=instances_of)[: FINALISTS_AT_MOST - len(top)]
    return top + [v for v in ranked if v.is_default and v not in top]


def affordable(finalists: Sequence[Variant], left: float, enough: int = FEWEST_ROUNDS) -> list[Variant]:
    """As many of the finalists, the best of them and the default, as enough rounds can be paid for."""
    if math.isinf(left):
        return list(finalists)
    places = left // enough if left >= 2 * enough else left // COMPARABLE
    if places >= len(finalists):
        return list(finalists)
    default = [variant for variant in finalists if variant.is_default]
    others = [variant for variant in finalists if not variant.is_default]
    return (others[: max(0, int(places) - len(default))] + default)[: int(places)]


def instances_of(variant: Variant) -> int:
    """Instances that a variant asks for, its members' together; 1 where it does not say."""
    groups = variant.delta.get("instance_group") or ([] if variant.members else [{}])
    own = sum(int(group.get("count", 1)) * max(1, len(group.get("gpus", ()))) for group in groups)
    return own + sum(map(instances_of, variant.members))


class _Race:
    """The finalists' scores by round; whoever is behind by more than chance explains leaves the race."""

    def __init__(self, history: History, finalists: Sequence[Variant]) -> None:
        self._history = history
        self._loads = {v.name: best.load for v in finalists if (best := history.best(v.name)) is not None}
        self._scores: dict[str, list[float]] = {variant.name: [] for variant in finalists}
        self.running = list(finalists)

    @property
    def sure(self) -> bool:
        """Whether the distance of each to the leader is known within 2%."""
        leader = self._leader()
        others = [self._scores[v.name] for v in self.running if v is not leader]
        return all(compare_scores(o, self._scores[leader.name]).half_width <= SURE for o in others)

    def load_of(self, variant: Variant) -> Load:
        """The load that the search found best."""
        return self._loads[variant.name]

    def take(self, variant: Variant, outcome: Outcome) -> None:
        """What a repetition shows; who fails one leaves."""
        if isinstance(outcome, Failure):
            self.running.remove(variant)
            self._history.decide(f"out of the final repetitions: {outcome.reason}", variant.name)
        else:
            self._scores[variant.name].append(score(outcome, self._history.goals))

    def drop(self) -> None:
        """Those that are certainly worse than the leader leave; the default stays, gains are over it."""
        if not self.running:
            return
        leader = self._leader()
        for variant in tuple(self.running):
            gain = compare_scores(self._scores[variant.name], self._scores[leader.name])
            if variant is leader or variant.is_default or gain.rounds < FEWEST_ROUNDS:
                continue
            if gain.high < -TIE_MARGIN and gain.p_value < CERTAIN:
                self.running.remove(variant)
                self._history.decide(f"out of the race: {gain} against {leader.name}", variant.name)

    def _leader(self) -> Variant:
        return max(self.running, key=lambda v: fmean(self._scores[v.name] or [-math.inf]))


def _near(history: History, one: Measurement | None, best: Measurement | None) -> bool:
    (kept, merit), (best_kept, best_merit) = history.merit(one), history.merit(best)
    return kept and best_kept and best_merit - merit <= NEAR
