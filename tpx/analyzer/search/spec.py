"""The specification of a search: model, space, goals and limits.

Some of its parts are option groups, used unchanged.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from tpx.analyzer.config_sweep import ConfigSweep
from tpx.analyzer.metrics import metric
from tpx.analyzer.results.goals import Goals
from tpx.analyzer.results.measurement import Models, Variant
from tpx.analyzer.search.ranges import LoadSpace, StrategySpec
from tpx.analyzer.values import numbers, seconds
from tpx.errors import UsageError
from tpx.options import Options, option

if TYPE_CHECKING:
    from tpx.analyzer.variants import ModelFacts

Mode = Literal["brute", "manual", "quick", "optuna", "pareto", "budgeted"]

PARALLEL = ("n_parallel", "max_num_seqs")
"""Parameters for the sequences that an engine computes together: so many requests keep it busy."""
ENGINES: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    **{
        backend: {"n_parallel": (1, 2, 4, 8, 16, 32, 64), "n_batch": (512, 2048), "threads": ()}
        for backend in ("llamacpp", "openvino_genai")
    },
    "vllm": {"max_num_seqs": (16, 32, 64, 128, 256), "max_num_batched_tokens": (2048, 4096, 8192, 16384)},
}
"""Parameters of backends of language models and their values; threads double up to the number of cores."""


def axes_of(backend: str, *, by_tpx: bool) -> Mapping[str, tuple[int, ...]]:
    """Return the parameters to vary; none of a model that only Triton's vLLM backend serves, which ignores
    them.
    """
    return ENGINES.get(backend, {}) if backend != "vllm" or by_tpx else {}


DEFAULT_TOLERANCE = 0.01
LEAST_PERCENT = 5.0
MOST_PERCENT = 10.0
"""Maximum percentage of the space that optuna tries if neither a share nor a number is given."""


class Extras(Options):
    """Axes in addition to Model Analyzer's two, instances and batch sizes."""

    search_threads: bool = option(False, "vary the threads per instance, so that all instances fit the cores")
    cores: int | None = option(
        None, "cores for all instances together (default: those of this machine)", minimum=1
    )
    queue_delays: tuple[int, ...] = option(
        (), "max_queue_delay_microseconds to try", metavar="N,N", comma=True, read=numbers, minimum=0
    )
    search_without_batching: bool = option(False, "also try batch sizes without the dynamic batcher")
    execution_providers: tuple[Literal["openvino", "cuda", "tensorrt"], ...] = option(
        (), "execution providers to try: openvino, cuda, tensorrt", metavar="A,B", comma=True
    )
    graph_levels: tuple[int, ...] = option(
        (),
        "optimization.graph.level to try: -1, 1, 2",
        metavar="N,N",
        comma=True,
        read=numbers,
        minimum=-1,
        maximum=2,
    )
    precisions: tuple[str, ...] = option(
        (), "precisions of tensorrt and openvino to try: FP16, INT8", metavar="A,B", comma=True
    )
    accuracy_tolerance: float = option(
        DEFAULT_TOLERANCE,
        "maximum relative difference between the outputs of such a variant and the default's",
        above=0,
    )

    @property
    def processors(self) -> int:
        """Processors for all instances together."""
        return self.cores or os.cpu_count() or 1

    @property
    def any(self) -> bool:
        """True if anything besides instances and batch sizes varies."""
        return replace(self, cores=None, accuracy_tolerance=DEFAULT_TOLERANCE) != Extras()


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """The bounds of a search."""

    loads: LoadSpace
    strategy: StrategySpec
    extras: Extras = field(default_factory=Extras)


class Limits(Options):
    """Limits of a search: budget, confidence of the answer, and metrics to trade off."""

    budget: float | None = option(
        None,
        "time limit per model, such as 20m; selects mode budgeted unless another is given",
        metavar="TIME",
        parse=seconds,
        read=seconds,
        common=True,
        above=0,
    )
    max_measurements: int | None = option(
        None, "maximum measurements per model; selects the mode as --budget does", minimum=1
    )
    final_rounds: int = option(
        6, "maximum rounds in which the best configurations and the default are measured again; 0 = none"
    )
    seed: int = option(0, "seed of the search and of the order of the final rounds")
    pareto: tuple[str, ...] = option(
        (), "metrics whose Pareto front is searched; selects mode pareto", metavar="TAG,TAG", comma=True
    )
    finalists: int = 3
    """Number of finalists besides the default."""

    def __post_init__(self) -> None:
        if self.final_rounds < 0 or self.final_rounds == 1:
            raise UsageError(
                "--final-rounds must be 0, which repeats nothing, or at least 2: one round has no interval"
            )
        if len(self.pareto) == 1:
            raise UsageError("--pareto takes at least two metrics: with one there is no trade-off")
        for tag in self.pareto:
            metric(tag)


