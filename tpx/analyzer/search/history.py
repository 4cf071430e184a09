"""The history of a search: outcomes by trial, their merit under the goals, their cost, and the decision
trace.
"""

import math
from collections.abc import Generator
from typing import TypeVar

from tpx.analyzer.objectives import failure_percent, satisfies, score
from tpx.analyzer.results.goals import Goals
from tpx.analyzer.results.measurement import Decision, LoadPoint, Measurement, Outcome, Trial, Variant
from tpx.analyzer.search.spec import Limits

Merit = tuple[bool, float]
"""True and the score if the constraints are satisfied; else False and the negative shortfall in percent."""
REPETITION_COST = 3
"""Assumed cost of a measurement in a final round, in measurements of the search: it has three windows."""
T = TypeVar("T")
Asking = Generator[Trial, Outcome, T]
"""A generator that yields trials and receives their outcomes."""
Steps = Asking[None]
"""A running strategy."""


class History:
    """Every outcome by its trial; strategies read it and add decisions, the driver adds outcomes."""

    def __init__(self, goals: Goals, limits: Limits | None = None) -> None:
        self.goals = goals
        self.limits = limits or Limits()
        self.decisions: list[Decision] = []
        """Decisions so far, with reasons: what was skipped or stopped; append-only."""
        self.left_out: list[Decision] = []
        """Decisions that leave out something the user asked for."""
        self.space_size = 0
        """Number of configurations that the strategy may try."""
        self.reserved = 0
        """Measurements reserved for the final rounds; a part of the budget limits them."""
        self.spent = False
        """True if the budget ended the search."""
        self.measurements = 0
        """Trials carried out, including failed ones."""
        self._spent_ns = 0
        self._repetitions = 0
        self._repetitions_ns = 0
        self._outcomes: dict[str, dict[LoadPoint, Outcome]] = {}
        self._variants: dict[str, Variant] = {}
        self._merits: dict[int, Merit] = {}
        """By the identity of each measurement above: a search compares it with all others at every step."""
        self._best: dict[tuple[str, tuple[int, ...]], Measurement] = {}
        """By variant and client batch sizes; those of each variant in all under no sizes."""

    def decide(self, text: str, variant: str = "") -> None:
        """Add a line to the search trace."""
        self.decisions.append(Decision(variant=variant, text=text))

    def leave_out(self, text: str, variant: str) -> None:
        """Add a line on something that was asked for and cannot be measured."""
        self.decide(text, variant)
        self.left_out.append(self.decisions[-1])

    def take(self, trial: Trial, outcome: Outcome) -> None:
        """Record an outcome; those of final rounds count only toward the cost."""
        self.measurements += 1
        cost_ns = max(outcome.cost_ns, outcome.duration_ns)
        self._spent_ns += cost_ns
        if trial.round:
            self._repetitions += 1
            self._repetitions_ns += cost_ns
        else:
            self._variants.setdefault(trial.variant.name, trial.variant)
            self._outcomes.setdefault(trial.variant.name, {})[trial.load] = outcome
            if isinstance(outcome, Measurement) and outcome.throughput > 0:
                self._rate(trial.variant.name, outcome)

    def _rate(self, variant: str, measurement: Measurement) -> None:
        merit = self._merits[id(measurement)] = self.merit(measurement)
        for key in ((variant, ()), (variant, measurement.load.batch_sizes)):
            best = self._best.get(key)
            if best is None or merit > self.merit(best):
                self._best[key] = measurement

    def outcome(self, trial: Trial) -> Outcome | None:
        """Return the outcome of a search trial; None if it is new or belongs to a final round."""
        return None if trial.round else self._outcomes.get(trial.variant.name, {}).get(trial.load)

    @property
    def variants(self) -> tuple[Variant, ...]:
        """Variants tried, in order."""
        return tuple(self._variants.values())

    @property
    def configurations_at_most(self) -> int:
        """Number of configurations in the space, or that the budget allows if that is less."""
        affordable = len(self._variants) + self.left
        return int(min(self.space_size, affordable)) if math.isfinite(affordable) else self.space_size

    def of(self, variant: str) -> list[Measurement]:
        """Return the search's measurements of a variant, in order."""
        return [
            outcome
            for outcome in self._outcomes.get(variant, {}).values()
            if isinstance(outcome, Measurement) and outcome.throughput > 0
        ]

    def best(self, variant: str, batch_sizes: tuple[int, ...] = ()) -> Measurement | None:
        """Return a variant's best measurement: by score within the constraints, else the closest.

        With `batch_sizes`, only measurements with these client batches count.
        """
        return self._best.get((variant, batch_sizes))

    def merit(self, measurement: Measurement | None) -> Merit:
        """Return a sort key: measurements within the constraints rank above all others, then by score."""
        if measurement is None:
            return False, -math.inf
        known = self._merits.get(id(measurement))
        if known is not None:
            return known
        if satisfies(measurement, self.goals):
            return True, score(measurement, self.goals)
        return False, -failure_percent(measurement, self.goals)

    def ranked(self) -> list[Variant]:
        """Return the variants with a measurement, best first; ties keep their order."""
        found = [v for v in self._variants.values() if self.best(v.name) is not None]
        return sorted(found, key=lambda v: self.merit(self.best(v.name)), reverse=True)

    @property
    def left(self) -> float:
        """Measurements that the search may still make, by their number and by their mean cost."""
        most, budget, left = self.limits.max_measurements, self.limits.budget, math.inf
        if most is not None:
            left = most - self.measurements - min(self.reserved, most // 3)
        if budget is not None and self._spent_ns:
            total = budget * 1e9 * self.measurements / self._spent_ns
            # two rounds of two finalists, without which nothing is decided, and one measurement to spare
            least = REPETITION_COST * 5
            reserve = min(REPETITION_COST * self.reserved, max(total / 3, least), total * 0.6)
            left = min(left, total - self.measurements - reserve)
        return left

    @property
    def repetitions_left(self) -> float:
        """Measurements of final rounds that the budget allows, by their number and by their mean cost."""
        most, budget, left = self.limits.max_measurements, self.limits.budget, math.inf
        if most is not None:
            left = most - self.measurements
        if budget is not None and self._spent_ns:
            each_ns = REPETITION_COST * self._spent_ns / self.measurements
            if self._repetitions:
                each_ns = self._repetitions_ns / self._repetitions
            left = min(left, (budget * 1e9 - self._spent_ns) / each_ns)
        return left
