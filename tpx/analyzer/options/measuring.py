"""The options of measuring: goals, how one configuration is measured, what is watched."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tpx.analyzer.options.models import ModelToProfile
from tpx.analyzer.results.goals import Constraint, Goals, ModelGoals, Objective
from tpx.analyzer.values import Flags, flags, from_yaml_text, read_constraints, read_objectives
from tpx.errors import UsageError
from tpx.options import option
from tpx.perf.settings import Shape, parse_shape

_MAP = "{KEY: VALUE}"
Gate = Literal["satisfied", "conclusive"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GoalSpec:
    """Objectives, constraints, and how many of the best are shown."""

    objectives: tuple[Objective, ...] = option(
        (),
        "metrics to improve: a list, or a map with weights (perf_throughput)",
        metavar="TAG,TAG|{TAG: WEIGHT}",
        parse=from_yaml_text(read_objectives),
        read=read_objectives,
        common=True,
    )
    constraints: tuple[Constraint, ...] = option(
        (),
        "limits of metrics: `perf_latency_p99<=10`, or a map of tags to min or max",
        metavar="TAG<=N,TAG>=N",
        parse=from_yaml_text(read_constraints),
        read=read_constraints,
        common=True,
    )
    weighting: float | None = option(None, "of one model among several: a key of that model in the file")
    latency_budget: float | None = option(
        None, "p99 latency in milliseconds that a configuration may have", metavar="MS", common=True
    )
    min_throughput: float | None = option(
        None, "inferences per second that a configuration must reach", metavar="N"
    )
    require: tuple[Gate, ...] = option(
        (),
        "what a verdict has to be for status 0: satisfied (status 4 where no configuration keeps the "
        "constraints), conclusive (status 7 where no configuration is certain to be better)",
        metavar="satisfied,conclusive",
        comma=True,
        common=True,
    )
    allow_partial: bool = option(
        False, "do not exit with 130 when Ctrl-C cuts the run short: judge what it measured"
    )
    num_configs_per_model: int = option(
        3, "best configurations that the report draws and shows in detail", minimum=0
    )
    num_top_model_configs: int = option(
        0, "best configurations over all models, shown together; 0: none", minimum=0
    )

    def __post_init__(self) -> None:
        """Raise UsageError for a value out of range, or for goals that do not go together."""
        if self.weighting is not None:
            raise UsageError("weighting is of one model: give it as a key of that model in profile_models")
        if self.num_top_model_configs and not (self.constraints or self._budgets()):
            raise UsageError(
                "--num-top-model-configs compares models by constraints that hold for all of them: "
                "give constraints, --latency-budget or --min-throughput"
            )
        _ = self.goals_for(())

    def goals_for(self, models: Sequence[ModelToProfile]) -> Goals:
        """Return the goals of all models and of those with their own; budgets hold for every model."""
        own = tuple(
            ModelGoals(
                model=model.name,
                weight=model.weighting,
                objectives=model.objectives,
                constraints=None if model.constraints is None else self._with_budgets(model.constraints),
            )
            for model in models
            if (model.objectives, model.constraints, model.weighting) != (None, None, 1.0)
        )
        return Goals(
            objectives=self.objectives or Goals().objectives,
            constraints=self._with_budgets(self.constraints),
            models=own,
        )

    def _with_budgets(self, limits: tuple[Constraint, ...]) -> tuple[Constraint, ...]:
        budgets = self._budgets()
        shadowed = {(limit.tag, limit.bound) for limit in budgets}
        return tuple(limit for limit in limits if (limit.tag, limit.bound) not in shadowed) + budgets

    def _budgets(self) -> tuple[Constraint, ...]:
        limits = []
        if self.latency_budget is not None:
            limits.append(Constraint(tag="perf_latency_p99", bound="max", limit=self.latency_budget))
        if self.min_throughput is not None:
            limits.append(Constraint(tag="perf_throughput", bound="min", limit=self.min_throughput))
        return tuple(limits)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementSpec:
    """Windows and inputs."""

    model_type: Literal["generic", "LLM"] = option(
        "generic",
        "LLM: measured through the OpenAI API, token by token",
        metavar="generic|LLM",
    )
    measurement_interval: int = option(
        1000, "milliseconds of a measurement window, of which a trial has one to three", minimum=1
    )
    stability_percentage: float = option(
        10.0, "width of the interval of throughput that ends a trial, in percent", above=0
    )
    max_trials: int = option(10, "windows that one measurement has at most", minimum=1)
    shape: tuple[Shape, ...] = option(
        (),
        "shape of an input with dynamic dimensions, without the batch dimension (repeatable)",
        metavar="NAME:D,D",
        parse=parse_shape,
        common=True,
    )
    input_data: Literal["zero", "random"] = option(
        "random", "what the inputs hold", metavar="zero|random", common=True
    )
    perf_analyzer_flags: Flags = option(
        {},
        "options of tpx perf by name",
        metavar=_MAP,
        parse=from_yaml_text(flags),
        read=flags,
    )
    genai_perf_flags: Flags = option(
        {},
        "options of genai-perf by name, for model_type LLM",
        metavar=_MAP,
        parse=from_yaml_text(flags),
        read=flags,
    )
    perf_analyzer_timeout: int = option(
        600, "seconds after which a measurement has failed", metavar="SECONDS", minimum=1
    )
    perf_analyzer_max_auto_adjusts: int = option(
        10, "an unstable measurement goes on: see --max-trials", inert=True
    )
    perf_analyzer_cpu_util: float | None = option(None, "tpx measures without perf_analyzer", inert=True)
    perf_analyzer_path: str = option(
        "perf_analyzer", "tpx measures without perf_analyzer", metavar="PROGRAM", inert=True
    )
    perf_output: bool = option(False, "show each measurement as tpx perf would")
    perf_output_path: Path | None = option(None, "the same into a file", metavar="FILE")


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSpec:
    """Figures that are watched while the server is measured, or idle."""

    monitoring_interval: float = option(
        1.0, "seconds between two readings of memory and GPUs", "-i", metavar="SECONDS", above=0
    )
    price_per_hour: float | None = option(
        None,
        "price of the machine: reports then tell what a million inferences cost",
        metavar="PRICE",
        above=0,
    )
    duration_seconds: float = option(
        3.0, "seconds that the server is watched without a model", "-d", metavar="SECONDS", minimum=0
    )
    collect_cpu_metrics: bool = option(
        False, "memory of the server as columns of the tables and CSV files too"
    )
    always_report_gpu_metrics: bool = option(False, "show figures of GPUs also of models that are cpu_only")
    dcgm_disable: bool = option(False, "tpx makes no use of DCGM; only with launch mode remote", inert=True)