class OptunaTrials(Options):
    """Number of configurations that optuna tries, relative to the size of the space."""

    min_percentage_of_search_space: float | None = option(
        None,
        "minimum share of the space to try, in percent (5, unless --optuna-min-trials is given)",
        above=0,
        maximum=100,
    )
    max_percentage_of_search_space: float | None = option(
        None,
        "maximum share of the space to try, in percent (10, unless --optuna-max-trials is given)",
        above=0,
        maximum=100,
    )
    optuna_min_trials: int | None = option(
        None, "minimum trials; with a share, the greater of the two applies", minimum=1
    )
    optuna_max_trials: int | None = option(
        None, "maximum trials; with a share, the smaller of the two applies", minimum=1
    )
    optuna_early_exit_threshold: int = option(
        10, "trials without an improvement before the search ends", minimum=0
    )
    use_concurrency_formula: bool = option(
        False, "set the load of a trial to 2 x instances x batch size instead of searching it"
    )

    def __post_init__(self) -> None:
        low, high = self.min_percentage_of_search_space, self.max_percentage_of_search_space
        if high is None and self.optuna_max_trials is None:
            high = MOST_PERCENT
        if low is not None and high is not None and low > high:
            raise UsageError(
                f"--min-percentage-of-search-space {low:g} is above --max-percentage-of-search-space {high:g}"
            )
        if (self.optuna_min_trials or 0) > (self.optuna_max_trials or float("inf")):
            raise UsageError(
                f"--optuna-min-trials {self.optuna_min_trials} is above "
                f"--optuna-max-trials {self.optuna_max_trials}"
            )

    def size(self, configurations: int, loads: LoadSpace) -> int:
        """Return the size of the space as Model Analyzer counts it: with loads unless by formula."""
        formula = self.use_concurrency_formula and loads.kind == "concurrency" and not loads.listed
        return configurations * (1 if formula else len(loads.values))

    def at_least(self, size: int) -> int:
        """Return the minimum of trials (1 or more), by share or number; if both are given, the greater."""
        given, share = self.optuna_min_trials, self.min_percentage_of_search_space
        by_share = int(size * (share or LEAST_PERCENT) / 100)
        if given is None or share is None:
            return given or max(1, by_share)
        return max(by_share, given)

    def at_most(self, size: int) -> int:
        """Return the maximum number of trials, by share or by number; if both are given, the smaller."""
        given, share = self.optuna_max_trials, self.max_percentage_of_search_space
        by_share = int(size * (share or MOST_PERCENT) / 100)
        if given is None or share is None:
            return given or max(1, by_share)
        return max(1, min(by_share, given))


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchMember:
    """A model that is varied as a part of another, or measured together with others."""

    facts: "ModelFacts"
    sweep: ConfigSweep = field(default_factory=ConfigSweep)
    """Fields and values that the user listed; all others use the ranges of the space."""
    loads: LoadSpace | None = None
    """Loads of this model, if it is measured together with others; None uses the loads of the space."""
    default: Mapping[str, Any] | None = None
    """JSON of its effective default configuration, if known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpec:
    """The task of one search."""

    facts: "ModelFacts"
    default: Mapping[str, Any]
    """JSON of the model's effective default configuration."""
    space: SearchSpace
    goals: Goals = field(default_factory=Goals)
    limits: Limits = field(default_factory=Limits)
    deltas: Sequence[Mapping[str, Any]] | None = None
    """Changes to the default that the user listed; None searches the space."""
    members: tuple[SearchMember, ...] = ()
    """Models varied instead of the model itself: an ensemble's, or those measured together."""
    sweep: ConfigSweep = field(default_factory=ConfigSweep)
    """Fields of the model itself that the user listed, varied in addition to everything else."""
    named: tuple[Variant, ...] = ()
    """Variants with existing names; the same change keeps its name."""
    trials: OptunaTrials = field(default_factory=OptunaTrials)

    @property
    def models(self) -> Models:
        """The models that are measured: several together if members have loads of their own."""
        apart = tuple(member.facts.model for member in self.members if member.loads is not None)
        return apart or (self.facts.model,)

    @property
    def defaults(self) -> dict[str, Mapping[str, Any]]:
        """Effective default configurations of the model and its members, by model."""
        return {self.facts.model: self.default} | {m.facts.model: m.default or {} for m in self.members}
