"""The history of a search: outcomes by trial, judged by the goals, their cost, and the trace of decisions."""

import math
from collections.abc import Generator
from typing import TypeVar

from tpx.analyzer.objectives import failure_percent, satisfies, score
from tpx.analyzer.results.goals import Goals
from tpx.analyzer.results.measurement import Decision, LoadPoint, Measurement, Outcome, Trial, Variant
from tpx.analyzer.search.spec import Limits

Merit = tuple[bool, float]
"""Return whether the constraints hold, and the score; without them, how near they are."""
T = TypeVar("T")
Asking = Generator[Trial, Outcome, T]
"""Yields trials and is sent their outcomes."""
Steps = Asking[None]
"""A strategy at work."""


class History:
    """Every outcome by its trial; strategies read it and add decisions, the driver adds outcomes."""

    def __init__(self, goals: Goals, limits: Limits | None = None) -> None:
        self.goals = goals
        self.limits = limits or Limits()
        self.decisions: list[Decision] = []
        """Decisions so far: what was left out or stopped, and why; only ever appended to."""
        self.space_size = 0
        """Configurations that the strategy may try."""
        self.reserved = 0
        """Measurements that are kept back from the search for what comes after it, a third of all at most."""
        self.measurements = 0
        """Trials carried out, those that failed among them."""
        self._spent_ns = 0
        self._outcomes: dict[str, dict[LoadPoint, Outcome]] = {}
        self._variants: dict[str, Variant] = {}

    def decide(self, text: str, variant: str = "") -> None:
        """Add a line to the search trace."""
        self.decisions.append(Decision(variant=variant, text=text))

    def take(self, trial: Trial, outcome: Outcome) -> None:
        """Record an outcome; those of final rounds only by what they cost."""
        self.measurements += 1
        self._spent_ns += max(outcome.cost_ns, outcome.duration_ns)
        if not trial.round:
            self._variants.setdefault(trial.variant.name, trial.variant)
            self._outcomes.setdefault(trial.variant.name, {})[trial.load] = outcome

    def outcome(self, trial: Trial) -> Outcome | None:
        """Return what a trial of the search showed, None where it is new or belongs to a final round."""
        return None if trial.round else self._outcomes.get(trial.variant.name, {}).get(trial.load)

    @property
    def variants(self) -> tuple[Variant, ...]:
        """Variants that were tried, in their order."""
        return tuple(self._variants.values())

    @property
    def configurations_at_most(self) -> int:
        """Configurations of the space, or fewer where the budget has no more."""
        affordable = len(self._variants) + self.left
        return int(min(self.space_size, affordable)) if math.isfinite(affordable) else self.space_size

    def of(self, variant: str) -> list[Measurement]:
        """Return the measurements of a variant while searching, in their order."""
        return [
            outcome
            for outcome in self._outcomes.get(variant, {}).values()
            if isinstance(outcome, Measurement) and outcome.throughput > 0
        ]

    def best(self, variant: str) -> Measurement | None:
        """Return the best measurement of a variant: by its score where the constraints hold, else the nearest
        to holding them."""
        return max(self.of(variant), key=self.merit, default=None)

    def merit(self, measurement: Measurement | None) -> Merit:
        """Sort what satisfies the constraints after what does not, and the better last."""
        if measurement is None:
            return False, -math.inf
        if satisfies(measurement, self.goals):
            return True, score(measurement, self.goals)
        return False, -failure_percent(measurement, self.goals)

    def ranked(self) -> list[Variant]:
        """Return the variants that gave a measurement, the best first; equals keep their order."""
        found = [v for v in self._variants.values() if self.best(v.name) is not None]
        return sorted(found, key=lambda v: self.merit(self.best(v.name)), reverse=True)

    @property
    def left(self) -> float:
        """Measurements that the search may still make, by number and by their mean cost."""
        total = math.inf
        if self.limits.max_measurements is not None:
            total = self.limits.max_measurements
        if self.limits.budget is not None and self._spent_ns:
            total = min(total, self.limits.budget * 1e9 * self.measurements / self._spent_ns)
        return total - self.measurements - min(self.reserved, total // 3 if math.isfinite(total) else 0)
