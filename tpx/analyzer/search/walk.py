"""Strategies are written as generators of trials; a walk makes one a search that is asked and told."""

from collections.abc import Generator, Sequence
from typing import Protocol

from tpx.analyzer.results.measurement import Decision, Outcome, Trial
from tpx.analyzer.search.base import Done

Steps = Generator[Trial, Outcome, str]
"""Yields trials, is sent their outcomes, returns why it ended."""


class Strategy(Protocol):
    """One way through a space: `steps` is called once, and decisions only ever grow."""

    @property
    def decisions(self) -> Sequence[Decision]: ...

    @property
    def configurations_at_most(self) -> int: ...

    @property
    def loads_at_most(self) -> int: ...

    def steps(self) -> Steps: ...


class Walk:
    """A strategy as a `Search`."""

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        self._steps = strategy.steps()
        self._next: Trial | Done | None = None

    @property
    def decisions(self) -> Sequence[Decision]:
        return self._strategy.decisions

    @property
    def configurations_at_most(self) -> int:
        return self._strategy.configurations_at_most

    @property
    def loads_at_most(self) -> int:
        return self._strategy.loads_at_most

    def ask(self) -> Trial | Done:
        if self._next is None:
            self._next = self._advance(None)
        return self._next

    def tell(self, trial: Trial, outcome: Outcome) -> None:
        if trial != self._next:
            raise ValueError(f"told about {trial}, asked for {self._next}")
        self._next = self._advance(outcome)

    def _advance(self, outcome: Outcome | None) -> Trial | Done:
        try:
            return next(self._steps) if outcome is None else self._steps.send(outcome)
        except StopIteration as end:
            return Done(reason=str(end.value))
