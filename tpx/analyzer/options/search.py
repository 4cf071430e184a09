"""The options of the search: its strategy and space, the loads, and how much may be measured."""

import os
import re
from dataclasses import dataclass
from typing import Any, Literal

from tpx.analyzer.models import ModelParameters
from tpx.analyzer.objectives import metric
from tpx.analyzer.options.values import integer, numbers, words
from tpx.analyzer.search.loads import LoadSpace, PlateauRule
from tpx.analyzer.search.spec import MOST_PERCENT, Extras, Limits, Span
from tpx.errors import UsageError
from tpx.options import option

SEARCH_MODES = ("brute", "quick", "optuna", "budgeted", "pareto")


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategySpec:
    """Strategy and ranges."""

    run_config_search_mode: Literal["brute", "quick", "optuna", "budgeted", "pareto"] | None = option(
        None,
        "how the space is searched (brute, unless other options or the model ask for another mode)",
        metavar="|".join(SEARCH_MODES),
    )
    run_config_search_disable: bool = option(False, "measure only what is listed, search nothing")
    run_config_search_min_instance_count: int = option(1, "least number of instances")
    run_config_search_max_instance_count: int = option(5, "greatest number of instances")
    run_config_search_min_model_batch_size: int = option(1, "least max_batch_size, of models that batch")
    run_config_search_max_model_batch_size: int = option(128, "greatest max_batch_size, of models that batch")
    run_config_search_max_binary_search_steps: int = option(
        5, "halvings towards the highest load that keeps the constraints"
    )
    concurrency_sweep_disable: bool = option(False, "quick and optuna: do not sweep the loads of the best")
    early_exit_enable: bool = option(
        False, "end also a listed load or batch size when more of it brings nothing"
    )
    plateau_rule: PlateauRule = option(
        "model-analyzer",
        "when more load brings nothing: the best of four is at most 5% above the first of them "
        "(model-analyzer); or above its mean with those after it that are lower, so that one lucky "
        "measurement ends nothing (pooled)",
        metavar="model-analyzer|pooled",
    )

    def __post_init__(self) -> None:
        """Raise UsageError for a value out of range."""
        if self.run_config_search_max_binary_search_steps < 0:
            raise UsageError(
                "--run-config-search-max-binary-search-steps must not be negative: "
                f"{self.run_config_search_max_binary_search_steps}"
            )
        _ = self.instances, self.max_batch_sizes

    @property
    def instances(self) -> Span:
        """The range of instances. Raises UsageError where its minimum is above its maximum."""
        return Span(
            name="instance-count",
            minimum=self.run_config_search_min_instance_count,
            maximum=self.run_config_search_max_instance_count,
        )

    @property
    def max_batch_sizes(self) -> Span:
        """The range of max_batch_size. Raises UsageError where its minimum is above its maximum."""
        return Span(
            name="model-batch-size",
            minimum=self.run_config_search_min_model_batch_size,
            maximum=self.run_config_search_max_model_batch_size,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadsSpec:
    """Loads that configurations are compared under."""

    batch_sizes: tuple[int, ...] = option(
        (1,), "inferences in one request", "-b", metavar="N,N", comma=True, read=numbers
    )
    concurrency: tuple[int, ...] = option(
        (),
        "exactly these concurrencies, instead of doubling until a plateau",
        "-c",
        metavar="N,N",
        comma=True,
        read=numbers,
    )
    request_rate: tuple[int, ...] = option(
        (), "exactly these requests per second", metavar="N,N", comma=True, read=numbers
    )
    request_rate_search_enable: bool = option(
        False, "search by requests per second instead of requests in flight"
    )
    run_config_search_min_concurrency: int = option(1, "least concurrency")
    run_config_search_max_concurrency: int = option(1024, "greatest concurrency")
    run_config_search_min_request_rate: int = option(16, "least requests per second")
    run_config_search_max_request_rate: int = option(8192, "greatest requests per second")

    def __post_init__(self) -> None:
        """Raise UsageError for a range whose minimum is above its maximum."""
        _ = self.concurrencies, self.request_rates

    def space(self, own: ModelParameters, strategy: StrategySpec) -> LoadSpace:
        """Loads of a model that may have some of its own. Raises UsageError for a load below 1."""
        batch_sizes = own.batch_sizes or self.batch_sizes
        rates = own.request_rate or (() if own.concurrency else self.request_rate)
        listed = own.concurrency or (() if rates else self.concurrency)
        if rates or (self.by_request_rate and not listed):
            return LoadSpace(
                values=rates or self.request_rates.doublings(),
                batch_sizes=batch_sizes,
                kind="request_rate",
                until_plateau=not rates or strategy.early_exit_enable,
                plateau_rule=strategy.plateau_rule,
                listed=bool(rates),
            )
        listed = listed or ((1,) if strategy.run_config_search_disable else ())
        return LoadSpace(
            values=listed or self.concurrencies.doublings(),
            batch_sizes=batch_sizes,
            until_plateau=not listed or strategy.early_exit_enable,
            plateau_rule=strategy.plateau_rule,
            listed=bool(listed),
            at_most=None if listed else self.concurrencies.maximum,
        )

    @property
    def by_request_rate(self) -> bool:
        """Whether loads are requests per second; a listed rate says so too."""
        ranges = (self.run_config_search_min_request_rate, self.run_config_search_max_request_rate)
        return bool(self.request_rate) or self.request_rate_search_enable or ranges != (16, 8192)

    @property
    def concurrencies(self) -> Span:
        """The range of requests in flight. Raises UsageError where its minimum is above its maximum."""
        return Span(
            name="concurrency",
            minimum=self.run_config_search_min_concurrency,
            maximum=self.run_config_search_max_concurrency,
        )

    @property
    def request_rates(self) -> Span:
        """The range of requests per second. Raises UsageError where its minimum is above its maximum."""
        return Span(
            name="request-rate",
            minimum=self.run_config_search_min_request_rate,
            maximum=self.run_config_search_max_request_rate,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OptunaSpec:
    """How much of the space optuna tries."""

    min_percentage_of_search_space: float | None = option(
        None,
        "least share of the space to try, in percent (5, unless --optuna-min-trials is given)",
    )
    max_percentage_of_search_space: float | None = option(
        None,
        "greatest share of the space to try, in percent (10, unless --optuna-max-trials is given)",
    )
    optuna_min_trials: int | None = option(
        None, "least number of trials; where a share is given too, the greater of both"
    )
    optuna_max_trials: int | None = option(
        None, "greatest number of trials; where a share is given too, the less of both"
    )
    optuna_early_exit_threshold: int = option(10, "trials without an improvement that end the search")
    use_concurrency_formula: bool = option(
        False, "load of a trial: 2 x instances x batch size, instead of a choice"
    )

    def __post_init__(self) -> None:
        """Raise UsageError for a value out of range."""
        if self.optuna_early_exit_threshold < 0:
            raise UsageError(
                f"--optuna-early-exit-threshold must not be negative: {self.optuna_early_exit_threshold}"
            )
        for name in ("optuna_min_trials", "optuna_max_trials"):
            trials = getattr(self, name)
            if trials is not None and trials < 1:
                raise UsageError(f"--{name.replace('_', '-')} must be at least 1, not {trials}")
        low, high = self.min_percentage_of_search_space, self.max_percentage_of_search_space
        for name, share in (("min", low), ("max", high)):
            if share is not None and not 0 < share <= 100:
                raise UsageError(f"--{name}-percentage-of-search-space must be above 0, up to 100: {share:g}")
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


_UNITS = {"s": 1, "m": 60, "h": 3600, "": 1}


def seconds(value: Any) -> float:
    """`90`, `90s`, `20m`, `1.5h`."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smh]?)\s*", str(value))
    if found is None or isinstance(value, bool):
        raise ValueError(f"expected a time as 90s, 20m or 1.5h, got {value!r}")
    return float(found.group(1)) * _UNITS[found.group(2)]


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSpec:
    """Budgets, final repetitions, metrics to weigh against each other."""

    budget: float | None = option(
        None,
        "time for measuring each model (20m); the mode is budgeted then, unless one is chosen",
        metavar="TIME",
        parse=seconds,
        read=seconds,
    )
    max_measurements: int | None = option(None, "measurements of each model at most; as --budget")
    final_rounds: int = option(
        5, "rounds at most in which the best and the default are measured again; 0: none"
    )
    seed: int = option(0, "of the search and of the order of the final rounds")
    pareto: tuple[str, ...] = option(
        (),
        "metrics whose best compromises are searched; the mode is pareto then",
        metavar="TAG,TAG",
        comma=True,
        read=words,
    )

    def __post_init__(self) -> None:
        """Raise UsageError for a value out of range."""
        _ = self.limits
        if len(self.pareto) == 1:
            raise UsageError("--pareto takes at least two metrics: with one there is nothing to weigh")
        for tag in self.pareto:
            metric(tag)

    @property
    def limits(self) -> Limits:
        """Budgets and the final repetitions. Raises UsageError for a value out of range."""
        return Limits(
            max_measurements=self.max_measurements,
            budget_ns=None if self.budget is None else round(self.budget * 1e9),
            final_rounds=self.final_rounds,
            seed=self.seed,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AxesSpec:
    """What varies beyond instances and batch sizes."""

    search_threads: bool = option(False, "threads of an instance, so that all instances fit the cores")
    cores: int | None = option(None, "processors for all instances together (those of this machine)")
    queue_delays: tuple[int, ...] = option(
        (), "max_queue_delay_microseconds to try", metavar="N,N", comma=True, read=numbers
    )
    search_without_batching: bool = option(False, "try batch sizes without the dynamic batcher too")
    execution_providers: tuple[str, ...] = option(
        (),
        "accelerators to try: openvino, cuda, tensorrt",
        metavar="A,B",
        comma=True,
        read=words,
    )
    graph_levels: tuple[int, ...] = option(
        (),
        "optimization.graph.level to try: -1, 1, 2",
        metavar="N,N",
        comma=True,
        read=numbers,
    )
    precisions: tuple[str, ...] = option(
        (), "precisions of tensorrt and openvino to try: FP16, INT8", metavar="A,B", comma=True
    )
    accuracy_tolerance: float = option(
        0.01, "by how much answers of such a variant may differ from the default's, relatively"
    )

    def __post_init__(self) -> None:
        """Raise UsageError for a value out of range."""
        if self.cores is not None and self.cores < 1:
            raise UsageError(f"--cores must be at least 1, not {self.cores}")
        if not self.accuracy_tolerance > 0:
            raise UsageError(f"--accuracy-tolerance must be above 0, not {self.accuracy_tolerance:g}")
        negative = [str(delay) for delay in self.queue_delays if delay < 0]
        if negative:
            raise UsageError(f"--queue-delays must not be negative: {', '.join(negative)}")
        for level in self.graph_levels:
            if integer(level) not in (-1, 0, 1, 2):
                raise UsageError(f"--graph-levels are -1, 0, 1 and 2, not {level}")
        for provider in self.execution_providers:
            if provider not in ("openvino", "cuda", "tensorrt"):
                raise UsageError(f"--execution-providers are openvino, cuda and tensorrt, not '{provider}'")

    @property
    def extras(self) -> Extras:
        """The axes beyond instances and batch sizes."""
        return Extras(
            threads=self.search_threads,
            cores=self.cores or os.cpu_count() or 1,
            queue_delays_us=self.queue_delays,
            batching_off=self.search_without_batching,
            execution_providers=self.execution_providers,
            graph_levels=self.graph_levels,
            precisions=self.precisions,
        )
