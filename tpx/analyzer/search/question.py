"""What a search is asked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tpx.analyzer.results.goals import Goals
from tpx.analyzer.search.base import Limits, SearchSpace
from tpx.analyzer.variants import ModelFacts


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
    members: tuple[ModelFacts, ...] = ()
    """Models that are varied in place of the model: an ensemble's, or those that are measured together."""
