"""What a run would measure, without measuring: the run itself over a runner that says that more is always
better, so that the search takes every step it might take."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpx.analyzer.results.measurement import Configuration, Latency, Load, Measurement, Range
from tpx.analyzer.results.run import ModelRun, Run
from tpx.analyzer.runners.base import Preparation, Runner

MOST_TRIALS = 3000
"""A plan goes no further; what would follow is said to follow."""
GROWTH = 1.1
P99_NS = 1_000_000
STABLE_WINDOWS = 3
WINDOW_SHARE = 1.2
"""A window lasts so many times its interval, as perf_analyzer's do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long one measurement takes, by its windows."""

    stable_ns: int
    """Where the first three windows agree."""
    longest_ns: int
    """Where they never do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A configuration that would be measured, with its loads in order."""

    configuration: Configuration
    loads: tuple[Load, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlan:
    """One model's search at its longest."""

    model: str
    configurations: tuple[Planned, ...]
    repetitions: int
    """Measurements of the final rounds."""
    nothing: str = ""
    """Why there would be nothing to measure."""

    @property
    def measurements(self) -> int:
        """Of the search."""
        return sum(len(planned.loads) for planned in self.configurations)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """All models, and whether that is all of it."""

    models: tuple[ModelPlan, ...]
    complete: bool

    @property
    def measurements(self) -> int:
        """With the final rounds."""
        return sum(model.measurements + model.repetitions for model in self.models)


def pace_of(*, interval_ms: int, max_windows: int, limit_s: float) -> Pace:
    """The pace of measurements with these windows, which are cut off after `limit_s`."""
    window_ns = interval_ms * WINDOW_SHARE * 1e6
    limit_ns = limit_s * 1e9
    return Pace(
        stable_ns=round(min(limit_ns, min(STABLE_WINDOWS, max_windows) * window_ns)),
        longest_ns=round(min(limit_ns, max_windows * window_ns)),
    )


class PlanningRunner:
    """Implements Runner: configurations are those of a real runner, measurements are made up."""

    def __init__(self, runner: Runner, pace: Pace) -> None:
        self._runner = runner
        self._pace = pace
        self._throughput = 1.0

    @property
    def server(self) -> None:
        return None

    async def default_config(self, model: str) -> dict[str, Any]:
        return await self._runner.default_config(model)

    async def prepare(self, configuration: Configuration | None, directory: Path) -> Preparation | None:  # noqa: ARG002
        return None

    async def measure(self, load: Load) -> Measurement:
        """Better than all before it."""
        self._throughput *= GROWTH
        value = self._throughput
        return Measurement(
            variant="",
            load=load,
            throughput=value,
            latency=Latency(avg_ns=P99_NS, p50_ns=P99_NS, p90_ns=P99_NS, p95_ns=P99_NS, p99_ns=P99_NS),
            throughput_range=Range(low=value * 0.99, high=value * 1.01),
            duration_ns=self._pace.stable_ns,
            cost_ns=self._pace.stable_ns,
        )

    async def close(self) -> None:
        await self._runner.close()


def plan_of(run: Run) -> RunPlan:
    """What a run over a PlanningRunner tells."""
    return RunPlan(models=tuple(map(_model, run.models)), complete=run.outcome == "complete")


def _model(model: ModelRun) -> ModelPlan:
    return ModelPlan(
        model=model.model,
        configurations=tuple(
            Planned(
                configuration=variant.configuration,
                loads=tuple(measured.load for measured in variant.measurements),
            )
            for variant in model.variants
        ),
        repetitions=sum(len(variant.repetitions) for variant in model.variants),
        nothing="" if model.measured else model.why_nothing,
    )
