"""The driver of a search: it asks a strategy for trials, then measures the finalists again side by side,
so that no lucky measurement decides.

Strategies are generators that yield trials, receive their outcomes, and read everything else from the
history. Without IO and clock a search is deterministic: the same outcomes lead to the same trials.
"""

import importlib
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from tpx.analyzer.conclusion import EARLY_ALPHA, Evidence, Finalist
from tpx.analyzer.objectives import satisfies
from tpx.analyzer.results.measurement import (
    LoadPoint,
    Measurement,
    Outcome,
    Trial,
    TrialFailure,
    Variant,
)
from tpx.analyzer.results.pooled import pooled
from tpx.analyzer.search.history import Asking, History, Steps
from tpx.analyzer.search.spec import Limits, Mode, SearchSpec
from tpx.analyzer.variants import configure, instance_count
from tpx.report.digits import change_range

T = TypeVar("T")
Strategy = Callable[[SearchSpec, History], Steps]

STRATEGIES: Mapping[Mode, str] = {
    "brute": "tpx.analyzer.search.sweep:brute",
    "manual": "tpx.analyzer.search.sweep:manual",
    "quick": "tpx.analyzer.search.local_search:quick",
    "optuna": "tpx.analyzer.search.tpe:optuna_trials",
    "pareto": "tpx.analyzer.search.local_search:pareto",
    "budgeted": "tpx.analyzer.search.budgeted:budgeted",
}

GUESSED_GAIN = 1.005
"""Assumed ratio to the best so far: a load sweep ends soon, a search that needs an improvement goes on."""


class SearchDriver:
    """Issues one trial at a time; each `ask` must be followed by `tell` before the next."""

    def __init__(self, mode: Mode, spec: SearchSpec) -> None:
        """Raises UsageError if the mode cannot search this space, or lacks a package."""
        module, _, name = STRATEGIES[mode].partition(":")
        strategy: Strategy = getattr(importlib.import_module(module), name)
        self._mode, self._spec = mode, spec
        self._outcomes: list[Outcome] = []
        self.history = History(spec.goals, spec.limits)
        self._steps = self._iter_steps(strategy(spec, self.history))
        self._next = self._advance(None)

    def ask(self) -> Trial | None:
        """Return the next trial, or None when the search is over."""
        return self._next

    def tell(self, trial: Trial, outcome: Outcome) -> None:
        """Record the outcome of the trial returned by `ask`, and advance."""
        if trial != self._next:
            raise ValueError(f"got the outcome of {trial}, asked for {self._next}")
        self._outcomes.append(outcome)
        self._next = self._advance(outcome)

    def expected(self, known: Callable[[Trial], Outcome | None]) -> Iterator[Trial]:
        """Yield unknown trials that the search will probably request before the final rounds.

        A copy of the search runs ahead, assuming each such trial slightly better than the best before.
        """
        copy = SearchDriver(self._mode, self._spec)
        best: Measurement | None = None
        replayed = iter(self._outcomes)
        while (trial := copy.ask()) is not None and not trial.round:
            outcome = next(replayed, None) or known(trial)
            if outcome is None:
                if best is None:
                    return
                yield trial
                # all but the throughput is copied from the best
                members = zip(best.members, trial.variant.members, trial.load.members, strict=False)
                outcome = replace(
                    best,
                    variant=trial.variant.name,
                    load=trial.load,
                    result=replace(best.result, throughput_infer_per_s=best.throughput * GUESSED_GAIN),
                    members=tuple(replace(each, variant=of.name, load=load) for each, of, load in members),
                )
            if isinstance(outcome, Measurement) and (best is None or outcome.throughput > best.throughput):
                best = outcome
            copy.tell(trial, outcome)

    def _advance(self, outcome: Outcome | None) -> Trial | None:
        try:
            return next(self._steps) if outcome is None else self._steps.send(outcome)
        except StopIteration:
            return None

    def _iter_steps(self, strategy: Steps) -> Steps:
        history = self.history
        history.reserved = reserve(history.limits)
        yield from self._iter_unknown(strategy)
        history.reserved = 0
        if history.limits.final_rounds:
            rounds = final_rounds(history, self._count_instances)
            yield from self._iter_unknown(rounds, within_budget=False)

    def _count_instances(self, variant: Variant) -> int:
        """Return the instances of a variant's complete configuration."""
        defaults = self._spec.defaults
        return configure(variant, defaults.get(variant.model, {}), defaults).instances

    def _iter_unknown(self, steps: Steps, *, within_budget: bool = True) -> Steps:
        """Yield the trials without an outcome, within the budget unless the steps enforce it."""
        history = self.history
        try:
            trial = next(steps)
            while True:
                outcome = history.outcome(trial)
                if outcome is None:
                    if within_budget and history.left < 1:
                        spent = f"{history.measurements} measurements: the budget was spent"
                        history.decide(f"search ended after {spent}")
                        history.spent = True
                        return
                    outcome = yield trial
                    history.take(trial, outcome)
                trial = steps.send(outcome)
        except StopIteration:
            return


