"""The options that say what a good configuration is."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tpx.analyzer.models import ModelToProfile
from tpx.analyzer.options.values import from_yaml_text, read_constraints, read_objectives
from tpx.analyzer.results.goals import Constraint, Goals, ModelGoals, Objective
from tpx.errors import UsageError
from tpx.options import option

_GOALS = "Goals"
Gate = Literal["satisfied", "conclusive"]


@dataclass(frozen=True, kw_only=True)
class GoalOptions:
    """Objectives, constraints, and how many of the best are shown."""

    objectives: tuple[Objective, ...] = option(
        (),
        "metrics to improve: a list, or a map with weights (perf_throughput)",
        section=_GOALS,
        metavar="TAG,TAG|{TAG: WEIGHT}",
        parse=from_yaml_text(read_objectives),
        read=read_objectives,
    )
    constraints: tuple[Constraint, ...] = option(
        (),
        "limits of metrics: `perf_latency_p99<=10`, or a map of tags to min or max",
        section=_GOALS,
        metavar="TAG<=N,TAG>=N",
        parse=from_yaml_text(read_constraints),
        read=read_constraints,
    )
    weighting: float | None = option(
        None, "of one model among several: a key of that model in the file", section=_GOALS
    )
    latency_budget: float | None = option(
        None, "p99 latency in milliseconds that a configuration may have", section=_GOALS, metavar="MS"
    )
    min_throughput: float | None = option(
        None, "inferences per second that a configuration must reach", section=_GOALS, metavar="N"
    )
    require: tuple[Gate, ...] = option(
        (),
        "what a verdict has to be for status 0: satisfied (status 4 where no configuration keeps the "
        "constraints), conclusive (status 7 where no configuration is certain to be better)",
        section=_GOALS,
        metavar="satisfied,conclusive",
        comma=True,
    )
    allow_partial: bool = option(
        False, "do not exit with 130 when Ctrl-C cuts the run short: judge what it measured", section=_GOALS
    )
    num_configs_per_model: int = option(
        3, "best configurations that the report draws and shows in detail", section=_GOALS
    )
    num_top_model_configs: int = option(
        0, "best configurations over all models, shown together; 0: none", section=_GOALS
    )

    def goals_for(self, models: Sequence[ModelToProfile]) -> Goals:
        """What is asked, of all models and of those with goals of their own; budgets hold for every model."""
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

    def check_goals(self) -> None:
        """Raise UsageError for a value out of range, or for goals that do not go together."""
        if self.weighting is not None:
            raise UsageError("weighting is of one model: give it as a key of that model in profile_models")
        if self.num_configs_per_model < 0:
            raise UsageError(f"--num-configs-per-model must not be negative: {self.num_configs_per_model}")
        if self.num_top_model_configs < 0:
            raise UsageError(f"--num-top-model-configs must not be negative: {self.num_top_model_configs}")
        if self.num_top_model_configs and not (self.constraints or self._budgets()):
            raise UsageError(
                "--num-top-model-configs compares models by constraints that hold for all of them: "
                "give constraints, --latency-budget or --min-throughput"
            )
        _ = self.goals_for(())

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
