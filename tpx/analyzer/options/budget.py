"""The options that say how much may be measured, what varies beyond Model Analyzer's axes, and how sure the
answer has to be."""

import os
import re
from dataclasses import dataclass
from typing import Any

from tpx.analyzer.objectives import metric
from tpx.analyzer.options.values import integer, numbers, words
from tpx.analyzer.search.spec import Extras, Limits
from tpx.errors import UsageError
from tpx.options import option

_BUDGET = "Search with a budget"
_AXES = "More axes of the search"
_UNITS = {"s": 1, "m": 60, "h": 3600, "": 1}


def seconds(value: Any) -> float:
    """`90`, `90s`, `20m`, `1.5h`."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smh]?)\s*", str(value))
    if found is None or isinstance(value, bool):
        raise ValueError(f"expected a time as 90s, 20m or 1.5h, got {value!r}")
    return float(found.group(1)) * _UNITS[found.group(2)]


@dataclass(frozen=True, kw_only=True)
class BudgetOptions:
    """Budgets, final repetitions, further axes."""

    budget: float | None = option(
        None,
        "time for measuring each model (20m); the mode is budgeted then, unless one is chosen",
        section=_BUDGET,
        metavar="TIME",
        parse=seconds,
        read=seconds,
    )
    max_measurements: int | None = option(
        None, "measurements of each model at most; as --budget", section=_BUDGET
    )
    final_rounds: int = option(
        5, "rounds at most in which the best and the default are measured again; 0: none", section=_BUDGET
    )
    seed: int = option(0, "of the search and of the order of the final rounds", section=_BUDGET)
    pareto: tuple[str, ...] = option(
        (),
        "metrics whose best compromises are searched; the mode is pareto then",
        section=_BUDGET,
        metavar="TAG,TAG",
        comma=True,
        read=words,
    )

    search_threads: bool = option(
        False, "threads of an instance, so that all instances fit the cores", section=_AXES
    )
    cores: int | None = option(
        None, "processors for all instances together (those of this machine)", section=_AXES
    )
    queue_delays: tuple[int, ...] = option(
        (), "max_queue_delay_microseconds to try", section=_AXES, metavar="N,N", comma=True, read=numbers
    )
    search_without_batching: bool = option(
        False, "try batch sizes without the dynamic batcher too", section=_AXES
    )
    execution_providers: tuple[str, ...] = option(
        (),
        "accelerators to try: openvino, cuda, tensorrt",
        section=_AXES,
        metavar="A,B",
        comma=True,
        read=words,
    )
    graph_levels: tuple[int, ...] = option(
        (),
        "optimization.graph.level to try: -1, 1, 2",
        section=_AXES,
        metavar="N,N",
        comma=True,
        read=numbers,
    )
    precisions: tuple[str, ...] = option(
        (), "precisions of tensorrt and openvino to try: FP16, INT8", section=_AXES, metavar="A,B", comma=True
    )
    accuracy_tolerance: float = option(
        0.01, "by how much answers of such a variant may differ from the default's, relatively", section=_AXES
    )

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

    @property
    def limits(self) -> Limits:
        """Budgets and the final repetitions. Raises UsageError for a value out of range."""
        return Limits(
            max_measurements=self.max_measurements,
            budget_ns=None if self.budget is None else round(self.budget * 1e9),
            final_rounds=self.final_rounds,
            seed=self.seed,
        )

    def check_budget(self) -> None:
        """Raise UsageError for a value out of range."""
        _ = self.limits
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
        if len(self.pareto) == 1:
            raise UsageError("--pareto takes at least two metrics: with one there is nothing to weigh")
        for tag in self.pareto:
            metric(tag)
