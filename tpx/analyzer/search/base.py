"""The seam of the strategies, and the space they walk."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

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


PlateauRule = Literal["model-analyzer", "pooled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSpace:
    """The loads that each configuration is measured under, each once, the least first."""

    values: tuple[int, ...]
    batch_sizes: tuple[int, ...] = (1,)
    kind: LoadKind = "concurrency"
    until_plateau: bool = True
    """Stop when more load brings nothing; off for loads that the user listed."""
    plateau_rule: PlateauRule = "model-analyzer"
    """How `sweep.plateau_gain` judges the throughputs."""
    listed: bool = False
    """The user listed them, so that there are no others."""
    at_most: int | None = None
    """The end of the range that `values` double through; None is the last of them."""

    def __post_init__(self) -> None:
        for name, field in ((self.kind, "values"), ("batch size", "batch_sizes")):
            values = sorted(set(getattr(self, field)))
            if not values or values[0] < 1:
                raise UsageError(f"every {name.replace('_', ' ')} must be at least 1: {values}")
            object.__setattr__(self, field, tuple(values))

    def within(self, load: int) -> int:
        """This load, or the end of the range that it lies beyond."""
        return min(max(load, self.values[0]), self.at_most or self.values[-1])

    def around(self, load: int) -> tuple[int, ...]:
        """The values, and with them a concurrency that a formula gives; listed ones have none between."""
        if self.listed or self.kind != "concurrency":
            return self.values
        return tuple(sorted({*self.values, self.within(load)}))


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
