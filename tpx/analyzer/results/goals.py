"""Goals of a run, by metric tag: objectives to improve and constraints to satisfy."""

from dataclasses import dataclass
from typing import Literal

from tpx.errors import UsageError
from tpx.perf.objectives import Compliance, compliance
from tpx.perf.statistics.intervals import Interval

Bound = Literal["min", "max"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedObjective:
    """A metric to improve, with its weight relative to the others."""

    tag: str
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """A bound on a metric; a value equal to it satisfies it. `limit` is in the metric's own unit."""

    tag: str
    bound: Bound
    limit: float

    def __post_init__(self) -> None:
        if not self.limit > 0:
            raise UsageError(f"the {self.bound} of {self.tag} must be above 0, not {self.limit:g}")

    def satisfied_by(self, value: float | None) -> bool:
        if value is None:
            return False
        return value <= self.limit if self.bound == "max" else value >= self.limit

    def compliance(self, value: float | None, interval: Interval | None) -> Compliance:
        """Return whether a figure satisfies the limit; without an interval it counts as exact."""
        if value is None:
            return Compliance.VIOLATED
        low, high = (value, value) if interval is None else (interval.low, interval.high)
        return compliance(self.satisfied_by, low, high)

    def failure_percent(self, value: float | None) -> float:
        """Return by how much `value` misses the limit, in percent of the limit; 0 if it satisfies it."""
        if self.satisfied_by(value):
            return 0.0
        if value is None:
            return float("inf")
        return abs(value - self.limit) / self.limit * 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelGoals:
    """Goals of one model; None uses those of the whole run."""

    model: str
    weight: float = 1.0
    """Weight relative to the other models that are measured together."""
    objectives: tuple[WeightedObjective, ...] | None = None
    constraints: tuple[Constraint, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Goals:
    """Objectives and constraints of one run; the default objective is throughput."""

    objectives: tuple[WeightedObjective, ...] = (WeightedObjective(tag="perf_throughput"),)
    constraints: tuple[Constraint, ...] = ()
    models: tuple[ModelGoals, ...] = ()
    """Goals of the models that have their own."""

    @property
    def all_objectives(self) -> tuple[WeightedObjective, ...]:
        """All objectives, including those of single models."""
        return self.objectives + tuple(o for own in self.models for o in own.objectives or ())

    @property
    def all_constraints(self) -> tuple[Constraint, ...]:
        """All constraints, including those of single models."""
        return self.constraints + tuple(c for own in self.models for c in own.constraints or ())

    def of(self, *models: str) -> "Goals":
        """Return the goals of one model; for several measured together, these goals unchanged."""
        if len(models) > 1:
            return self
        own = self._find_goals(*models)
        return Goals(
            objectives=self.objectives if own.objectives is None else own.objectives,
            constraints=self.constraints if own.constraints is None else own.constraints,
        )

    def weight_of(self, model: str) -> float:
        """Return a model's weight among those measured together."""
        return self._find_goals(model).weight

    def _find_goals(self, model: str) -> ModelGoals:
        return next((own for own in self.models if own.model == model), ModelGoals(model=model))
