"""The constraints of a search one at a time: the model each applies to, its status, and its text for
reports.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tpx.analyzer.objectives import MeasuredMetric, metric, model_of
from tpx.analyzer.results.goals import Constraint, Goals, Standing
from tpx.analyzer.results.measurement import Measurement
from tpx.report.digits import in_unit, rounded


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConstraint:
    """A constraint and the model it applies to."""

    constraint: Constraint
    model: str = ""
    """Model that the constraint applies to, if several are measured together; otherwise empty."""

    def value(self, measurement: Measurement) -> float | None:
        """Return the constrained figure, or None if it was not measured."""
        return metric(self.constraint.tag).value(self._part(measurement))

    def _part(self, measurement: Measurement) -> Measurement:
        return next((m for m in measurement.members if model_of(m) == self.model), measurement)

    def standing(self, measurement: Measurement) -> Standing:
        """Return whether the limit is met; `borderline` if the confidence interval contains it."""
        part, measured = self._part(measurement), metric(self.constraint.tag)
        return self.constraint.standing(measured.value(part), measured.interval(part))

    def __str__(self) -> str:
        """Return `p99 latency of at most 10 ms`, followed by ` for a` if the constraint names a model."""
        measured, word = metric(self.constraint.tag), {"max": "at most", "min": "at least"}
        text = f"{in_words(self.constraint.tag)} of {word[self.constraint.bound]} {self.constraint.limit:g}"
        return f"{text} {measured.unit}".rstrip() + (f" for {self.model}" if self.model else "")

    def miss(self, measurement: Measurement) -> str:
        """Return `p99 latency 12.4 ms, 24% over`, or an empty string if the constraint is satisfied."""
        value = self.value(measurement)
        if self.constraint.satisfied_by(value):
            return ""
        whose = f"{self.model}: " if self.model else ""
        if value is None:
            return f"{whose}{in_words(self.constraint.tag)} not measured"
        side = "over" if self.constraint.bound == "max" else "under"
        percent, measured = self.constraint.failure_percent(value), metric(self.constraint.tag)
        share = f"{percent:.0f}" if percent >= 1 else rounded(percent)
        return f"{whose}{in_words(self.constraint.tag)} {shown(measured, value)}, {share}% {side}"


def limits_of(goals: Goals, model: str) -> tuple[ModelConstraint, ...]:
    """Return the constraints of a model, or of each model in a group that is measured together (`a,b`)."""
    names = model.split(",")
    if len(names) == 1:
        return tuple(ModelConstraint(constraint=c) for c in goals.of(model).constraints)
    return tuple(
        ModelConstraint(constraint=c, model=name) for name in names for c in goals.of(name).constraints
    )


def describe_limits(limits: Sequence[ModelConstraint]) -> str:
    """Return `p99 latency of at most 10 ms and throughput of at least 50 infer/sec`."""
    return " and ".join(map(str, limits))


def describe_misses(measurement: Measurement, limits: Sequence[ModelConstraint]) -> str:
    """Return `p99 latency 12.4 ms, 24% over` for the constraints that the measurement violates."""
    return "; ".join(text for limit in limits if (text := limit.miss(measurement)))


def shown(measured: MeasuredMetric, value: float) -> str:
    """Return a figure with its unit, rounded for display."""
    return in_unit(value, measured.unit.replace("/sec", "/s"))


def in_words(tag: str) -> str:
    """Return a metric's name as it is written within a sentence."""
    name = metric(tag).name
    return name if name[:3].isupper() else name[0].lower() + name[1:].lower()
