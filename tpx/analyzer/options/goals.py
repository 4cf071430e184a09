"""The options that say what a good configuration is."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from tpx.analyzer.models import ModelToProfile
from tpx.analyzer.options.values import from_yaml_text, read_constraints, read_objectives
from tpx.analyzer.results.goals import Constraint, Goals, ModelGoals, Objective
from tpx.errors import UsageError
from tpx.options import Option

_GOALS = "Goals"
Gate = Literal["satisfied", "conclusive"]


@dataclass(frozen=True, kw_only=True)
class GoalOptions:
    """Objectives, constraints, and how many of the best are shown."""

    objectives: Annotated[
        tuple[Objective, ...],
        Option(
            "metrics to improve: a list, or a map with weights (perf_throughput)",
            (),
            _GOALS,
            "TAG,TAG|{TAG: WEIGHT}",
            parse=from_yaml_text(read_objectives),
            read=read_objectives,
        ),
    ] = ()
    constraints: Annotated[
        tuple[Constraint, ...],
        Option(
            "limits of metrics: `perf_latency_p99<=10`, or a map of tags to min or max",
            (),
            _GOALS,
            "TAG<=N,TAG>=N",
            parse=from_yaml_text(read_constraints),
            read=read_constraints,
        ),
    ] = ()
    weighting: Annotated[
        float | None, Option("of one model among several: a key of that model in the file", (), _GOALS)
    ] = None
    latency_budget: Annotated[
        float | None, Option("p99 latency in milliseconds that a configuration may have", (), _GOALS, "MS")
    ] = None
    min_throughput: Annotated[
        float | None,
        Option("inferences per second that a configuration must reach", (), _GOALS, "N"),
    ] = None
    require: Annotated[
        tuple[Gate, ...],
        Option(
            "what a verdict has to be for status 0: satisfied (status 3 where no configuration keeps the "
            "constraints), conclusive (status 4 where no configuration is certain to be better)",
            (),
            _GOALS,
            "satisfied,conclusive",
            comma=True,
        ),
    ] = ()
    num_configs_per_model: Annotated[
        int, Option("best configurations that the report draws and shows in detail", (), _GOALS)
    ] = 3
    num_top_model_configs: Annotated[
        int, Option("best configurations over all models, shown together; 0: none", (), _GOALS)
    ] = 0

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
