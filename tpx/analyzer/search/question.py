"""What a search is asked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tpx.analyzer.config_sweep import ConfigSweep
from tpx.analyzer.results.goals import Goals
from tpx.analyzer.results.measurement import Variant
from tpx.analyzer.search.base import Limits, LoadSpace, SearchSpace
from tpx.analyzer.variants import ModelFacts

LEAST_PERCENT = 5.0
MOST_PERCENT = 10.0
"""Of the space, trials of optuna where neither a share nor a number is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptunaTrials:
    """How many configurations optuna tries, of a space of some size."""

    min_percent: float | None = None
    max_percent: float | None = None
    minimum: int | None = None
    maximum: int | None = None
    patience: int = 10
    """Trials without an improvement that end the search, once there were the least number."""
    by_formula: bool = False
    """Each configuration at one load, 2 x instances x batch size; otherwise its load is climbed."""
    sweep_best: bool = True

    def size(self, configurations: int, loads: LoadSpace) -> int:
        """Points of the space as Model Analyzer counts them: the loads are a dimension, unless a formula
        gives them."""
        formula = self.by_formula and loads.kind == "concurrency" and not loads.listed
        return configurations * (1 if formula else len(loads.values))

    def at_least(self, size: int) -> int:
        """The least number of trials, by share or by number; of both that are given the greater. One at
        least, where Model Analyzer would try none."""
        share = int(size * (self.min_percent or LEAST_PERCENT) / 100)
        if self.minimum is None:
            return max(1, share)
        return self.minimum if self.min_percent is None else max(share, self.minimum)

    def at_most(self, size: int) -> int:
        """The greatest number, by share or by number; of both that are given the less."""
        share = int(size * (self.max_percent or MOST_PERCENT) / 100)
        if self.maximum is None:
            return max(1, share)
        return self.maximum if self.max_percent is None else max(1, min(share, self.maximum))


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
