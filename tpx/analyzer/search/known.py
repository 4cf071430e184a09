"""What a search has been told so far: nothing is measured twice while searching, and budgets are kept."""

import math
from collections.abc import Generator
from typing import TypeVar

from tpx.analyzer.objectives import failure_percent, satisfies, score
from tpx.analyzer.results.goals import Goals
from tpx.analyzer.results.measurement import Load, Measurement, Outcome, Trial, Variant
from tpx.analyzer.search.base import Limits

Merit = tuple[bool, float]
"""Whether the constraints hold, and the score; without them, how near they are."""
T = TypeVar("T")
Asking = Generator[Trial, Outcome, T]


class BudgetSpent(Exception):
    """Ends a search from wherever it is; caught where its steps begin."""


class Known:
    """Every outcome by its trial, judged by the goals of the run."""

    def __init__(self, goals: Goals, limits: Limits | None = None) -> None:
        self.goals = goals
        self._limits = limits or Limits()
        self._outcomes: dict[str, dict[Load, Outcome]] = {}
        self._variants: dict[str, Variant] = {}
        self.measurements = 0
        """Trials carried out, those that failed among them."""
        self.spent_ns = 0
        self.reserved = 0
        """Measurements that are kept back from the search for what comes after it, a third of all at most."""

    def through(self, steps: Asking[T], *, thrifty: bool = True) -> Asking[T]:
        """These steps, without the trials whose outcome is known.

        Raises BudgetSpent in place of one that the budget does not have, unless the steps mind it themselves.
        """
        try:
            trial = next(steps)
            while True:
                outcome = self._outcomes.get(trial.variant.name, {}).get(trial.load)
                if outcome is None or trial.round:
                    if thrifty and self.left < 1:
                        raise BudgetSpent
                    outcome = yield trial
                    self._take(trial, outcome)
                trial = steps.send(outcome)
        except StopIteration as end:
            value: T = end.value
            return value

    @property
    def variants(self) -> tuple[Variant, ...]:
        """Those that were tried, in their order."""
        return tuple(self._variants.values())

    def of(self, variant: str) -> list[Measurement]:
        """The measurements of a variant while searching, in their order."""
        return [
            outcome
            for outcome in self._outcomes.get(variant, {}).values()
            if isinstance(outcome, Measurement) and outcome.throughput > 0
        ]

    def best(self, variant: str) -> Measurement | None:
        """The best measurement of a variant: by its score where the constraints hold, else the nearest to
        holding them."""
        return max(self.of(variant), key=self.merit, default=None)

    def merit(self, measurement: Measurement | None) -> Merit:
        """Sorts what satisfies the constraints after what does not, and the better last."""
        if measurement is None:
            return False, -math.inf
        if satisfies(measurement, self.goals):
            return True, score(measurement, self.goals)
        return False, -failure_percent(measurement, self.goals)

    def ranked(self) -> list[Variant]:
        """The variants that gave a measurement, the best first; equals keep their order."""
        found = [v for v in self._variants.values() if self.best(v.name) is not None]
        return sorted(found, key=lambda v: self.merit(self.best(v.name)), reverse=True)

    @property
    def left(self) -> float:
        """Measurements that the search may still make, by number and by their mean cost."""
        total = math.inf
        if self._limits.max_measurements is not None:
            total = self._limits.max_measurements
        if self._limits.budget_ns is not None and self.spent_ns:
            total = min(total, self._limits.budget_ns * self.measurements / self.spent_ns)
        return total - self.measurements - min(self.reserved, total // 3 if math.isfinite(total) else 0)

    def _take(self, trial: Trial, outcome: Outcome) -> None:
        self.measurements += 1
        self.spent_ns += max(outcome.cost_ns, outcome.duration_ns)
        if not trial.round:
            self._variants.setdefault(trial.variant.name, trial.variant)
            self._outcomes.setdefault(trial.variant.name, {})[trial.load] = outcome
