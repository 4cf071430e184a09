"""The options that say what is searched, and how."""

from dataclasses import dataclass
from typing import Literal

from tpx.analyzer.models import ModelToProfile
from tpx.analyzer.options.values import numbers
from tpx.analyzer.search.loads import LoadSpace, PlateauRule
from tpx.analyzer.search.spec import MOST_PERCENT, SearchSpace, Span
from tpx.errors import UsageError
from tpx.options import option

_SEARCH = "Search"
_LOAD = "Load"
_OPTUNA = "Search with optuna"
SEARCH_MODES = ("brute", "quick", "optuna", "budgeted", "pareto")


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Strategy, ranges, loads."""

    run_config_search_mode: Literal["brute", "quick", "optuna", "budgeted", "pareto"] | None = option(
        None,
        "how the space is searched (brute, unless other options or the model ask for another mode)",
        section=_SEARCH,
        metavar="|".join(SEARCH_MODES),
    )
    run_config_search_disable: bool = option(
        False, "measure only what is listed, search nothing", section=_SEARCH
    )
    run_config_search_min_instance_count: int = option(1, "least number of instances", section=_SEARCH)
    run_config_search_max_instance_count: int = option(5, "greatest number of instances", section=_SEARCH)
    run_config_search_min_model_batch_size: int = option(
        1, "least max_batch_size, of models that batch", section=_SEARCH
    )
    run_config_search_max_model_batch_size: int = option(
        128, "greatest max_batch_size, of models that batch", section=_SEARCH
    )
    run_config_search_max_binary_search_steps: int = option(
        5, "halvings towards the highest load that keeps the constraints", section=_SEARCH
    )
    concurrency_sweep_disable: bool = option(
        False, "quick and optuna: do not sweep the loads of the best", section=_SEARCH
    )
    early_exit_enable: bool = option(
        False, "end also a listed load or batch size when more of it brings nothing", section=_SEARCH
    )
    plateau_rule: PlateauRule = option(
        "model-analyzer",
        "when more load brings nothing: the best of four is at most 5% above the first of them "
        "(model-analyzer); or above its mean with those after it that are lower, so that one lucky "
        "measurement ends nothing (pooled)",
        section=_SEARCH,
        metavar="model-analyzer|pooled",
    )

    batch_sizes: tuple[int, ...] = option(
        (1,), "inferences in one request", "-b", section=_LOAD, metavar="N,N", comma=True, read=numbers
    )
    concurrency: tuple[int, ...] = option(
        (),
        "exactly these concurrencies, instead of doubling until a plateau",
        "-c",
        section=_LOAD,
        metavar="N,N",
        comma=True,
        read=numbers,
    )
    request_rate: tuple[int, ...] = option(
        (), "exactly these requests per second", section=_LOAD, metavar="N,N", comma=True, read=numbers
    )
    request_rate_search_enable: bool = option(
        False, "search by requests per second instead of requests in flight", section=_LOAD
    )
    run_config_search_min_concurrency: int = option(1, "least concurrency", section=_LOAD)
    run_config_search_max_concurrency: int = option(1024, "greatest concurrency", section=_LOAD)
    run_config_search_min_request_rate: int = option(16, "least requests per second", section=_LOAD)
    run_config_search_max_request_rate: int = option(8192, "greatest requests per second", section=_LOAD)

    min_percentage_of_search_space: float | None = option(
        None,
        "least share of the space to try, in percent (5, unless --optuna-min-trials is given)",
        section=_OPTUNA,
    )
    max_percentage_of_search_space: float | None = option(
        None,
        "greatest share of the space to try, in percent (10, unless --optuna-max-trials is given)",
        section=_OPTUNA,
    )
    optuna_min_trials: int | None = option(
        None, "least number of trials; where a share is given too, the greater of both", section=_OPTUNA
    )
    optuna_max_trials: int | None = option(
        None, "greatest number of trials; where a share is given too, the less of both", section=_OPTUNA
    )
    optuna_early_exit_threshold: int = option(
        10, "trials without an improvement that end the search", section=_OPTUNA
    )
    use_concurrency_formula: bool = option(
        False, "load of a trial: 2 x instances x batch size, instead of a choice", section=_OPTUNA
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

    @property
    def space(self) -> SearchSpace:
        """What to search in a model without settings of its own."""
        return self.space_of(ModelToProfile(name=""))

    def space_of(self, model: ModelToProfile) -> SearchSpace:
        """What to search in this model. Raises UsageError for an empty range or a load below 1."""
        return SearchSpace(
            loads=self._loads(model),
            instances=Span(
                name="instance-count",
                minimum=self.run_config_search_min_instance_count,
                maximum=self.run_config_search_max_instance_count,
            ),
            max_batch_sizes=Span(
                name="model-batch-size",
                minimum=self.run_config_search_min_model_batch_size,
                maximum=self.run_config_search_max_model_batch_size,
            ),
        )

    def check_search(self) -> None:
        """Raise UsageError for a value out of range."""
        for name in ("run_config_search_max_binary_search_steps", "optuna_early_exit_threshold"):
            if getattr(self, name) < 0:
                raise UsageError(f"--{name.replace('_', '-')} must not be negative: {getattr(self, name)}")
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

    def _loads(self, model: ModelToProfile) -> LoadSpace:
        own = model.parameters
        batch_sizes = own.batch_sizes or self.batch_sizes
        rates = own.request_rate or (() if own.concurrency else self.request_rate)
        listed = own.concurrency or (() if rates else self.concurrency)
        if rates or (self.by_request_rate and not listed):
            return LoadSpace(
                values=rates or self.request_rates.doublings(),
                batch_sizes=batch_sizes,
                kind="request_rate",
                until_plateau=not rates or self.early_exit_enable,
                plateau_rule=self.plateau_rule,
                listed=bool(rates),
            )
        alone = (1,) if self.run_config_search_disable else ()
        listed = listed or alone
        return LoadSpace(
            values=listed or self.concurrencies.doublings(),
            batch_sizes=batch_sizes,
            until_plateau=not listed or self.early_exit_enable,
            plateau_rule=self.plateau_rule,
            listed=bool(listed),
            at_most=None if listed else self.concurrencies.maximum,
        )