NEAR = math.log(1.05)
"""Score difference to the best within which the cheapest variants become finalists, too."""
CONTENDING = math.log(1.2)
"""Score difference beyond which a third configuration is not measured again."""
HOPELESS = 0.02
"""Share by which a finalist is certainly behind the leader if it is not measured again."""
FEWEST_ROUNDS = 2
"""Rounds for an interval, always completed; later ones start only if the budget covers a whole round."""
FINALISTS_AT_MOST = 4


def final_rounds(history: History, count_instances: Callable[[Variant], int]) -> Asking[None]:
    """Measure the finalists again, round by round, until the best is decided or the rounds are used up; the
    only configuration again under each of its loads.
    """
    limits = history.limits
    if len(only := history.ranked()) == 1:
        yield from _repeat_loads(history, only[0])
        return
    finalists = affordable(choose(history, limits.finalists), history.repetitions_left)
    if len(finalists) < 2:
        history.decide("no final repetitions: there is nothing to compare, or no budget for it")
        return
    names = ", ".join(variant.name for variant in finalists)
    history.decide(f"final repetitions: {names}, each at its best load and loaded anew, in shuffled order")
    race = _Race(history, finalists, count_instances)
    for number in range(1, limits.final_rounds + 1):
        running = race.running
        if number > FEWEST_ROUNDS and history.repetitions_left < len(running):
            history.decide("the budget ended before the final repetitions did")
            return
        for variant in _shuffled(running, limits.seed, number):
            outcome = yield Trial(variant=variant, load=race.searched[variant.name].load, round=number)
            race.take(variant, outcome)
        if number < FEWEST_ROUNDS or not race.running:
            continue
        if limits.final_rounds - number >= FEWEST_ROUNDS:
            race.move()
        evidence = race.weigh()
        if evidence is not None and evidence.decided:
            history.decide(f"final repetitions ended after {number} rounds: more would not change the result")
            return
        race.drop(evidence)


def _repeat_loads(history: History, variant: Variant) -> Asking[None]:
    """Measure the only configuration again under each of its loads: a single window has no interval."""
    loads, name = [m.load for m in history.of(variant.name)], variant.name
    if history.repetitions_left < FEWEST_ROUNDS * len(loads):
        history.decide("no final repetitions: there is no budget for them")
        return
    history.decide(f"final repetitions: {name}, the only one, at each of its loads, in shuffled order")
    for number in range(1, FEWEST_ROUNDS + 1):
        for load in _shuffled(loads, history.limits.seed, number):
            yield Trial(variant=variant, load=load, round=number)


def _shuffled(items: Sequence[T], seed: int, number: int) -> list[T]:
    """Shuffle for a round; seeded per round, so that the order does not depend on draws in earlier ones."""
    return random.Random(f"{seed}:{number}").sample(items, len(items))


def reserve(limits: Limits) -> int:
    """Return the number of measurements that the budget reserves for the final rounds."""
    return (limits.finalists + 1) * min(FEWEST_ROUNDS, limits.final_rounds)


def choose(history: History, count: int) -> list[Variant]:
    """Return the search's best, those close to them (cheapest first), and the default."""
    ranked = history.ranked()
    if not ranked:
        return []
    best = history.best(ranked[0].name)
    contend = [v for v in ranked[2:count] if _is_near(history, history.best(v.name), best, CONTENDING)]
    top = ranked[: min(2, count)] + contend
    near = [v for v in ranked[count:] if _is_near(history, history.best(v.name), best)]
    top += sorted(near, key=instances_of)[: FINALISTS_AT_MOST - len(top)]
    return top + [v for v in ranked if v.is_default and v not in top]


