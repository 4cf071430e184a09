"""Decide which measurement is better: scores, constraints and their texts, and the ranking of configurations.

Scores are sums of logarithms, so that A over B and B over C add up to A over C; for one objective the
order is Model Analyzer's.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tpx.analyzer.metrics import in_words, metric, shown
from tpx.analyzer.results.goals import Constraint, Goals
from tpx.analyzer.results.measurement import Measurement, Models
from tpx.analyzer.results.pooled import Mean, repeated
from tpx.perf.objectives import Compliance
from tpx.report.digits import rounded

if TYPE_CHECKING:
    from tpx.analyzer.results.run import ModelRun, VariantRun


LEAST = {"ms": 1e-3, "%": 0.1}
"""Floor of a figure by unit: queue times below 1 us compare as equal, as do utilizations below 0.1%."""


def score(measurement: Measurement, goals: Goals) -> float:
    """Return the score of a measurement; higher is better.

    The difference of two scores is the logarithm of how many times better one is. Weights are relative,
    both among objectives and among models measured together. A measurement that lacks an objective's
    figure ranks below all that have it.
    """
    if measurement.members:
        weights = [goals.weight_of(model_of(member)) for member in measurement.members]
        scores = [score(member, own) for member, own in _split_by_model(measurement, goals)]
        return sum(w * s for w, s in zip(weights, scores, strict=True)) / sum(weights)
    total = 0.0
    for objective in goals.objectives:
        measured = metric(objective.tag)
        value = measured.value(measurement)
        if value is None:
            return -math.inf
        value = max(value, LEAST.get(measured.unit, 1e-9))
        total += objective.weight * math.log(value) * (1 if measured.better == "higher" else -1)
    return total / sum(objective.weight for objective in goals.objectives)


def window_scores(measurement: Measurement, goals: Goals) -> list[float]:
    """Return the score of each window of a measurement; its own score if its windows are unknown.

    Figures that are not known by window, such as memory, are those of the measurement.
    """
    members = measurement.members
    count = min((len(member.windows) for member in members), default=len(measurement.windows))
    parts = (
        replace(measurement, members=tuple(_cut_window(member, number) for member in members))
        if members
        else _cut_window(measurement, number)
        for number in range(count)
    )
    return [score(part, goals) for part in parts] or [score(measurement, goals)]


def _cut_window(measurement: Measurement, number: int) -> Measurement:
    window, result = measurement.windows[number], measurement.result
    result = replace(result, throughput_infer_per_s=window.throughput_infer_per_s, latency=window.latency)
    return replace(measurement, result=result)


def unmeasured(measurement: Measurement, goals: Goals) -> tuple[str, ...]:
    """Return the tags of objectives that were not measured, which leaves the measurement without a score."""
    lacking = (
        objective.tag
        for part, own in _split_by_model(measurement, goals)
        for objective in own.objectives
        if metric(objective.tag).value(part) is None
    )
    return tuple(dict.fromkeys(lacking))


def gain_percent(measurement: Measurement, baseline: Measurement, goals: Goals) -> float | None:
    """Return the gain of the first over the second on the objectives, in percent; None without a figure."""
    difference = score(measurement, goals) - score(baseline, goals)
    return math.expm1(difference) * 100 if math.isfinite(difference) else None


def failure_percent(measurement: Measurement, goals: Goals) -> float:
    """Return by how many percent all constraints, of every model, are missed in total; 0 if none is."""
    return sum(
        constraint.failure_percent(metric(constraint.tag).value(part))
        for part, own in _split_by_model(measurement, goals)
        for constraint in own.constraints
    )


def satisfies(measurement: Measurement, goals: Goals) -> bool:
    """Return True if the measurement satisfies every constraint."""
    return failure_percent(measurement, goals) == 0


def compliance_of(measurement: Measurement, goals: Goals) -> Compliance:
    """Return the compliance with all constraints, which is that of the worst."""
    found = set()
    for part, own in _split_by_model(measurement, goals):
        for constraint in own.constraints:
            measured = metric(constraint.tag)
            found.add(constraint.compliance(measured.value(part), measured.interval(part)))
    worst = (Compliance.VIOLATED, Compliance.UNDECIDED)
    return next((each for each in worst if each in found), Compliance.MET)


def _split_by_model(measurement: Measurement, goals: Goals) -> list[tuple[Measurement, Goals]]:
    """Return the measurements judged separately, each with its goals: one per model measured together."""
    members = [(member, goals.of(model_of(member))) for member in measurement.members]
    return members or [(measurement, goals)]


def model_of(member: Measurement) -> str:
    """Return the model's name from its variant's, `MODEL_config_N`; it may contain `_config_` itself."""
    return member.variant.rpartition("_config_")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedVariant:
    """A configuration with its measurements under each load, those within the constraints first."""

    run: "VariantRun"
    passing: tuple[Measurement, ...]
    failing: tuple[Measurement, ...]
    figures: Measurement
    """Mean of its final rounds if it satisfies the constraints, or the best that does, or the closest."""
    satisfies: bool
    """True if the figures satisfy the constraints at face value; `compliance` adds the uncertainty."""
    compliance: Compliance

    @property
    def name(self) -> str:
        return self.run.variant.name

    @property
    def ordered(self) -> tuple[Measurement, ...]:
        return self.passing + self.failing

    @property
    def by_load(self) -> tuple[Measurement, ...]:
        """Return the measurements by batch size, then by load: the order of every table's rows."""
        return tuple(sorted(self.ordered, key=lambda m: (m.load.batch_size, m.load.value)))

    @property
    def settled(self) -> Mean | None:
        """The figures if they are the mean of final rounds, else None."""
        return self.figures if repeated(self.figures) else None

    @property
    def rounds(self) -> frozenset[int]:
        """Numbers of the final rounds under the load of the figures."""
        return frozenset(m.round for m in self.run.repetitions if m.load == self.figures.load)


