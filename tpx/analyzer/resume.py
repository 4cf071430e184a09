"""Results that an interrupted run has left in its journal, so that the same search over again measures only
what is new."""

from collections.abc import Mapping, Sequence

from tpx.analyzer.options.output import ProfileOutputSpec
from tpx.analyzer.results.journal import ModelRead, Record, RunStarted
from tpx.analyzer.results.measurement import Configuration, LoadPoint, Outcome, Trial, Variant
from tpx.analyzer.results.run import RunRecords
from tpx.errors import UsageError
from tpx.options import fields_of

FREE_TO_DIFFER = frozenset(
    {
        *(field.name for field in fields_of(ProfileOutputSpec)),
        *("price_per_hour", "require", "allow_partial", "always_report_gpu_metrics", "num_top_model_configs"),
        *("config_file", "override_output_model_repository", "client_max_retries"),
    }
)
"""Options that say nothing about what is searched and measured; a resumed run may have others than before."""


class Earlier:
    """The records of a run so far, by what a search asks for; empty for a run that begins.

    A search that is told the same outcomes asks for the same trials, so each of them is found here in turn.
    """

    def __init__(self, records: Sequence[Record] = ()) -> None:
        self._records = RunRecords.of(records)
        self._index()

    def _index(self) -> None:
        models = self._records.models
        self._outcomes: dict[tuple[str, LoadPoint, int], list[Outcome]] = {}
        for model in models.values():
            found: tuple[Outcome, ...] = (*model.measurements, *model.failures)
            for outcome in reversed(found):
                key = (outcome.variant, outcome.load, outcome.round)
                self._outcomes.setdefault(key, []).append(outcome)
        self._decided = {name: len(model.decisions) for name, model in models.items()}

    @property
    def started(self) -> RunStarted | None:
        return self._records.started

    @property
    def complete(self) -> bool:
        return self._records.ended is not None and self._records.ended.outcome == "complete"

    @property
    def retries(self) -> bool:
        """True where trials that failed are carried out again, which may lead the search elsewhere."""
        return self._records.retried

    @property
    def elapsed_ns(self) -> int:
        return self._records.elapsed_ns

    @property
    def server_measured(self) -> bool:
        return self._records.server is not None

    def read(self, model: str) -> ModelRead | None:
        """Return a model's own configuration, where it is known."""
        return self._records.models[model].read

    def unavailable(self, model: str) -> bool:
        """Return whether the model's own configuration could not be had."""
        return self._records.models[model].unavailable is not None

    def knows(self, configuration: Configuration) -> bool:
        """Return whether the configuration is in the journal."""
        known = self._records.models[configuration.variant.model].configurations
        return any(each.variant.name == configuration.variant.name for each in known)

    @property
    def failures(self) -> int:
        """Trials that failed, and models that could not be had."""
        models = self._records.models.values()
        return sum(len(model.failures) + (model.unavailable is not None) for model in models)

    @property
    def named(self) -> tuple[Variant, ...]:
        """The variants whose names a search that may go elsewhere has to keep; those of one that goes the
        same way again come out the same by themselves."""
        models = self._records.models.values() if self.retries else ()
        return tuple(each.variant for model in models for each in model.configurations)

    def retry_failed(self) -> None:
        """Forget what failed, and the final rounds and decisions that came of it."""
        self._records.retry()
        self._index()

    def outcome(self, trial: Trial) -> Outcome | None:
        """Return what this trial showed, once for each time it was carried out."""
        found = self._outcomes.get((trial.variant.name, trial.load, trial.round))
        return found.pop() if found else None

    def skips_decision(self, model: str) -> bool:
        """Return whether the next decision about a model is in the journal; asking counts it as taken."""
        left = self._decided.get(model, 0)
        self._decided[model] = max(0, left - 1)
        return left > 0


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
