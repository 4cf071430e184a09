"""The driver of a search: it asks a strategy for trials, then for the final rounds, and passes outcomes back.

Strategies are generators: they yield trials, are sent outcomes, and know the rest from the history. No IO and
no clock: told the same outcomes, a search asks for the same trials.
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
"""Over the best so far: a sweep of loads ends soon, and what has to grow to go on does."""


class SearchDriver:
    """Asks for one trial after another; every ask is answered by a tell before the next."""

    def __init__(self, mode: Mode, spec: SearchSpec) -> None:
        """Raises UsageError where a mode cannot search this space, or needs a package that is missing."""
        module, _, name = STRATEGIES[mode].partition(":")
        strategy: Strategy = getattr(importlib.import_module(module), name)
        self._mode, self._spec = mode, spec
        self._told: list[tuple[Trial, Outcome]] = []
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
        self._told.append((trial, outcome))
        self._next = self._advance(outcome)

    def expected(self, known: Callable[[Trial], Outcome | None]) -> Iterator[Trial]:
        """Yield the trials without a known outcome that the search will probably ask for next, up to the
        final rounds: a copy of it is told that each is a little better than the best before."""
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


def _like(best: Measurement, trial: Trial) -> Measurement:
    """Return a measurement that a trial may have; its figures beside the throughput are those of the best."""
    members = zip(best.members, trial.variant.members, trial.load.members, strict=False)
    return replace(
        best,
        variant=trial.variant.name,
        load=trial.load,
        throughput=best.throughput * GUESSED_GAIN,
        members=tuple(replace(each, variant=of.name, load=load) for each, of, load in members),
    )
