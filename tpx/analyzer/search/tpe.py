"""Search by optuna's tree-structured Parzen estimator, with hopeless configurations pruned after one load."""

import math
from collections.abc import Sequence
from typing import Any

from tpx.analyzer.results.measurement import Decision
from tpx.analyzer.search.explorer import Explorer
from tpx.analyzer.search.known import Asking, Known, Merit
from tpx.analyzer.search.question import Question
from tpx.analyzer.search.space import Point
from tpx.analyzer.search.walk import Steps
from tpx.errors import UsageError

WITHOUT_MODEL = 5
"""So many trials are drawn at random before the estimator has anything to go by."""
MISSED = 1e6
"""Taken off what optuna is told of a trial that misses the constraints: more than any score is."""


class OptunaSearch:
    """Each trial is a configuration: measured once at its expected load, and if that is above the median of
    the trials before, its load is climbed. Those that fail are told to optuna as failed."""

    def __init__(self, question: Question, known: Known) -> None:
        """Raises UsageError where optuna is not installed."""
        self._optuna = _import_optuna()
        self._explorer = Explorer(question, known)
        self._trials = question.trials
        self._seed = question.limits.seed
        self._first_looks: list[Merit] = []

    @property
    def decisions(self) -> Sequence[Decision]:
        return self._explorer.decisions

    @property
    def configurations_at_most(self) -> int:
        return 1 + min(self._trials.at_most(self._size), self._explorer.grid.size)

    @property
    def loads_at_most(self) -> int:
        return len(self._explorer.loads.values)

    def steps(self) -> Steps:
        explorer = self._explorer
        yield from explorer.default()
        least, most = self._trials.at_least(self._size), self._trials.at_most(self._size)
        study = self._study()
        best, since = (False, -math.inf), 0
        for number in range(1, most + 1):
            value = yield from self._trial(study)
            since = 0 if value > best else since + 1
            best = max(best, value)
            if number >= least and since >= self._trials.patience:
                explorer.decide(f"optuna ends after {number} trials: {since} without an improvement")
                break
        if self._trials.sweep_best:
            yield from explorer.refined()
        return "optuna's trials are done"

    @property
    def _size(self) -> int:
        return self._trials.size(self._explorer.grid.size, self._explorer.loads)

    def _study(self) -> Any:
        optuna = self._optuna
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        sampler = optuna.samplers.TPESampler(seed=self._seed, n_startup_trials=WITHOUT_MODEL)
        return optuna.create_study(direction="maximize", sampler=sampler)

    def _trial(self, study: Any) -> Asking[Merit]:
        """One trial: asked, measured, told."""
        explorer, states = self._explorer, self._optuna.trial.TrialState
        trial = study.ask()
        point = tuple(
            trial.suggest_int(f"{d.model}::{d.name}", 0, len(d.choices) - 1)
            if d.ordered
            else trial.suggest_categorical(f"{d.model}::{d.name}", list(range(len(d.choices))))
            for d in explorer.grid.dimensions
        )
        refusal = explorer.grid.refusal(point)
        if refusal:
            explorer.decide(f"{explorer.grid.describe(point)} not measured: {refusal}")
            study.tell(trial, state=states.PRUNED)
            return False, -math.inf
        value = yield from self._measured(point)
        if not math.isfinite(value[1]):
            study.tell(trial, state=states.FAIL)
        else:
            study.tell(trial, worth(value))
        return value

    def _measured(self, point: Point) -> Asking[Merit]:
        explorer = self._explorer
        again = point in explorer.tried
        first = yield from explorer.once(point)
        if first is None or again:
            return explorer.merit(point)
        look, before = explorer.merit(point), sorted(self._first_looks)
        self._first_looks.append(look)
        if before and look < before[len(before) // 2]:
            text = "pruned: below the median of the trials before at its first load"
            explorer.decide(text, explorer.name(point))
        elif not self._trials.by_formula:
            yield from explorer.climbed(point)
        return explorer.merit(point)


def worth(merit: Merit) -> float:
    """What optuna is told, which maximizes it: what keeps the constraints is above all that does not."""
    kept, value = merit
    return value if kept else value - MISSED


def _import_optuna() -> Any:
    try:
        import optuna
    except ImportError as exc:
        raise UsageError(
            "--run-config-search-mode optuna needs the package optuna: pip install 'tpx[optuna]'"
        ) from exc
    return optuna
