"""A run as its journal tells it: the one input of every table and report."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
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
        """The run that these records tell; MeasurementError when they do not begin with a run's start."""
        fold = _Fold()
        for record in records:
            fold.take(record)
        return fold.run()


class _Fold:
    def __init__(self) -> None:
        self._started: journal.RunStarted | None = None
        self._server_only: ServerOnly | None = None
        self._configurations: dict[str, list[Configuration]] = {}
        self._measurements: dict[tuple[str, str], list[Measurement]] = {}
        self._failures: dict[tuple[str, str], list[Failure]] = {}
        self._decisions: dict[str, list[Decision]] = {}
        self._unavailable: dict[str, journal.ModelFailed] = {}
        self._preparations: dict[str, list[journal.Prepared]] = {}
        self._fingerprints: dict[str, str] = {}
        self._ended: journal.RunEnded | None = None

    def take(self, record: journal.Record) -> None:
        match record:
            case journal.RunStarted():
                self._started = record
            case journal.ServerMeasured(server=server):
                self._server_only = server
            case journal.Configured(configuration=configuration):
                self._configurations.setdefault(configuration.variant.model, []).append(configuration)
            case journal.Measured(model=model, measurement=measurement):
                self._replace_failure(model, measurement)
                self._measurements.setdefault((model, measurement.variant), []).append(measurement)
            case journal.Failed(model=model, failure=failure):
                self._replace_failure(model, failure)
                self._failures.setdefault((model, failure.variant), []).append(failure)
            case journal.RunEnded():
                self._ended = record
            case journal.RunResumed(retry=retry):
                self._ended = None
                if retry:
                    self._retry()
            case journal.ModelFailed() | journal.ModelRead() | journal.Decided() | journal.Prepared():
                self._take_of_model(record)

    def _take_of_model(
        self, record: journal.ModelFailed | journal.ModelRead | journal.Decided | journal.Prepared
    ) -> None:
        match record:
            case journal.ModelFailed(model=model):
                self._unavailable[model] = record
            case journal.ModelRead(model=model, fingerprint=fingerprint):
                self._fingerprints[model] = fingerprint
            case journal.Decided(model=model, decision=decision):
                self._decisions.setdefault(model, []).append(decision)
            case journal.Prepared(model=model):
                self._preparations.setdefault(model, []).append(record)

    def _retry(self) -> None:
        """What failed is tried again, so the search decides anew and its finalists race anew."""
        self._decisions.clear()
        self._unavailable.clear()
        for key, found in self._measurements.items():
            self._measurements[key] = [m for m in found if not m.round]
        for key, failed in self._failures.items():
            self._failures[key] = [f for f in failed if not f.round]

    def _replace_failure(self, model: str, outcome: Outcome) -> None:
        """A trial that was carried out again is told by its last outcome."""
        failed = self._failures.get((model, outcome.variant), [])
        failed[:] = [f for f in failed if (f.load, f.round) != (outcome.load, outcome.round)]

    def run(self) -> Run:
        if self._started is None:
            raise MeasurementError("the journal does not begin with the start of a run")
        return Run(
            started=self._started,
            models=tuple(self._model(name, self._started) for name in self._started.models),
            server_only=self._server_only,
            outcome=self._ended.outcome if self._ended else "unfinished",
            elapsed_ns=self._ended.elapsed_ns if self._ended else self._measured_ns(),
            reason=self._ended.reason if self._ended else "",
        )

    def _rounds_that_count(self, name: str) -> float:
        """Until which final round: an interrupt in the second leaves some finalists with two repetitions and
        others with one, and what was repeated must not beat what only was not."""
        failed = {
            variant
            for (model, variant), found in self._failures.items()
            if model == name and any(f.round for f in found)
        }
        rounds = [
            sum(1 for m in found if m.round)
            for (model, variant), found in self._measurements.items()
            if model == name and variant not in failed
        ]
        return 1 if 1 in rounds else math.inf

    def _model(self, name: str, started: journal.RunStarted) -> ModelRun:
        last = self._rounds_that_count(name)
        return ModelRun(
            model=name,
            variants=tuple(
                VariantRun(
                    configuration=configuration,
                    measurements=tuple(m for m in self._measured(name, configuration) if not m.round),
                    repetitions=tuple(m for m in self._measured(name, configuration) if 0 < m.round <= last),
                    failures=tuple(self._failures.get((name, configuration.variant.name), ())),
                )
                for configuration in self._configurations.get(name, ())
            ),
            decisions=tuple(self._decisions.get(name, ())),
            unavailable=self._unavailable.get(name),
            preparations=tuple(self._preparations.get(name, ())),
            fingerprint=self._fingerprints.get(name, ""),
            tolerance_percent=started.tolerance_percent,
            final_rounds=started.final_rounds,
        )

    def _measured(self, model: str, configuration: Configuration) -> list[Measurement]:
        return self._measurements.get((model, configuration.variant.name), [])

    def _measured_ns(self) -> int:
        measured = sum(m.duration_ns for found in self._measurements.values() for m in found)
        return measured + sum(f.duration_ns for found in self._failures.values() for f in found)
