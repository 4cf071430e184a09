"""Ranges and loads of a search, and the options that define them."""

from bisect import bisect_left
from dataclasses import dataclass
from typing import Literal

from tpx.analyzer.results.measurement import LoadKind
from tpx.analyzer.values import numbers
from tpx.errors import UsageError
from tpx.options import Options, option


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSpace:
    """Loads that each configuration is measured under, deduplicated and ascending."""

    values: tuple[int, ...]
    batch_sizes: tuple[int, ...] = (1,)
    kind: LoadKind = "concurrency"
    until_plateau: bool = True
    """Stop when more load brings no gain; off for loads that the user listed."""
    listed: bool = False
    """True if the user listed the loads, in which case no others are tried."""
    at_most: int | None = None
    """Upper bound of the range that `values` double through; None is the last value."""

    def __post_init__(self) -> None:
        for name, part in ((self.kind, "values"), ("batch size", "batch_sizes")):
            values = sorted(set(getattr(self, part)))
            if not values or values[0] < 1:
                raise UsageError(f"every {name.replace('_', ' ')} must be at least 1: {values}")
            object.__setattr__(self, part, tuple(values))

    def within(self, load: int) -> int:
        """Return the load, clamped to the range."""
        return min(max(load, self.values[0]), self.at_most or self.values[-1])

    def around(self, load: int) -> tuple[int, ...]:
        """Return the values plus the given concurrency; listed values are not extended."""
        if self.listed or self.kind != "concurrency":
            return self.values
        return tuple(sorted({*self.values, self.within(load)}))

    def closest(self, wanted: float) -> int:
        """Return the load closest to this one; among listed loads, the least above it, or the last."""
        load = max(1, round(wanted))
        if not self.listed:
            return load
        return self.values[min(bisect_left(self.values, load), len(self.values) - 1)]


class StrategySpec(Options):
    """Strategy and ranges."""

    run_config_search_mode: Literal["brute", "quick", "optuna", "budgeted", "pareto"] | None = option(
        None,
        "search mode (default brute, unless other options or the model require another)",
        metavar="brute|quick|optuna|budgeted|pareto",
        common=True,
    )
    run_config_search_disable: bool = option(False, "measure only the listed values, without a search")
    run_config_search_min_instance_count: int = option(1, "minimum instances")
    run_config_search_max_instance_count: int = option(5, "maximum instances")
    run_config_search_min_model_batch_size: int = option(1, "minimum max_batch_size, for models that batch")
    run_config_search_max_model_batch_size: int = option(128, "maximum max_batch_size, for models that batch")
    run_config_search_max_binary_search_steps: int = option(
        5, "bisection steps towards the highest load that satisfies the constraints", minimum=0
    )
    concurrency_sweep_disable: bool = option(
        False, "quick and optuna: do not sweep the loads of the best configurations"
    )
    early_exit_enable: bool = option(
        False, "stop early in listed loads and batch sizes too, once more of them gains nothing"
    )

    def __post_init__(self) -> None:
        _ = self.instances, self.max_batch_sizes

    @property
    def instances(self) -> tuple[int, ...]:
        low, high = _check_range(self, "instance-count")
        return tuple(range(low, high + 1))

    @property
    def max_batch_sizes(self) -> tuple[int, ...]:
        return _double(*_check_range(self, "model-batch-size"))


def _check_range(spec: "StrategySpec | LoadsSpec", name: str) -> tuple[int, int]:
    """Return the ends of a range. Raises UsageError unless 1 <= minimum <= maximum."""
    flags = [f"--run-config-search-{end}-{name}" for end in ("min", "max")]
    low, high = (getattr(spec, flag.removeprefix("--").replace("-", "_")) for flag in flags)
    if low < 1:
        raise UsageError(f"{flags[0]} must be at least 1, not {low}")
    if low > high:
        raise UsageError(f"{flags[0]} {low} is above {flags[1]} {high}")
    return low, high


def _double(low: int, high: int) -> tuple[int, ...]:
    """Return low, 2 x low, 4 x low ... up to high."""
    return tuple(low << n for n in range((high // low).bit_length()))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelParameters:
    """The loads of one model; an empty tuple uses the run's."""

    batch_sizes: tuple[int, ...] = ()
    concurrency: tuple[int, ...] = ()
    request_rate: tuple[int, ...] = ()


class LoadsSpec(Options):
    """Loads under which configurations are compared."""

    batch_sizes: tuple[int, ...] = option(
        (1,), "inferences per request", "-b", metavar="N,N", comma=True, read=numbers, common=True
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
        (), "exactly these request rates per second", metavar="N,N", comma=True, read=numbers
    )
    request_rate_search_enable: bool = option(False, "search by request rate instead of concurrency")
    run_config_search_min_concurrency: int = option(1, "minimum concurrency")
    run_config_search_max_concurrency: int = option(1024, "maximum concurrency")
    run_config_search_min_request_rate: int = option(16, "minimum requests per second")
    run_config_search_max_request_rate: int = option(8192, "maximum requests per second")

    def __post_init__(self) -> None:
        """Raise UsageError for a range whose minimum is above its maximum."""
        _ = self.concurrencies, self.request_rates

    def space(self, own: ModelParameters, strategy: StrategySpec) -> LoadSpace:
        """Return the loads of a model; its own settings win. Raises UsageError for a load below 1."""
        batch_sizes = own.batch_sizes or self.batch_sizes
        rates = own.request_rate or (() if own.concurrency else self.request_rate)
        listed = own.concurrency or (() if rates else self.concurrency)
        bounds = (self.run_config_search_min_request_rate, self.run_config_search_max_request_rate)
        if rates or ((self.request_rate_search_enable or bounds != (16, 8192)) and not listed):
            return LoadSpace(
                values=rates or self.request_rates,
                batch_sizes=batch_sizes,
                kind="request_rate",
                until_plateau=not rates or strategy.early_exit_enable,
                listed=bool(rates),
            )
        listed = listed or ((1,) if strategy.run_config_search_disable else ())
        return LoadSpace(
            values=listed or self.concurrencies,
            batch_sizes=batch_sizes,
            until_plateau=not listed or strategy.early_exit_enable,
            listed=bool(listed),
            at_most=None if listed else self.run_config_search_max_concurrency,
        )

    @property
    def concurrencies(self) -> tuple[int, ...]:
        return _double(*_check_range(self, "concurrency"))

    @property
    def request_rates(self) -> tuple[int, ...]:
        return _double(*_check_range(self, "request-rate"))
