"""Results that an interrupted run left in its journal: the search is replayed and measures only what is
missing.
"""

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
"""Options that do not affect what is searched or measured, which a resumed run may therefore change."""


class Earlier:
    """Records of the run so far, by what a search asks for; empty for a new run.

    The search is deterministic: given the same outcomes it asks for the same trials, so each one is
    found here.
    """

    def __init__(self, records: Sequence[Record] = ()) -> None:
        self._records = RunRecords.of(records)
        self._index()

    def _index(self) -> None:
        models = self._records.models
        self._outcomes: dict[tuple[str, LoadPoint, int], list[Outcome]] = {}
        for model in models.values():
            found: tuple[Outcome, ...] = (*model.measurements, *model.failures)
            # reversed, because `outcome` pops from the end
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
        """True if failed trials are repeated, which may change the course of the search."""
        return self._records.retried

    @property
    def elapsed_ns(self) -> int:
        return self._records.elapsed_ns

    @property
    def server_measured(self) -> bool:
        return self._records.server is not None

    def read(self, model: str) -> ModelRead | None:
        """Return a model's own configuration, or None if it was not read."""
        return self._records.models[model].read

    def unavailable(self, model: str) -> bool:
        """Return True if the model's own configuration could not be read."""
        return self._records.models[model].unavailable is not None

    def knows(self, configuration: Configuration) -> bool:
        """Return True if the configuration is in the journal."""
        known = self._records.models[configuration.variant.model].configurations
        return any(each.variant.name == configuration.variant.name for each in known)

    @property
    def failures(self) -> int:
        """Number of failed trials and of models that could not be read."""
        models = self._records.models.values()
        return sum(len(model.failures) + (model.unavailable is not None) for model in models)

    @property
    def named(self) -> tuple[Variant, ...]:
        """Variants whose names the search must keep if its course may change; an unchanged search
        reproduces its names.
        """
        models = self._records.models.values() if self.retries else ()
        return tuple(each.variant for model in models for each in model.configurations)

    def retry_failed(self) -> None:
        """Forget the failures, and the final rounds and decisions that depended on them."""
        self._records.retry()
        self._index()

    def outcome(self, trial: Trial) -> Outcome | None:
        """Return an outcome of this trial, once for each time it was carried out, then None."""
        found = self._outcomes.get((trial.variant.name, trial.load, trial.round))
        return found.pop() if found else None

    def skips_decision(self, model: str) -> bool:
        """Return True if the journal has the next decision about a model; each call consumes one decision."""
        left = self._decided.get(model, 0)
        self._decided[model] = max(0, left - 1)
        return left > 0


def check_same_run(earlier: Earlier, settings: Mapping[str, object], path: object) -> None:
    """Raise UsageError if these options would search or measure something else than the original run."""
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
