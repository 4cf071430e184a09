"""What a search is asked: of which model, in which space, for which goals, within which limits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tpx.analyzer.config_sweep import ConfigSweep
from tpx.analyzer.results.goals import Goals
from tpx.analyzer.results.measurement import Variant
from tpx.analyzer.search.loads import LoadSpace
from tpx.analyzer.variants import ModelFacts
from tpx.errors import UsageError

Mode = Literal["brute", "manual", "quick", "optuna", "pareto", "budgeted"]

LEAST_PERCENT = 5.0
MOST_PERCENT = 10.0
"""Of the space, trials of optuna where neither a share nor a number is given."""


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
class Extras:
    """What may vary beside instances and batch sizes, Model Analyzer's two; nothing of it by default."""

    threads: bool = False
    """Threads of an instance, so that all instances together have at most `cores`."""
    cores: int = 1
    queue_delays_us: tuple[int, ...] = ()
    batching_off: bool = False
    """No dynamic batcher, also where max_batch_size is above 1."""
    execution_providers: tuple[str, ...] = ()
    """Of ONNX Runtime, as `openvino`, `cuda`, `tensorrt`; that of the default is always tried."""
    graph_levels: tuple[int, ...] = ()
    """`optimization.graph.level`."""
    precisions: tuple[str, ...] = ()
    """`FP16`, ... of an execution provider that takes one."""

    @property
    def any(self) -> bool:
        """Whether anything beside instances and batch sizes varies."""
        return bool(
            self.threads
            or self.queue_delays_us
            or self.batching_off
            or self.execution_providers
            or self.graph_levels
            or self.precisions
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """What a search may try."""

    loads: LoadSpace
    instances: Span
    max_batch_sizes: Span
    extras: Extras = Extras()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When a search ends before its space does, and how sure its answer has to be."""

    max_measurements: int | None = None
    """With the final repetitions."""
    budget_ns: int | None = None
    """Of all trials together, with the starting of servers."""
    final_rounds: int = 5
    """Rounds at most in which the finalists and the default are measured again, interleaved; 0 is none."""
    finalists: int = 3
    """Beside the default."""
    seed: int = 0
    refine_steps: int = 5
    """Halvings towards the greatest load that keeps the constraints."""
    sweep_best: bool = True
    """After a search that measures each configuration at one load: sweep the loads of the best."""

    def __post_init__(self) -> None:
        if self.max_measurements is not None and self.max_measurements < 1:
            raise UsageError(f"--max-measurements must be at least 1, not {self.max_measurements}")
        if self.budget_ns is not None and self.budget_ns <= 0:
            raise UsageError("--budget must be above 0")
        if self.final_rounds < 0 or self.final_rounds == 1:
            raise UsageError(
                "--final-rounds must be 0, which repeats nothing, or at least 2: one round has no interval"
            )


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
class SearchSpec:
    """What a search is to find."""

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
