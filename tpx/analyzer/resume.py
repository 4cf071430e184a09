"""Results that an interrupted run has left in its journal, so that the same search over again measures only
what is new."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from tpx.analyzer.results.journal import (
    Configured,
    Decided,
    Failed,
    Measured,
    ModelFailed,
    ModelRead,
    Record,
    RunEnded,
    RunResumed,
    RunStarted,
    ServerMeasured,
)
from tpx.analyzer.results.measurement import (
    Configuration,
    Failure,
    Measurement,
    Outcome,
    Trial,
    Variant,
)
from tpx.errors import UsageError

FREE_TO_DIFFER = frozenset(
    {
        "resume",
        "quiet",
        "verbose",
        "html",
        "pdf",
        "markdown",
        "json",
        "junit",
        "step_summary",
        "price_per_hour",
        "require",
        "allow_partial",
        "retry_failed",
        "always_report_gpu_metrics",
        "inference_output_fields",
        "gpu_output_fields",
        "server_output_fields",
        "num_top_model_configs",
        "mode",
        "export_path",
        "checkpoint_directory",
        "config_file",
        "override_output_model_repository",
        "client_max_retries",
        "filename_model_inference",
        "filename_model_gpu",
        "filename_server_only",
        "skip_summary_reports",
        "skip_detailed_reports",
    }
)
"""Options that say nothing about what is searched and measured; a resumed run may have others than before."""


class Earlier:
    """The records of a run so far, by what a search asks for; empty for a run that begins.

    A search that is told the same outcomes asks for the same trials, so each of them is found here in turn.
    """

    def __init__(self, records: Sequence[Record] = ()) -> None:
        self.started: RunStarted | None = None
        self.complete = False
        self.retries = False
        """Whether trials that failed are carried out again, which may lead the search elsewhere."""
        self.elapsed_ns = 0
        self.server_measured = False
        self.models: dict[str, ModelRead] = {}
        self.unavailable: dict[str, ModelFailed] = {}
        self._configurations: dict[str, Variant] = {}
        self._outcomes: dict[tuple[Any, ...], deque[Outcome]] = {}
        self._decided: dict[str, int] = {}
        for record in records:
            self._take(record)

    def knows(self, configuration: Configuration) -> bool:
        """Return whether the configuration is in the journal."""
        return configuration.variant.name in self._configurations

    @property
    def failures(self) -> int:
        """Trials that failed, and models that could not be had."""
        outcomes = (outcome for found in self._outcomes.values() for outcome in found)
        return len(self.unavailable) + sum(isinstance(outcome, Failure) for outcome in outcomes)

    @property
    def named(self) -> tuple[Variant, ...]:
        """The variants whose names a search that may go elsewhere has to keep; those of one that goes the
        same way again come out the same by themselves."""
        return tuple(self._configurations.values()) if self.retries else ()

    def retry_failed(self) -> None:
        """Forget what failed, and the final rounds and decisions that came of it."""
        self.retries = True
        self.complete = False
        self.unavailable = {}
        self._decided = {}
        for found in self._outcomes.values():
            kept = [outcome for outcome in found if isinstance(outcome, Measurement) and not outcome.round]
            found.clear()
            found.extend(kept)

    def outcome(self, trial: Trial) -> Outcome | None:
        """Return what this trial showed, once for each time it was carried out."""
        found = self._outcomes.get((trial.variant.name, trial.load, trial.round))
        return found.popleft() if found else None

    def skips_decision(self, model: str) -> bool:
        """Return whether the next decision about a model is in the journal; asking counts it as taken."""
        left = self._decided.get(model, 0)
        self._decided[model] = max(0, left - 1)
        return left > 0

    def _take(self, record: Record) -> None:
        match record:
            case RunStarted():
                self.started = record
            case ServerMeasured():
                self.server_measured = True
            case ModelRead(model=model):
                self.models[model] = record
            case ModelFailed(model=model):
                self.unavailable[model] = record
            case Configured(configuration=configuration):
                self._configurations[configuration.variant.name] = configuration.variant
            case Measured(measurement=outcome) | Failed(failure=outcome):
                self._keep(outcome)
            case Decided(model=model):
                self._decided[model] = self._decided.get(model, 0) + 1
            case RunResumed(retry=True):
                self.retry_failed()
            case RunEnded():
                self.complete = record.outcome == "complete"
                self.elapsed_ns = record.elapsed_ns
            case _:
                pass

    def _keep(self, outcome: Outcome) -> None:
        key = (outcome.variant, outcome.load, outcome.round)
        self._outcomes.setdefault(key, deque()).append(outcome)
        self.elapsed_ns += outcome.duration_ns


def check_same_run(earlier: Earlier, settings: Mapping[str, object], path: object) -> None:
    """Raise UsageError where these options would search or measure something else than the run did."""
    if earlier.started is None:
        raise UsageError(f"{path} holds no run to resume: leave out --resume, --retry-failed")
    before = earlier.started.settings
    differing = sorted(
        key for key in {*before, *settings} - FREE_TO_DIFFER if before.get(key) != settings.get(key)
    )
    if differing:
        flags = ", ".join(f"--{key.replace('_', '-')}" for key in differing)
        command = " ".join(earlier.started.provenance.command)
        raise UsageError(
            f"--resume continues a run with the options that it began with; these differ: {flags}. "
            f"It began as: {command}"
        )
