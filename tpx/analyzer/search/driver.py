"""The driver of a search: it asks a strategy for trials, then for the final rounds, and passes outcomes
back.

Strategies are generators that yield trials, receive their outcomes, and read everything else from the
history. Without IO and clock a search is deterministic: the same outcomes lead to the same trials.
"""

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from tpx.analyzer.results.measurement import Decision, Measurement, Outcome, Trial
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

GUESSED_GAIN = 1.005
"""Assumed ratio to the best so far: small enough that a load sweep ends soon, large enough that a
search that needs an improvement continues.
"""


class SearchDriver:
    """Issues one trial at a time; each `ask` must be followed by `tell` before the next."""

    def __init__(self, mode: Mode, spec: SearchSpec) -> None:
        """Raises UsageError if the mode cannot search this space, or needs a package that is not
        installed.
        """
        module, _, name = STRATEGIES[mode].partition(":")
        strategy: Strategy = getattr(importlib.import_module(module), name)
        self._mode, self._spec = mode, spec
        self._told: list[tuple[Trial, Outcome]] = []
        self._history = History(spec.goals, spec.limits)
        self._steps = self._search(strategy(spec, self._history))
        self._next = self._advance(None)

    @property
    def decisions(self) -> Sequence[Decision]:
        """Decisions so far, with reasons: what was skipped or stopped; append-only."""
        return self._history.decisions

    @property
    def configurations_at_most(self) -> int:
        return self._history.configurations_at_most

    def ask(self) -> Trial | None:
        """Return the next trial, or None when the search is over."""
        return self._next

    def tell(self, trial: Trial, outcome: Outcome) -> None:
        """Record the outcome of the trial returned by `ask`, and advance."""
        if trial != self._next:
            raise ValueError(f"told about {trial}, asked for {self._next}")
        self._told.append((trial, outcome))
        self._next = self._advance(outcome)

    def expected(self, known: Callable[[Trial], Outcome | None]) -> Iterator[Trial]:
        """Yield the trials without a known outcome that the search will probably request before the
        final rounds.

        A copy of the search is run ahead, assuming that each such trial is slightly better than the
        best before.
        """
        copy = SearchDriver(self._mode, self._spec)
        best: Measurement | None = None
        told = iter(self._told)
        while (trial := copy.ask()) is not None and not trial.round:
            _, outcome = next(told, (trial, known(trial)))
            if outcome is None:
                if best is None:
                    return
                yield trial
                outcome = _like(best, trial)
            if isinstance(outcome, Measurement) and (best is None or outcome.throughput > best.throughput):
                best = outcome
            copy.tell(trial, outcome)

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
        """Yield the trials whose outcome is not known yet.

        Stop when the budget is spent, unless the steps enforce it themselves.
        """
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


def _like(best: Measurement, trial: Trial) -> Measurement:
    """Return a plausible measurement for a trial; all figures except the throughput are copied from the
    best.
    """
    members = zip(best.members, trial.variant.members, trial.load.members, strict=False)
    return replace(
        best,
        variant=trial.variant.name,
        load=trial.load,
        throughput=best.throughput * GUESSED_GAIN,
        members=tuple(replace(each, variant=of.name, load=load) for each, of, load in members),
    )
