"""The seam of the strategies, and the space they walk."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tpx.analyzer.results.measurement import Decision, LoadKind, Outcome, Trial
from tpx.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The search is over."""

    reason: str


class Search(Protocol):
    """Asks for one trial after another; every ask is answered by a tell before the next.

    No IO and no clock: told the same outcomes, it asks for the same trials.
    """

    @property
    def decisions(self) -> Sequence[Decision]:
        """What was left out or stopped so far, and why; only ever appended to."""

    @property
    def configurations_at_most(self) -> int: ...

    @property
    def loads_at_most(self) -> int:
        """Measurements that one configuration can take."""

    def ask(self) -> Trial | Done: ...

    def tell(self, trial: Trial, outcome: Outcome) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A range of a search, both ends included."""

    name: str
    """As in `--run-config-search-min-<name>`."""
    minimum: int
    maximum: int

    def __post_init__(self) -> None:
        low, high = (f"--run-config-search-{end}-{self.name}" for end in ("min", "max"))
        if self.minimum < 1:
            raise UsageError(f"{low} must be at least 1, not {self.minimum}")
        if self.minimum > self.maximum:
            raise UsageError(f"{low} {self.minimum} is above {high} {self.maximum}")

    def steps(self) -> tuple[int, ...]:
        return tuple(range(self.minimum, self.maximum + 1))

    def doublings(self) -> tuple[int, ...]:
        """minimum, 2 x minimum, 4 x minimum ... up to maximum."""
        values = [self.minimum]
        while values[-1] * 2 <= self.maximum:
            values.append(values[-1] * 2)
        return tuple(values)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSpace:
    """The loads that each configuration is measured under."""

    values: tuple[int, ...]
    batch_sizes: tuple[int, ...] = (1,)
    kind: LoadKind = "concurrency"
    until_plateau: bool = True
    """Stop when more load brings nothing; off for loads that the user listed."""

    def __post_init__(self) -> None:
        for name, values in ((self.kind, self.values), ("batch size", self.batch_sizes)):
            if not values or min(values) < 1:
                raise UsageError(f"every {name.replace('_', ' ')} must be at least 1: {list(values)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """What a search may try."""

    loads: LoadSpace
    instances: Span
    max_batch_sizes: Span
