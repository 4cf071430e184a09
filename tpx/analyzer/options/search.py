"""The options of the search: its strategy, ranges and loads; the others are groups of its spec."""

from dataclasses import dataclass
from typing import Literal

from tpx.analyzer.options.models import ModelParameters
from tpx.analyzer.search.loads import LoadSpace, PlateauRule
from tpx.analyzer.search.spec import Span
from tpx.analyzer.values import numbers
from tpx.options import option


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategySpec:
    """Strategy and ranges."""

    run_config_search_mode: Literal["brute", "quick", "optuna", "budgeted", "pareto"] | None = option(
        None,
        "how the space is searched (brute, unless other options or the model ask for another mode)",
        metavar="brute|quick|optuna|budgeted|pareto",
        common=True,
    )
    run_config_search_disable: bool = option(False, "measure only what is listed, search nothing")
    run_config_search_min_instance_count: int = option(1, "least number of instances")
    run_config_search_max_instance_count: int = option(5, "greatest number of instances")
    run_config_search_min_model_batch_size: int = option(1, "least max_batch_size, of models that batch")
    run_config_search_max_model_batch_size: int = option(128, "greatest max_batch_size, of models that batch")
    run_config_search_max_binary_search_steps: int = option(
        5, "halvings towards the highest load that keeps the constraints", minimum=0
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
        (1,), "inferences in one request", "-b", metavar="N,N", comma=True, read=numbers, common=True
    )
    concurrency: tuple[int, ...] = option(
        (),
        "exactly these concurrencies, instead of doubling until a plateau",
        "-c",
        metavar="N,N",
        comma=True,
        read=numbers,
        common=True,
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
        """True if loads are requests per second; a listed rate says so too."""
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
