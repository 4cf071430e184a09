"""A run reconstructed from its journal, the sole input of every table and report."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from tpx.analyzer.results import journal
from tpx.analyzer.results.measurement import (
    Configuration,
    Decision,
    LoadPoint,
    Measurement,
    Models,
    Outcome,
    ServerOnly,
    Trial,
    TrialFailure,
    Variant,
    group_name,
)
from tpx.analyzer.results.pooled import point_of
from tpx.errors import MeasurementError

RunOutcome = Literal["complete", "interrupted", "unfinished"]
_OfModel = (
    journal.Measured
    | journal.TrialFailed
    | journal.Decided
    | journal.VariantPrepared
    | journal.ModelFailed
    | journal.ModelRead
)


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantRun:
    """One configuration with all its measurements, in order."""

    configuration: Configuration
    measurements: tuple[Measurement, ...]
    """Measurements of the search."""
    failures: tuple[TrialFailure, ...]
    repetitions: tuple[Measurement, ...] = ()
    """Measurements of the final rounds, at the best load that the search found, or at one that misses no
    constraint; at all loads of an only configuration."""

    @property
    def points(self) -> tuple[Measurement, ...]:
        """The figures per load that every report shows: one measurement, or the mean of all that count."""
        counts = Counter(m.load for m in self.repetitions)
        rounds = [m for m in self.repetitions if counts[m.load] > 1]
        loads = dict.fromkeys(m.load for m in (*self.measurements, *rounds))
        return tuple(
            point_of([m for m in self.measurements if m.load == load], [m for m in rounds if m.load == load])
            for load in loads
        )

    @property
    def variant(self) -> Variant:
        return self.configuration.variant


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRun:
    """One model's search."""

    models: Models
    variants: tuple[VariantRun, ...]
    decisions: tuple[Decision, ...]
    unavailable: journal.ModelFailed | None = None
    preparations: tuple[journal.VariantPrepared, ...] = ()
    """Records of how its configurations were loaded, in order."""
    fingerprint: str = ""
    """Fingerprint of its directory in the model repository; empty if the directory was not accessible."""

    @property
    def model(self) -> str:
        """The model's name, or that of the group."""
        return group_name(self.models)

    @property
    def default(self) -> VariantRun | None:
        return next((v for v in self.variants if v.variant.is_default), None)

    @property
    def measured(self) -> tuple[VariantRun, ...]:
        """Configurations with at least one measurement."""
        return tuple(v for v in self.variants if v.measurements)

    @property
    def measurement_count(self) -> int:
        return sum(len(v.measurements) for v in self.variants)

    @property
    def failures(self) -> tuple[TrialFailure, ...]:
        return tuple(f for v in self.variants for f in v.failures)

    @property
    def failure_reason(self) -> str:
        """Reason why there is no measurement."""
        if self.unavailable:
            return self.unavailable.reason
        if self.failures:
            return self.failures[0].reason
        return self.decisions[0].text if self.decisions else "the run ended before the first measurement"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """All results of one `profile`."""

    started: journal.RunStarted
    models: tuple[ModelRun, ...]
    server_only: ServerOnly | None
    outcome: RunOutcome
    elapsed_ns: int
    reason: str = ""
    """Cause of an interruption that the user did not request."""

    @classmethod
    def from_records(cls, records: Iterable[journal.Record]) -> "Run":
        """Return the run in these records. Raises MeasurementError if they do not begin with its start."""
        state = RunRecords(records)
        started = state.started
        if started is None:
            raise MeasurementError("the journal does not begin with the start of a run")
        return cls(
            started=started,
            models=tuple(state.models[group_name(models)].run(models) for models in started.models),
            server_only=state.server,
            outcome=state.ended.outcome if state.ended else "unfinished",
            elapsed_ns=state.elapsed_ns,
            reason=state.ended.reason if state.ended else "",
        )


