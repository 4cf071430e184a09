"""Searches carried out on a simulated server, in virtual time."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tests.analyzer.simulated import Noise, SimulatedServer, Surface
from tpx.analyzer.objectives import rank
from tpx.analyzer.results.goals import Goals
from tpx.analyzer.results.measurement import Configuration, Decision, LoadPoint, Measurement, Trial, Variant
from tpx.analyzer.results.run import ModelRun, VariantRun
from tpx.analyzer.search.axes import open_grid
from tpx.analyzer.search.driver import SearchDriver
from tpx.analyzer.search.ranges import LoadSpace, StrategySpec
from tpx.analyzer.search.spec import (
    Extras,
    Limits,
    Mode,
    OptunaTrials,
    SearchSpace,
    SearchSpec,
)
from tpx.analyzer.variants import ModelFacts

BATCHING = ModelFacts(model="m", max_batch_size=8, backend="onnxruntime")
FIXED = ModelFacts(model="m", max_batch_size=0, backend="onnxruntime")
DOUBLINGS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
DEFAULT = {"max_batch_size": 8, "dynamic_batching": {}}


def space(
    *,
    loads: Sequence[int] = DOUBLINGS,
    batch_sizes: tuple[int, ...] = (1,),
    until_plateau: bool = True,
    instances: tuple[int, int] = (1, 5),
    max_batch_sizes: tuple[int, int] = (1, 128),
    extras: Extras | None = None,
) -> SearchSpace:
    return SearchSpace(
        loads=LoadSpace(values=tuple(loads), batch_sizes=batch_sizes, until_plateau=until_plateau),
        strategy=StrategySpec(
            run_config_search_min_instance_count=instances[0],
            run_config_search_max_instance_count=instances[1],
            run_config_search_min_model_batch_size=max_batch_sizes[0],
            run_config_search_max_model_batch_size=max_batch_sizes[1],
        ),
        extras=extras or Extras(),
    )


def search_spec(
    facts: ModelFacts = BATCHING,
    *,
    within: SearchSpace | None = None,
    goals: Goals | None = None,
    limits: Limits | None = None,
    trials: OptunaTrials | None = None,
    **strategy: Any,
) -> SearchSpec:
    within = within or space()
    return SearchSpec(
        facts=facts,
        default=DEFAULT if facts.max_batch_size else {},
        space=replace(within, strategy=replace(within.strategy, **strategy)),
        goals=goals or Goals(),
        limits=limits or Limits(),
        trials=trials or OptunaTrials(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Explored:
    """A search that is over."""

    asked: SearchSpec
    server: SimulatedServer
    trials: tuple[Trial, ...]
    measurements: tuple[Measurement, ...]
    decisions: tuple[Decision, ...]

    @property
    def model(self) -> ModelRun:
        """The search as a run would have it."""
        variants: dict[str, Variant] = {t.variant.name: t.variant for t in self.trials}
        return ModelRun(
            models=self.asked.models,
            variants=tuple(
                VariantRun(
                    configuration=self._configuration(variant),
                    measurements=self._of(name, final=False),
                    failures=(),
                    repetitions=self._of(name, final=True),
                )
                for name, variant in variants.items()
            ),
            decisions=self.decisions,
        )

    @property
    def found(self) -> tuple[Variant, LoadPoint]:
        """What comes out best, and its load."""
        best = rank(self.model, self.asked.goals)[0]
        return best.run.variant, best.figures.load

    @property
    def quality(self) -> float:
        """The true throughput of what was found, over that of the best there is."""
        grid = open_grid(self.asked)
        variants = [grid.variant(point) for point in grid.points()]
        _, _, best = self.server.best(variants, self.asked.space.loads.values)
        variant, load = self.found
        return self.server.truth(variant, load) / best

    @property
    def quality_of_best(self) -> float:
        """The true throughput of what was found, over that of the default at its best."""
        variant, load = self.found
        own = [t for t in self.trials if t.variant.is_default]
        default = max(self.server.truth(t.variant, t.load) for t in own)
        return self.server.truth(variant, load) / default

    def _configuration(self, variant: Variant) -> Configuration:
        """Without its text, which takes long to make."""
        instances, batch_size = self.server.shape_of(variant)
        return Configuration(
            variant=variant,
            text="",
            instance_group=f"{instances}:CPU",
            instances=instances,
            max_batch_size=batch_size,
            dynamic_batching=batch_size > 1,
        )

    def _of(self, name: str, *, final: bool) -> tuple[Measurement, ...]:
        return tuple(m for m in self.measurements if m.variant == name and bool(m.round) == final)


def server_for(
    asked: SearchSpec, *, seed: int = 0, noise: Noise | None = None, surface: Surface | None = None
) -> SimulatedServer:
    return SimulatedServer(
        surface or Surface.drawn(seed), default=(1, asked.facts.max_batch_size), noise=noise, seed=seed
    )


def explore(mode: Mode, asked: SearchSpec, server: SimulatedServer) -> Explored:
    """The whole search."""
    return carry_out(SearchDriver(mode, asked), asked, server)


def carry_out(search: SearchDriver, asked: SearchSpec, server: SimulatedServer) -> Explored:
    trials: list[Trial] = []
    measurements: list[Measurement] = []
    while (trial := search.ask()) is not None:
        measured = server.measure(trial.variant, trial.load, trial.round)
        trials.append(trial)
        measurements.append(measured)
        search.tell(trial, measured)
    return Explored(
        asked=asked,
        server=server,
        trials=tuple(trials),
        measurements=tuple(measurements),
        decisions=tuple(search.history.decisions),
    )