def affordable(finalists: Sequence[Variant], left: float) -> list[Variant]:
    """Return the finalists that the budget can measure often enough: the best of them and the default."""
    if math.isinf(left):
        return list(finalists)
    places = left // FEWEST_ROUNDS
    if places >= len(finalists):
        return list(finalists)
    default = [variant for variant in finalists if variant.is_default]
    others = [variant for variant in finalists if not variant.is_default]
    return (others[: max(0, int(places) - len(default))] + default)[: int(places)]


def instances_of(variant: Variant) -> int:
    """Return the instances that a variant and its members request; 1 if it sets no instance group."""
    groups = variant.delta.get("instance_group") or ([] if variant.members else [{}])
    return instance_count(groups) + sum(map(instances_of, variant.members))


class _Race:
    """The finalists' measurements; a finalist that is certainly behind is eliminated."""

    def __init__(
        self, history: History, finalists: Sequence[Variant], count_instances: Callable[[Variant], int]
    ) -> None:
        self._history = history
        self._finalists = {variant.name: variant for variant in finalists}
        self._instances = {variant.name: count_instances(variant) for variant in finalists}
        self.searched = {v.name: best for v in finalists if (best := history.best(v.name)) is not None}
        self._rounds: dict[str, list[Measurement]] = {variant.name: [] for variant in finalists}
        self._missed: set[tuple[str, LoadPoint]] = set()
        self.running = list(finalists)

    def take(self, variant: Variant, outcome: Outcome) -> None:
        """Record the outcome of a round; a finalist that fails is eliminated."""
        if isinstance(outcome, TrialFailure):
            self.running.remove(variant)
            del self._rounds[variant.name]
            self._history.decide(f"out of the final repetitions: {outcome.reason}", variant.name)
        else:
            self._rounds[variant.name].append(outcome)

    def move(self) -> None:
        """Continue at the next best load with finalists whose mean misses a constraint."""
        history = self._history
        for variant in self.running:
            name, missed = variant.name, self.searched[variant.name].load
            if satisfies(pooled(self._rounds[name]), history.goals):
                continue
            self._missed.add((name, missed))
            kept = [m for m in history.of(name) if (name, m.load) not in self._missed]
            kept = [m for m in kept if satisfies(m, history.goals)]
            if kept:
                self.searched[name], self._rounds[name] = max(kept, key=history.merit), []
                moved = f"final repetitions go on at {self.searched[name].load}"
                history.decide(f"{moved}: the mean at {missed} misses a constraint", name)

    def weigh(self) -> Evidence | None:
        """Return the evidence of the rounds on those within the constraints, with the confidence of an early
        look; None if there is nothing to compare yet.
        """
        goals = self._history.goals
        points = {name: pooled(own) for name, own in self._rounds.items() if len(own) >= FEWEST_ROUNDS}
        kept = {name: point for name, point in points.items() if satisfies(point, goals)} or points
        waits = [v for v in self.running if len(self._rounds[v.name]) < FEWEST_ROUNDS]
        if len(kept) < 2 or waits:
            return None
        finalists = [
            Finalist(
                name=name,
                is_default=self._finalists[name].is_default,
                instances=self._instances[name],
                point=point,
            )
            for name, point in kept.items()
        ]
        return Evidence(finalists, goals, EARLY_ALPHA)

    def drop(self, evidence: Evidence | None) -> None:
        """Eliminate those certainly worse than the leader; keep the default, the baseline of all gains."""
        behind = evidence.behind(HOPELESS) if evidence else []
        for finalist in behind:
            variant = self._finalists[finalist.name]
            if evidence is not None and variant in self.running and not finalist.is_default:
                self.running.remove(variant)
                found = evidence.contrast(finalist, evidence.leader)
                less = change_range(found.low, found.high)
                self._history.decide(f"out of the race: {less} against {evidence.leader.name}", finalist.name)


def _is_near(
    history: History, one: Measurement | None, best: Measurement | None, share: float = NEAR
) -> bool:
    (kept, merit), (best_kept, best_merit) = history.merit(one), history.merit(best)
    return kept and best_kept and best_merit - merit <= share
