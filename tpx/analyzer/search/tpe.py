"""Search by optuna's tree-structured Parzen estimator, pruning poor configurations after one load."""

import math

from tpx.analyzer.search.explorer import Explorer
from tpx.analyzer.search.history import Asking, History, Merit, Steps
from tpx.analyzer.search.spec import SearchSpec
from tpx.analyzer.search.sweep import refine_best
from tpx.errors import UsageError

WITHOUT_MODEL = 5
"""Number of random trials before the estimator is used."""
MISSED = 1e6
"""Penalty for a trial that misses the constraints; larger than any score."""


def optuna_trials(spec: SearchSpec, history: History) -> Steps:
    """Measure configurations once at their expected load; climb if above the median so far.

    Failed trials are reported to optuna as failed. Raises UsageError if optuna is not installed.
    """
    search = _Trials(spec, history)
    explorer, trials = search.explorer, spec.trials
    size = trials.size(explorer.grid.size, explorer.loads)
    least, most = trials.at_least(size), trials.at_most(size)
    history.space_size = 1 + min(most, explorer.grid.size)
    yield from explorer.default()
    best, since = (False, -math.inf), 0
    for number in range(1, most + 1):
        value = yield from search.trial()
        since = 0 if value > best else since + 1
        best = max(best, value)
        if number >= least and since >= trials.optuna_early_exit_threshold:
            history.decide(f"optuna ends after {number} trials: {since} without an improvement")
            break
    if not spec.space.strategy.concurrency_sweep_disable:
        yield from refine_best(spec, history)


class _Trials:
    """An optuna study, and the grid that its parameters index."""

    def __init__(self, spec: SearchSpec, history: History) -> None:
        try:
            import optuna
        except ImportError as exc:
            raise UsageError(
                "--run-config-search-mode optuna needs the package optuna: pip install 'tpx[optuna]'"
            ) from exc
        self._states = optuna.trial.TrialState
        self.explorer = Explorer(spec, history)
        self._climbs = not spec.trials.use_concurrency_formula
        self._first_looks: list[Merit] = []
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        sampler = optuna.samplers.TPESampler(seed=spec.limits.seed, n_startup_trials=WITHOUT_MODEL)
        self._study = optuna.create_study(direction="maximize", sampler=sampler)

    def trial(self) -> Asking[Merit]:
        """Run one trial: ask the study, measure, report the result."""
        explorer, study, states = self.explorer, self._study, self._states
        trial = study.ask()
        point = tuple(
            trial.suggest_int(f"{d.model}::{d.name}", 0, len(d.choices) - 1)
            if d.ordered
            else trial.suggest_categorical(f"{d.model}::{d.name}", list(range(len(d.choices))))
            for d in explorer.grid.dimensions
        )
        refusal = explorer.grid.refusal(point)
        if refusal:
            explorer.history.decide(f"{explorer.grid.describe(point)} not measured: {refusal}")
            study.tell(trial, state=states.PRUNED)
            return False, -math.inf
        again = point in explorer.tried
        first = yield from explorer.once(point)
        if first is not None and not again:
            look, before = explorer.merit(point), sorted(self._first_looks)
            self._first_looks.append(look)
            if before and look < before[len(before) // 2]:
                text = "pruned: below the median of the trials before at its first load"
                explorer.history.decide(text, explorer.name(point))
            elif self._climbs:
                yield from explorer.climbed(point)
        value = explorer.merit(point)
        if not math.isfinite(value[1]):
            study.tell(trial, state=states.FAIL)
        else:
            study.tell(trial, worth(value))
        return value


def worth(merit: Merit) -> float:
    """Return the value reported to optuna, which maximizes it: any satisfied trial exceeds all others."""
    kept, value = merit
    return value if kept else value - MISSED