class RunRecords:
    """The state of a run after its records so far; empty for a new run.

    A search that resumes is deterministic: it asks for the same trials again, and finds them here.
    """

    def __init__(self, records: Iterable[journal.Record] = ()) -> None:
        self.started: journal.RunStarted | None = None
        self.ended: journal.RunEnded | None = None
        self.server: ServerOnly | None = None
        self.retried = False
        """True if failed trials are repeated, which may change the course of the search."""
        self.elapsed_ns = 0
        self.models: defaultdict[str, ModelRecords] = defaultdict(ModelRecords)
        for record in records:
            match record:
                case journal.RunStarted():
                    self.started = record
                case journal.RunEnded():
                    self.ended, self.elapsed_ns = record, record.elapsed_ns
                case journal.ServerMeasured():
                    self.server = record.server
                case journal.RunResumed():
                    self.ended = None
                    if record.retry:
                        self.retry_failed()
                case journal.Configured():
                    own = self.models[record.configuration.variant.model]
                    own.configurations.append(record.configuration)
                case _:
                    self.elapsed_ns += self.models[record.model].take(record)
        self._index_outcomes()

    @property
    def complete(self) -> bool:
        return self.ended is not None and self.ended.outcome == "complete"

    @property
    def failures(self) -> int:
        """Number of failed trials and of models that could not be read."""
        return sum(len(m.failures) + (m.unavailable is not None) for m in self.models.values())

    @property
    def named(self) -> tuple[Variant, ...]:
        """Variants whose names must stay if the search may change course; otherwise it reproduces them."""
        models = self.models.values() if self.retried else ()
        return tuple(each.variant for model in models for each in model.configurations)

    def knows(self, configuration: Configuration) -> bool:
        """Return True if the configuration is in the journal."""
        known = self.models[configuration.variant.model].configurations
        return any(each.variant.name == configuration.variant.name for each in known)

    def outcome(self, trial: Trial) -> Outcome | None:
        """Return an outcome of this trial, once for each time it was carried out, then None."""
        found = self._outcomes.get((trial.variant.name, trial.load, trial.round))
        return found.pop(0) if found else None

    def skips_decision(self, model: str) -> bool:
        """Return True if the journal has the next decision about a model; each call consumes one decision."""
        left = self._decided.get(model, 0)
        self._decided[model] = max(0, left - 1)
        return left > 0

    def retry_failed(self) -> None:
        """Forget the failures, and the final rounds and decisions that depended on them."""
        self.ended, self.retried = None, True
        for model in self.models.values():
            model.retry()
        self._index_outcomes()

    def _index_outcomes(self) -> None:
        self._outcomes: dict[tuple[str, LoadPoint, int], list[Outcome]] = {}
        for model in self.models.values():
            outcomes: tuple[Outcome, ...] = (*model.measurements, *model.failures)
            for outcome in outcomes:
                key = (outcome.variant, outcome.load, outcome.round)
                self._outcomes.setdefault(key, []).append(outcome)
        self._decided = {name: len(model.decisions) for name, model in self.models.items()}


@dataclass(slots=True)
class ModelRecords:
    """The state of one model after its records so far."""

    configurations: list[Configuration] = field(default_factory=list)
    measurements: list[Measurement] = field(default_factory=list)
    failures: list[TrialFailure] = field(default_factory=list)
    outdated: list[TrialFailure] = field(default_factory=list)
    """Failures of the search that will be repeated."""
    decisions: list[Decision] = field(default_factory=list)
    preparations: list[journal.VariantPrepared] = field(default_factory=list)
    unavailable: journal.ModelFailed | None = None
    read: journal.ModelRead | None = None

    def take(self, record: _OfModel) -> int:
        """Add a record; return the duration of its trial in ns, 0 for other records."""
        match record:
            case journal.Measured(measurement=measurement):
                self._replace_failure(measurement)
                self.measurements.append(measurement)
                return measurement.duration_ns
            case journal.TrialFailed(failure=failure):
                self._replace_failure(failure)
                self.failures.append(failure)
                return failure.duration_ns
            case journal.Decided(decision=decision):
                self.decisions.append(decision)
            case journal.VariantPrepared():
                self.preparations.append(record)
            case journal.ModelFailed():
                self.unavailable = record
            case journal.ModelRead():
                self.read = record
        return 0

    def _replace_failure(self, outcome: Outcome) -> None:
        """Remove the failure of a trial that was repeated, since its last outcome counts."""
        again = (outcome.variant, outcome.load, outcome.round)
        for failures in (self.failures, self.outdated):
            failures[:] = [f for f in failures if (f.variant, f.load, f.round) != again]

    def retry(self) -> None:
        """Discard decisions and final rounds; failures stay until they are repeated."""
        self.decisions, self.unavailable = [], None
        self.measurements = [m for m in self.measurements if not m.round]
        self.outdated += [f for f in self.failures if not f.round]
        self.failures = []

    def run(self, models: Models) -> ModelRun:
        # an interrupt may leave some finalists, or loads of an only configuration, with two repetitions and
        # others with one: then only the first counts, so that the ranking does not favor those with two
        failed = {f.variant for f in self.failures if f.round}
        alone = len({m.variant for m in self.measurements}) == 1
        repeated = [m for m in self.measurements if m.round and m.variant not in failed]
        rounds = Counter((m.variant, m.load if alone else None) for m in repeated)
        last = 1 if 1 in rounds.values() else math.inf
        failures = (*self.outdated, *self.failures)
        own: defaultdict[str, list[Measurement]] = defaultdict(list)
        for measurement in self.measurements:
            own[measurement.variant].append(measurement)
        return ModelRun(
            models=models,
            variants=tuple(
                VariantRun(
                    configuration=each,
                    measurements=tuple(m for m in own[each.variant.name] if not m.round),
                    repetitions=tuple(m for m in own[each.variant.name] if 0 < m.round <= last),
                    failures=tuple(f for f in failures if f.variant == each.variant.name),
                )
                for each in self.configurations
            ),
            decisions=tuple(self.decisions),
            unavailable=self.unavailable,
            preparations=tuple(self.preparations),
            fingerprint=self.read.fingerprint if self.read else "",
        )
