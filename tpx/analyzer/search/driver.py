"""The driver of a search: it asks a strategy for trials, then for the final rounds, and passes outcomes back.

Strategies are generators: they yield trials, are sent outcomes, and know the rest from the history. No IO and
no clock: told the same outcomes, a search asks for the same trials.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence

from tpx.analyzer.results.measurement import Decision, Outcome, Trial
from tpx.analyzer.search.finals import final_rounds, reserve
from tpx.analyzer.search.history import History, Steps
from tpx.analyzer.search.spec import Mode, SearchSpec

Strategy = Callable[[SearchSpec, History], Steps]

STRATEGIES: Mapping[Mode, str] = {
    "brute": "tpx.analyzer.search.exhaustive:brute",
    "manual": "tpx.analyzer.search.exhaustive:manual",
    "quick": "tpx.analyzer.search.quick:quick",
    "optuna": "tpx.analyzer.search.tpe:optuna_trials",
    "pareto": "tpx.analyzer.search.pareto:pareto",
    "budgeted": "tpx.analyzer.search.budgeted:budgeted",
}


class SearchDriver:
    """Asks for one trial after another; every ask is answered by a tell before the next."""

    def __init__(self, mode: Mode, spec: SearchSpec) -> None:
        """Raises UsageError where a mode cannot search this space, or needs a package that is missing."""
        module, _, name = STRATEGIES[mode].partition(":")
        strategy: Strategy = getattr(importlib.import_module(module), name)
        self._history = History(spec.goals, spec.limits)
        self._steps = self._search(strategy(spec, self._history))
        self._next = self._advance(None)

    @property
    def decisions(self) -> Sequence[Decision]:
        """Decisions so far: what was left out or stopped, and why; only ever appended to."""
        return self._history.decisions

    @property
    def configurations_at_most(self) -> int:
        return self._history.configurations_at_most

    def ask(self) -> Trial | None:
        """Return the next trial; None when the search is over."""
        return self._next

    def tell(self, trial: Trial, outcome: Outcome) -> None:
        """Pass on the outcome of the trial that was asked for."""
        if trial != self._next:
            raise ValueError(f"told about {trial}, asked for {self._next}")
        self._next = self._advance(outcome)

    def _advance(self, outcome: Outcome | None) -> Trial | None:
        try:
            return next(self._steps) if outcome is None else self._steps.send(outcome)
        except StopIteration:
            return None

    def _search(self, strategy: Steps) -> Steps:
        history = self._history
        history.reserved = reserve(history.limits)
        yield from self._unknown(strategy)
        history.reserved = 0
        if history.limits.final_rounds:
            yield from self._unknown(final_rounds(history), within_budget=False)

    def _unknown(self, steps: Steps, *, within_budget: bool = True) -> Steps:
        """Yield these trials without those whose outcome is known, and no more than the budget has, unless
        the steps mind it themselves."""
        history = self._history
        try:
            trial = next(steps)
            while True:
                outcome = history.outcome(trial)
                if outcome is None:
                    if within_budget and history.left < 1:
                        spent = f"{history.measurements} measurements: the budget was spent"
                        history.decide(f"search ended after {spent}")
                        return
                    outcome = yield trial
                    history.take(trial, outcome)
                trial = steps.send(outcome)
        except StopIteration:
            return
