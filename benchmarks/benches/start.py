"""From nothing to ready, and what a server holds while it idles, with the four example models."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter, sleep

from benchmarks.models import EXAMPLES, IDENTITY, Kind, Served
from benchmarks.results import Cell, Sample, compare
from benchmarks.servers import Server, launch
from benchmarks.setting import Setting

NAME = "start"
TITLE = "Start to ready, and idle memory"
SHOWN = ("ready_s", "rss_mb", "pss_mb", "private_mb", "beside_mb")
KINDS: tuple[Kind, ...] = ("tpx", "triton", "mlserver")
IDLE_S = 1.0
"""Between ready and the reading of memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Models to start with."""

    name: str
    models: tuple[Served, ...]


CASES = (
    Case(name="the four examples", models=EXAMPLES),
    Case(name="identity alone", models=(Served(model=IDENTITY),)),
)


def run(setting: Setting) -> list[Cell]:
    """Every case; each sample is a start of its own."""
    return [_measure(setting, case) for case in CASES if setting.wants(case.name)]


def _measure(setting: Setting, case: Case) -> Cell:
    size_mb = setting.models.size_mb([served.model for served in case.models])
    sides: dict[str, Callable[[], Sample]] = {
        kind: partial(_start, setting, kind, case.models, size_mb) for kind in KINDS
    }
    return compare(NAME, case.name, sides, setting.rounds)


def _start(setting: Setting, kind: Kind, models: Sequence[Served], size_mb: float) -> Sample:
    """Start a server once. `size_mb`: of the models' files, which is what their weights weigh."""
    command = launch(kind, setting.models.repository(kind, models), setting.peers)
    start = perf_counter()
    with Server(command, setting.work) as server:
        server.wait_until_ready([served.name for served in models])
        ready_s = perf_counter() - start
        sleep(IDLE_S)
        memory = server.process.memory()
    return {
        "ready_s": ready_s,
        "rss_mb": memory.rss_mb,
        "pss_mb": memory.pss_mb,
        "private_mb": memory.private_mb,
        "beside_mb": memory.rss_mb - size_mb,
    }
