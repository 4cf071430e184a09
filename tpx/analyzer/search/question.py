"""What a search is asked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tpx.analyzer.config_sweep import ConfigSweep
from tpx.analyzer.results.goals import Goals
from tpx.analyzer.results.measurement import Variant
from tpx.analyzer.search.base import Limits, LoadSpace, SearchSpace
from tpx.analyzer.variants import ModelFacts

FEWEST_TRIALS = 20
MOST_OF_SMALL = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class OptunaTrials:
    """How many configurations optuna tries, of a space of some size."""

    min_percent: float = 5.0
    max_percent: float = 10.0
    minimum: int | None = None
    maximum: int | None = None
    patience: int = 10
    """Trials without an improvement that end the search, once there were the least number."""
    by_formula: bool = False
    """Each configuration at one load, 2 x instances x batch size; otherwise its load is climbed."""
    sweep_best: bool = True

    def at_least(self, size: int) -> int:
        """The least number of trials: by share and by number, whichever is more; without a number 20."""
        least = FEWEST_TRIALS if self.minimum is None else self.minimum
        return min(max(1, round(size * self.min_percent / 100), least), self.at_most(size))

    def at_most(self, size: int) -> int:
        """The greatest number: by number where one is given, otherwise by share, at least 30 of a space
        that has them: a tenth of a small space tells nothing."""
        if self.maximum is not None:
            return self.maximum
        return max(round(size * self.max_percent / 100), min(size, MOST_OF_SMALL), self.minimum or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A model that is varied as a part of another, or that is measured together with others."""

    facts: ModelFacts
    sweep: ConfigSweep = field(default_factory=ConfigSweep)
    """The fields that the user listed, with their values; the others have the ranges of the space."""
    loads: LoadSpace | None = None
    """Of those that are measured together each has its own."""
    default: Mapping[str, Any] | None = None
    """JSON of its effective default configuration, where that is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a search is to find: of which model, in which space, for which goals."""

    facts: ModelFacts
    default: Mapping[str, Any]
    """JSON of the model's effective default configuration."""
    space: SearchSpace
    goals: Goals = field(default_factory=Goals)
    limits: Limits = field(default_factory=Limits)
    deltas: Sequence[Mapping[str, Any]] | None = None
    """The changes to the default that the user listed; None is what the space has."""
    members: tuple[Member, ...] = ()
    """Models that are varied in place of the model: an ensemble's, or those that are measured together."""
    sweep: ConfigSweep = field(default_factory=ConfigSweep)
    """Fields of the model itself that the user listed, where what else there is varies too."""
    in_ranges: bool = True
    """Whether what the user did not list varies in the ranges of the space."""
    early_exit: bool = False
    """Whether a listed max_batch_size is tried only as long as the ones before brought something."""
    pareto: tuple[str, ...] = ()
    """Metrics whose best compromises are searched."""
    named: tuple[Variant, ...] = ()
    """Variants that have their names already; what changes the same keeps the name."""
    trials: OptunaTrials = field(default_factory=OptunaTrials)
