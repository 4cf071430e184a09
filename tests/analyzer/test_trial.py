"""Trials: when a configuration is loaded, and for how many windows it is measured."""

import asyncio
from pathlib import Path
from typing import Any

from tests.analyzer.measuring import make_latency, make_measurement, make_window
from tpx.analyzer.objectives import window_scores
from tpx.analyzer.results.goals import Goals, ModelGoals, WeightedObjective
from tpx.analyzer.results.measurement import Configuration, LoadPoint, Measurement, Trial, Variant
from tpx.analyzer.runners.outputs import Outputs
from tpx.analyzer.trial import ROUND_WINDOWS, TrialRunner
from tpx.analyzer.variants import OutputRepository, configure

CONFIG: dict[str, Any] = {"name": "m", "max_batch_size": 4}


class RecordingRunner:
    """Implements Runner without a server: it records what it is told to do."""

    server = None

    def __init__(self) -> None:
        self.done: list[str] = []

    async def default_config(self, model: str) -> dict[str, Any]:
        return CONFIG

    async def prepare(self, configuration: Configuration | None, directory: Path) -> None:
        self.done.append(f"load {configuration.variant.name}" if configuration else "unload")

    async def measure(self, load: LoadPoint, *, windows: int = 0) -> Measurement:
        self.done.append(f"measure {windows}")
        return make_measurement(variant="m", load=load, throughput=1.0)

    async def outputs(self, model: str) -> Outputs:
        return ()

    async def close(self) -> None:
        return


def done_for(tmp_path: Path, *trials: tuple[str, int]) -> list[str]:
    runner = RecordingRunner()
    repository = OutputRepository(tmp_path / "out", None, override=True)
    trial_runner = TrialRunner(runner, repository, monitoring_interval_s=1)

    async def run() -> None:
        for name, number in trials:
            variant = Variant(models=("m",), name=name, delta={"max_batch_size": 2})
            trial = Trial(variant=variant, load=LoadPoint(value=1), round=number)
            await trial_runner.run(configure(variant, CONFIG), trial)

    asyncio.run(run())
    return runner.done


def test_a_configuration_of_the_search_stays_loaded_until_another_comes(tmp_path: Path) -> None:
    found = done_for(tmp_path, ("a", 0), ("a", 0), ("b", 0))
    assert found == ["load a", "measure 0", "measure 0", "load b", "measure 0"]


def test_every_final_round_loads_its_configuration_anew_and_has_several_windows(tmp_path: Path) -> None:
    """The one that ended the search, or a round, too: loads of one file differ."""
    measured = f"measure {ROUND_WINDOWS}"
    found = done_for(tmp_path, ("a", 0), ("a", 1), ("b", 1), ("b", 2), ("a", 2))
    assert found == [
        *("load a", "measure 0", "unload", "load a", measured, "load b", measured),
        *("unload", "load b", measured, "load a", measured),
    ]


def test_the_loads_of_an_only_configuration_share_the_load_of_a_round(tmp_path: Path) -> None:
    found = done_for(tmp_path, ("a", 1), ("a", 1), ("a", 2))
    assert [each for each in found if not each.startswith("measure")] == ["load a", "unload", "load a"]


def measured(name: str, *windows: tuple[float, int], members: tuple[Measurement, ...] = ()) -> Measurement:
    return make_measurement(
        variant=name,
        load=LoadPoint(value=1),
        throughput=100.0,
        latency=make_latency(p99_ns=10_000_000),
        windows=tuple(
            make_window(throughput=throughput, latency=make_latency(p99_ns=p99_ms * 1_000_000))
            for throughput, p99_ms in windows
        ),
        members=members,
    )


def test_each_window_has_its_score() -> None:
    one = measured("m_config_0", (100.0, 10), (110.0, 5))
    slow, fast = window_scores(one, Goals())
    assert fast > slow
    by_latency = window_scores(one, Goals(objectives=(WeightedObjective(tag="perf_latency_p99"),)))
    assert by_latency[1] > by_latency[0]
    by_memory = Goals(objectives=(WeightedObjective(tag="cpu_used_ram"),))
    assert len(set(window_scores(one, by_memory))) == 1
    assert len(window_scores(measured("m_config_0"), Goals())) == 1


def test_windows_of_models_measured_together_are_scored_together() -> None:
    both = measured(
        "a,b_config_0",
        members=(
            measured("a_config_0", (1.0, 1), (2.0, 1)),
            measured("b_config_0", (1.0, 1), (8.0, 1), (9.0, 1)),
        ),
    )
    goals = Goals(models=(ModelGoals(model="a", weight=1.0), ModelGoals(model="b", weight=3.0)))
    first, second = window_scores(both, goals)
    assert first == 0
    assert second == (1 * _log(2) + 3 * _log(8)) / 4


def _log(value: float) -> float:
    return window_scores(measured("m_config_0", (value, 1)), Goals())[0]