def rank(model: "ModelRun", goals: Goals) -> tuple[RankedVariant, ...]:
    """Return the measured configurations from best to worst; ties keep the order of the search.

    Configurations that satisfy the constraints come first, by score; the others follow by how little
    they miss. Remeasured configurations rank above those that were not, except a better default: the best
    of many single measurements is biased upward.
    """
    goals = goals.of(*model.models)
    ranked = [_rank_points(variant, goals) for variant in model.measured]
    passing = [r for r in ranked if r.satisfies]
    failing = [r for r in ranked if not r.satisfies]
    finalists = [score(r.figures, goals) for r in passing if r.settled and not r.run.variant.is_default]

    def place(ranked: RankedVariant) -> tuple[bool, bool, float]:
        own, default = score(ranked.figures, goals), ranked.run.variant.is_default
        # the default is always remeasured: below all other finalists, its figures alone rank it
        final = ranked.settled is not None
        if default and finalists and ranked.run.repetitions:
            final = own >= min(finalists) if final else own > max(finalists)
        return not final, ranked.compliance is not Compliance.MET, -own

    passing.sort(key=place)
    failing.sort(key=lambda r: failure_percent(r.figures, goals))
    return tuple(passing + failing)


def _rank_points(variant: "VariantRun", goals: Goals) -> RankedVariant:
    passing = [m for m in variant.points if satisfies(m, goals)]
    failing = [m for m in variant.points if not satisfies(m, goals)]
    passing.sort(
        key=lambda m: (not repeated(m), compliance_of(m, goals) is not Compliance.MET, -score(m, goals))
    )
    failing.sort(key=lambda m: (not repeated(m), failure_percent(m, goals)))
    figures = (*passing, *failing)[0]
    return RankedVariant(
        run=variant,
        passing=tuple(passing),
        failing=tuple(failing),
        figures=figures,
        satisfies=satisfies(figures, goals),
        compliance=compliance_of(figures, goals),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConstraint:
    """A constraint and the model it applies to."""

    constraint: Constraint
    model: str = ""
    """Model that the constraint applies to, if several are measured together; otherwise empty."""

    def value(self, measurement: Measurement) -> float | None:
        """Return the constrained figure, or None if it was not measured."""
        return metric(self.constraint.tag).value(self._select_member(measurement))

    def _select_member(self, measurement: Measurement) -> Measurement:
        return next((m for m in measurement.members if model_of(m) == self.model), measurement)

    def compliance(self, measurement: Measurement) -> Compliance:
        """Return whether the limit is met; undecided if the confidence interval contains it."""
        part, measured = self._select_member(measurement), metric(self.constraint.tag)
        return self.constraint.compliance(measured.value(part), measured.interval(part))

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


def limits_of(goals: Goals, models: Models) -> tuple[ModelConstraint, ...]:
    """Return the constraints of a model, or of each of several that are measured together."""
    return tuple(
        ModelConstraint(constraint=c, model=name if len(models) > 1 else "")
        for name in models
        for c in goals.of(name).constraints
    )


def describe_limits(limits: Sequence[ModelConstraint]) -> str:
    """Return `p99 latency of at most 10 ms and throughput of at least 50 infer/sec`."""
    return " and ".join(map(str, limits))


def describe_misses(measurement: Measurement, limits: Sequence[ModelConstraint]) -> str:
    """Return `p99 latency 12.4 ms, 24% over` for the constraints that the measurement violates."""
    return "; ".join(text for limit in limits if (text := limit.miss(measurement)))
