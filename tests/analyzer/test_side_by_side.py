"""Trials on several nodes at once: the run is the one that a single node would have made, but sooner."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.analyzer.conftest import ALEXNET
from tests.analyzer.simulated import OfflineRunner, SimulatedServer, Surface
from tpx.analyzer.machine import MachineType, this_machine
from tpx.analyzer.options import ProfileSpec
from tpx.analyzer.options.models import ModelToProfile
from tpx.analyzer.profile import Profile
from tpx.analyzer.results.journal import Configured, Decided, Journal, Measured, RunEnded, read_last_run
from tpx.analyzer.results.measurement import Configuration, ServerOnly, Trial, Variant
from tpx.analyzer.side_by_side import SideBySide, TrialResult
from tpx.analyzer.trial import TrialRunner, Trials
from tpx.analyzer.variants import OutputRepository
from tpx.errors import NodeLost
from tpx.options import build

TICKS = 20
"""Turns of the event loop that a trial takes."""


@dataclass(slots=True)
class SimulatedNode:
    """Implements TrialNode by a formula; goes away after `lasts` trials."""

    name: str
    lasts: int = 10_000
    busy: bool = False
    asked: list[tuple[Variant, Trial]] = field(default_factory=list)

    async def run(self, configuration: Configuration, trial: Trial) -> TrialResult:
        assert not self.busy
        self.busy = True
        try:
            self.asked.append((configuration.variant, trial))
            for _ in range(TICKS):
                await asyncio.sleep(0)
            if len(self.asked) > self.lasts:
                raise NodeLost("it was unplugged")
            return TrialResult(outcome=measured(trial), prepared=None)
        finally:
            self.busy = False

    async def default_config(self, model: str) -> dict[str, Any]:
        return {**ALEXNET, "max_batch_size": 8}

    async def server_only(self, duration_s: float) -> ServerOnly | None:
        return None

    async def log_tail(self) -> tuple[str, ...]:
        return ()

    async def close(self) -> None:
        return


def measured(trial: Trial) -> Any:
    """A trial of one window in the final rounds, too, as those of the runner without nodes."""
    return replace(SimulatedServer(Surface.drawn(3)).measure(trial.variant, trial.load), round=trial.round)


@dataclass(slots=True)
class Ran:
    nodes: Sequence[SimulatedNode]
    records: list[Any]
    ticks: int
    said: list[str]


def run(place: Path, nodes: Sequence[SimulatedNode], **options: Any) -> Ran:
    """Profile a model on these nodes, or with none of them as a run on one machine does."""
    config = build(
        ProfileSpec,
        {"profile_models": (ModelToProfile(name="alexnet"),), "export_path": place, **options},
    )
    repository = OutputRepository(place / "output", None, override=True)
    said: list[str] = []
    trials: Trials
    if nodes:
        trials = SideBySide(nodes, this_machine(), repository, said.append)
    else:
        runner = OfflineRunner(
            {"alexnet": {**ALEXNET, "max_batch_size": 8}},
            lambda variant, load: measured(Trial(variant=variant, load=load)),
        )
        trials = TrialRunner(runner, repository, monitoring_interval_s=1)
    ticks = 0

    async def timed() -> None:
        nonlocal ticks
        work = asyncio.ensure_future(profile.run(("tpx",)))
        while not work.done():
            await asyncio.sleep(0)
            ticks += 1
        await work

    with Journal(place / "run.jsonl") as journal:
        profile = Profile(config, trials, journal, lambda _: None)
        asyncio.run(timed())
    return Ran(nodes, read_last_run(place / "run.jsonl"), ticks, said)


def found(ran: Ran) -> list[object]:
    """Return what a run measured, named and decided, in the order of its journal."""
    kept: list[object] = []
    for record in ran.records:
        if isinstance(record, Measured):
            each = record.measurement
            kept.append((each.variant, each.load, each.round, each.throughput))
        elif isinstance(record, Configured | Decided):
            kept.append(record)
    return kept


BOUNDS = {"run_config_search_max_instance_count": 3, "run_config_search_max_concurrency": 16}
SEARCHES: dict[str, dict[str, Any]] = {
    "brute": {"run_config_search_mode": "brute", **BOUNDS},
    "quick": {"run_config_search_mode": "quick", **BOUNDS},
    "budgeted": {"max_measurements": 60},
    "pareto": {"pareto": ("perf_throughput", "perf_latency_p99"), **BOUNDS},
}
GRID = {**SEARCHES["brute"], "final_rounds": 0}

Searched = Callable[[str, int], Ran]


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Searched:
    """A search on so many nodes, or without any; each is made once."""

    @cache
    def made(search: str, count: int) -> Ran:
        nodes = [SimulatedNode(name) for name in "abc"[:count]]
        options = GRID if search == "grid" else SEARCHES[search]
        return run(tmp_path_factory.mktemp(search), nodes, **options)

    return made


@pytest.mark.slow
@pytest.mark.parametrize("search", SEARCHES)
def test_three_nodes_find_what_one_finds(search: str, searched: Searched) -> None:
    ran = searched(search, 3)
    assert found(ran) == found(searched(search, 0))
    assert all(node.asked for node in ran.nodes)


@pytest.mark.slow
def test_a_grid_is_measured_in_half_the_time_on_three_nodes(searched: Searched) -> None:
    assert searched("grid", 3).ticks < searched("grid", 1).ticks / 2


@pytest.mark.slow
def test_final_rounds_are_interleaved_on_one_node(searched: Searched) -> None:
    ran = searched("brute", 3)
    final = [[trial for _, trial in node.asked if trial.round] for node in ran.nodes]
    assert len({trial.variant.name for trial in final[0]}) > 1
    assert final[1:] == [[], []]


@pytest.mark.slow
def test_a_configuration_stays_on_its_node(searched: Searched) -> None:
    nodes = searched("grid", 3).nodes
    changes = sum(
        one[0].delta != other[0].delta
        for node in nodes
        for one, other in zip(node.asked, node.asked[1:], strict=False)
    )
    assert changes < sum(len(node.asked) for node in nodes) / 3


@pytest.mark.slow
def test_a_name_stands_for_one_change_on_every_node(searched: Searched) -> None:
    changes: dict[str, object] = {}
    for node in searched("quick", 3).nodes:
        for variant, _ in node.asked:
            assert changes.setdefault(variant.name, variant.delta) == variant.delta


@pytest.mark.slow
def test_the_trial_of_a_node_that_dies_is_measured_again(tmp_path: Path, searched: Searched) -> None:
    nodes = [SimulatedNode("a", lasts=4), SimulatedNode("b"), SimulatedNode("c", lasts=7)]
    ran = run(tmp_path, nodes, **SEARCHES["brute"])
    assert found(ran) == found(searched("brute", 0))
    assert sorted(ran.said) == [
        "a is gone, its trial is measured again: it was unplugged",
        "c is gone, its trial is measured again: it was unplugged",
    ]


def test_a_run_without_a_node_left_can_be_resumed(tmp_path: Path) -> None:
    ran = run(tmp_path, [SimulatedNode("a", lasts=4)], **SEARCHES["brute"])
    assert sum(isinstance(record, Measured) for record in ran.records) == 4
    assert isinstance(ran.records[-1], RunEnded)
    assert ran.records[-1].outcome == "interrupted"
    assert ran.records[-1].reason == "no node is left: a was the last"


MACHINE = MachineType(
    name="a",
    system="Linux",
    processor="EPYC",
    cores="8 usable of 8",
    memory_bytes=64 << 30,
    gpus=("H100",),
)


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (replace(MACHINE, name="b", memory_bytes=63 << 30), []),
        (replace(MACHINE, processor="Xeon"), ["Processor Xeon, not EPYC"]),
        (replace(MACHINE, cores="4 usable of 8"), ["Cores 4 usable of 8, not 8 usable of 8"]),
        (replace(MACHINE, memory_bytes=32 << 30), ["Memory 32.0 GiB, not 64.0 GiB"]),
        (replace(MACHINE, gpus=()), ["GPU none, not H100"]),
    ],
)
def test_machines_differ_by_what_figures_depend_on(other: MachineType, told: list[str]) -> None:
    assert other.differences(MACHINE) == told
