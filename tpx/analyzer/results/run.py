"""A run as its journal tells it: the one input of every table and report."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from tpx.analyzer.results import journal
from tpx.analyzer.results.measurement import (
    Configuration,
    Decision,
    Failure,
    Measurement,
    Outcome,
    ServerOnly,
    Variant,
)
from tpx.analyzer.results.pooled import point_of
from tpx.errors import MeasurementError

RunOutcome = Literal["complete", "interrupted", "unfinished"]
_OfModel = (
    journal.Measured
    | journal.Failed
    | journal.Decided
    | journal.Prepared
    | journal.ModelFailed
    | journal.ModelRead
)


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantRun:
    """One configuration with everything measured under it, in the order it was measured."""

    configuration: Configuration
    measurements: tuple[Measurement, ...]
    """Of the search."""
    failures: tuple[Failure, ...]
    repetitions: tuple[Measurement, ...] = ()
    """Of the final rounds, all at the load that the search found best."""

    @property
    def points(self) -> tuple[Measurement, ...]:
        """The figures of this configuration under each of its loads: one measurement, or the mean of all
        that count. Every report shows these and no others."""
        rounds = self.repetitions if len(self.repetitions) > 1 else ()
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

    model: str
    variants: tuple[VariantRun, ...]
    decisions: tuple[Decision, ...]
    unavailable: journal.ModelFailed | None = None
    preparations: tuple[journal.Prepared, ...] = ()
    """How its configurations came onto servers, in order."""
    fingerprint: str = ""
    """Of its directory in the model repository; empty where that was not at hand."""
    tolerance_percent: float = 10.0
    """By how much the windows of one stable measurement may differ."""
    final_rounds: int = 0
    """In how many its finalists were to be measured again, at most."""

    @property
    def default(self) -> VariantRun | None:
        return next((v for v in self.variants if v.variant.is_default), None)

    @property
    def measured(self) -> tuple[VariantRun, ...]:
        """The configurations with at least one measurement."""
        return tuple(v for v in self.variants if v.measurements)

    @property
    def measurement_count(self) -> int:
        return sum(len(v.measurements) for v in self.variants)

    @property
    def failures(self) -> tuple[Failure, ...]:
        return tuple(f for v in self.variants for f in v.failures)

    @property
    def why_nothing(self) -> str:
        """Why there is no measurement."""
        if self.unavailable:
            return self.unavailable.reason
        if self.failures:
            return self.failures[0].reason
        return self.decisions[0].text if self.decisions else "the run ended before the first measurement"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Everything one `profile` found."""

    started: journal.RunStarted
    models: tuple[ModelRun, ...]
    server_only: ServerOnly | None
    outcome: RunOutcome
    elapsed_ns: int
    reason: str = ""
    """What interrupted the run, where nobody asked for that."""

    @classmethod
    def from_records(cls, records: Iterable[journal.Record]) -> "Run":
        """Return the run that these records tell; MeasurementError when they do not begin with its start."""
        started, ended, server = None, None, None
        told: dict[str, _Told] = defaultdict(_Told)
        for record in records:
            match record:
                case journal.RunStarted():
                    started = record
                case journal.RunEnded():
                    ended = record
                case journal.ServerMeasured():
                    server = record.server
                case journal.RunResumed():
                    ended = None
                    for model in told.values() if record.retry else ():
                        model.retry()
                case journal.Configured():
                    told[record.configuration.variant.model].configurations.append(record.configuration)
                case _:
                    told[record.model].take(record)
        if started is None:
            raise MeasurementError("the journal does not begin with the start of a run")
        measured_ns = sum(model.duration_ns for model in told.values())
        return cls(
            started=started,
            models=tuple(told[name].model(name, started) for name in started.models),
            server_only=server,
            outcome=ended.outcome if ended else "unfinished",
            elapsed_ns=ended.elapsed_ns if ended else measured_ns,
            reason=ended.reason if ended else "",
        )


@dataclass(slots=True)
class _Told:
    """The state of one model, as its records so far tell it."""

    configurations: list[Configuration] = field(default_factory=list)
    measurements: list[Measurement] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    preparations: list[journal.Prepared] = field(default_factory=list)
    unavailable: journal.ModelFailed | None = None
    fingerprint: str = ""

    @property
    def duration_ns(self) -> int:
        return sum(m.duration_ns for m in self.measurements) + sum(f.duration_ns for f in self.failures)

    def take(self, record: _OfModel) -> None:
        match record:
            case journal.Measured(measurement=measurement):
                self._replace_failure(measurement)
                self.measurements.append(measurement)
            case journal.Failed(failure=failure):
                self._replace_failure(failure)
                self.failures.append(failure)
            case journal.Decided(decision=decision):
                self.decisions.append(decision)
            case journal.Prepared():
                self.preparations.append(record)
            case journal.ModelFailed():
                self.unavailable = record
            case journal.ModelRead(fingerprint=fingerprint):
                self.fingerprint = fingerprint

    def _replace_failure(self, outcome: Outcome) -> None:
        """A trial that was carried out again is told by its last outcome."""
        again = (outcome.variant, outcome.load, outcome.round)
        self.failures = [f for f in self.failures if (f.variant, f.load, f.round) != again]

    def retry(self) -> None:
        """Try again what failed: the search decides anew and its finalists race anew."""
        self.decisions, self.unavailable = [], None
        self.measurements = [m for m in self.measurements if not m.round]
        self.failures = [f for f in self.failures if not f.round]

    def model(self, name: str, started: journal.RunStarted) -> ModelRun:
        last = self._last_round()
        return ModelRun(
            model=name,
            variants=tuple(self._variant(configuration, last) for configuration in self.configurations),
            decisions=tuple(self.decisions),
            unavailable=self.unavailable,
            preparations=tuple(self.preparations),
            fingerprint=self.fingerprint,
            tolerance_percent=started.tolerance_percent,
            final_rounds=started.final_rounds,
        )

    def _variant(self, configuration: Configuration, last: float) -> VariantRun:
        own = [m for m in self.measurements if m.variant == configuration.variant.name]
        return VariantRun(
            configuration=configuration,
            measurements=tuple(m for m in own if not m.round),
            repetitions=tuple(m for m in own if 0 < m.round <= last),
            failures=tuple(f for f in self.failures if f.variant == configuration.variant.name),
        )

    def _last_round(self) -> float:
        """Return the final round that counts as the last: an interrupt in the second leaves some finalists
        with two repetitions and others with one, and what was repeated must not beat what only was not."""
        failed = {f.variant for f in self.failures if f.round}
        rounds = Counter(m.variant for m in self.measurements if m.round and m.variant not in failed)
        return 1 if 1 in rounds.values() else math.inf
