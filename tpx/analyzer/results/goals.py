"""What a run is asked for: objectives to improve and constraints to keep, by metric tag."""

from dataclasses import dataclass
from typing import Literal

from tpx.errors import UsageError

Bound = Literal["min", "max"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """A metric to improve, with its weight among the others."""

    tag: str
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """A metric's bound; a value equal to it passes. `limit` is in the metric's own unit."""

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

    def failure_percent(self, value: float | None) -> float:
        """By how much `value` misses the limit, in percent of the limit; 0 when it passes."""
        if self.satisfied_by(value):
            return 0.0
        if value is None:
            return float("inf")
        return abs(value - self.limit) / self.limit * 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Goals:
    """Objectives and constraints of one run; without objectives it is throughput that counts."""

    objectives: tuple[Objective, ...] = (Objective(tag="perf_throughput"),)
    constraints: tuple[Constraint, ...] = ()
