"""The final rounds: measure the finalists and the default again side by side, so that no lucky
measurement decides.

Each round measures all of them for one window in a freshly shuffled order, so that drift of the machine
affects all alike. The search's own measurements count as well, unless the rounds contradict them. The
rounds end once each finalist is certainly behind the leader, or certainly tied with it.
"""

import math
import random
from collections.abc import Sequence
from statistics import fmean

from tpx.analyzer.gains import EQUIVALENCE, TIE_MARGIN, Gain, compare_scores
from tpx.analyzer.objectives import score
from tpx.analyzer.results.measurement import (
    LoadPoint,
    Measurement,
    Outcome,
    Trial,
    TrialFailure,
    Variant,
)
from tpx.analyzer.results.pooled import Mean, point_of
from tpx.analyzer.search.history import Asking, History
from tpx.analyzer.search.spec import Limits
from tpx.analyzer.variants import instance_count

NEAR = math.log(1.05)
"""Score difference to the best within which a configuration may tie; the cheapest of these also become
finalists.
"""
CONTENDING = math.log(1.2)
"""Score difference beyond which a third configuration is not measured again."""
SURE = 0.02
FEWEST_ROUNDS = 2
"""Minimum number of rounds for an interval, besides the search's measurement. These rounds are always
completed; later ones start only if the budget covers a whole round.
"""
CERTAIN = 0.03
"""p-value below which a difference eliminates a configuration."""
FINALISTS_AT_MOST = 4


def final_rounds(history: History) -> Asking[None]:
    """Measure the finalists again, round by round, until the best is decided or the rounds are used up."""
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
        if number > FEWEST_ROUNDS and history.left < len(running):
            history.decide("the budget ended before the final repetitions did")
            return
        # seeded per round: the order must not depend on the number of draws in earlier rounds
        for variant in random.Random(f"{limits.seed}:{number}").sample(running, len(running)):
            outcome = yield Trial(variant=variant, load=race.load_of(variant), round=number)
            race.take(variant, outcome)
        if number < FEWEST_ROUNDS or not race.running:
            continue
        race.drop()
        if why := race.decided:
            history.decide(f"final repetitions ended after {number} rounds: {why}")
            return


def reserve(limits: Limits) -> int:
    """Return the number of measurements that the budget reserves for the final rounds."""
    return (limits.finalists + 1) * min(FEWEST_ROUNDS, limits.final_rounds)


def choose(history: History, count: int) -> list[Variant]:
    """Return the search's best, those close to them (cheapest first), and the default."""
    ranked = history.ranked()
    if not ranked:
        return []
    best = history.best(ranked[0].name)
    contend = [v for v in ranked[2:count] if _near(history, history.best(v.name), best, CONTENDING)]
    top = ranked[: min(2, count)] + contend
    near = [v for v in ranked[count:] if _near(history, history.best(v.name), best)]
    top += sorted(near, key=instances_of)[: FINALISTS_AT_MOST - len(top)]
    return top + [v for v in ranked if v.is_default and v not in top]


def affordable(finalists: Sequence[Variant], left: float, enough: int = FEWEST_ROUNDS) -> list[Variant]:
    """Return the finalists that the budget can measure for enough rounds: the best of them and the
    default.
    """
    if math.isinf(left):
        return list(finalists)
    places = left // enough if left >= 2 * enough else left // FEWEST_ROUNDS
    if places >= len(finalists):
        return list(finalists)
    default = [variant for variant in finalists if variant.is_default]
    others = [variant for variant in finalists if not variant.is_default]
    return (others[: max(0, int(places) - len(default))] + default)[: int(places)]


def instances_of(variant: Variant) -> int:
    """Return the instances that a variant requests, including its members'; 1 if it sets no instance
    group.
    """
    groups = variant.delta.get("instance_group") or ([] if variant.members else [{}])
    return instance_count(groups) + sum(map(instances_of, variant.members))


class _Race:
    """The finalists' measurements; a finalist that is significantly behind is eliminated."""

    def __init__(self, history: History, finalists: Sequence[Variant]) -> None:
        self._history = history
        self._searched = {v.name: best for v in finalists if (best := history.best(v.name)) is not None}
        self._rounds: dict[str, list[Measurement]] = {variant.name: [] for variant in finalists}
        self.running = list(finalists)

    @property
    def decided(self) -> str:
        """Reason why no further round is needed; empty while one is."""
        leader = self._leader()
        gains = [self._gain(v, leader) for v in self.running if v is not leader]
        behind = [g for g in gains if g.high < 0 and g.p_value < CERTAIN]
        if not all(g.tied or g in behind or g.half_width <= SURE for g in gains):
            return ""
        if len(behind) == len(gains):
            return f"{leader.name} is certainly the best"
        return f"{leader.name} and others are certainly tied within {EQUIVALENCE:.0%}"

    def load_of(self, variant: Variant) -> LoadPoint:
        """Return the load under which a finalist is measured again."""
        return self._searched[variant.name].load

    def take(self, variant: Variant, outcome: Outcome) -> None:
        """Record the outcome of a round; a finalist that fails is eliminated."""
        if isinstance(outcome, TrialFailure):
            self.running.remove(variant)
            self._history.decide(f"out of the final repetitions: {outcome.reason}", variant.name)
        else:
            self._rounds[variant.name].append(outcome)

    def drop(self) -> None:
        """Eliminate those certainly worse than the leader; keep the default, the baseline of all gains."""
        leader = self._leader()
        for variant in tuple(self.running):
            gain = self._gain(variant, leader)
            if variant is leader or variant.is_default:
                continue
            if gain.high < -TIE_MARGIN and gain.p_value < CERTAIN:
                self.running.remove(variant)
                self._history.decide(f"out of the race: {gain} against {leader.name}", variant.name)

    def _gain(self, variant: Variant, other: Variant) -> Gain:
        return compare_scores(self._scores(variant), self._scores(other))

    def _scores(self, variant: Variant) -> dict[int, float]:
        """Return the scores by round; round 0 is the search's measurement, omitted if the rounds
        contradict it.
        """
        point = point_of([self._searched[variant.name]], self._rounds[variant.name])
        samples = point.samples if isinstance(point, Mean) else (point,)
        return {m.round: score(m, self._history.goals) for m in samples}

    def _leader(self) -> Variant:
        return max(self.running, key=lambda v: fmean(self._scores(v).values()))


def _near(history: History, one: Measurement | None, best: Measurement | None, share: float = NEAR) -> bool:
    (kept, merit), (best_kept, best_merit) = history.merit(one), history.merit(best)
    return kept and best_kept and best_merit - merit <= share
