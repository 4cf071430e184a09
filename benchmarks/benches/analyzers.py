"""`tpx analyze` beside Model Analyzer: how long each takes for an answer, and what the answer is worth.

Both search the same space on a server that runs, each on a fresh one. What they recommend is then measured
again beside the default by perf_analyzer. Takes about forty minutes, hence it runs only where it is named.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from benchmarks.clients.analyzers import Analyzer, Answer, Variant, model_analyzer, tpx_analyze
from benchmarks.clients.load_tools import Load, perf_analyzer
from benchmarks.models import ALEXNET, Kind, Served
from benchmarks.results import Cell, Sample, compare
from benchmarks.servers import Server, launch
from benchmarks.setting import Setting

NAME = "analyzers"
TITLE = "tpx analyze and Model Analyzer: the best configuration of AlexNet, from one instance on"
SHOWN = ("wall_s", "measurements", "configurations", "gain", "throughput", "p50_us", "p99_us")
SERVED = Served(model=ALEXNET)
PEER = "model_analyzer"
BUDGETS = ("1m", "3m")
_AXES: Mapping[Kind, tuple[str, ...]] = {"tpx": ("--search-threads",), "triton": ()}
"""Further ones of a search with a budget; Triton's python backend has no setting of threads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A search of ours on a kind of server; Model Analyzer's is the same in all cases."""

    kind: Kind
    search: str
    flags: tuple[str, ...] = ()
    """Beside the question that both are asked."""

    @property
    def name(self) -> str:
        return f"{self.kind} server, {self.search}"

    @property
    def folder(self) -> str:
        return self.name.replace(", ", "-").replace(" ", "-")


def cases() -> Iterator[Case]:
    """Ours within a few minutes, which is how we would ask, and by Model Analyzer's own search."""
    for kind, axes in _AXES.items():
        for budget in BUDGETS:
            yield Case(kind=kind, search=f"at most {budget}", flags=("--budget", budget, *axes))
        yield Case(kind=kind, search="the same space")


def run(setting: Setting) -> list[Cell]:
    """Every case, its answers measured again; Model Analyzer is asked once on each kind of server."""
    cells = []
    of_peer: dict[Kind, Answer] = {}
    for case in cases():
        if not setting.wants(case.name):
            continue
        answers = {PEER: of_peer[case.kind]} if case.kind in of_peer else {}
        cells.append(_searched(setting, case, answers))
        if PEER in answers:
            of_peer[case.kind] = answers[PEER]
        if "tpx" in answers:
            cells.append(_measured_again(setting, case, answers))
    return cells


def _searched(setting: Setting, case: Case, answers: dict[str, Answer]) -> Cell:
    """Ask both once, and put into `answers` what they say."""
    tools: dict[str, Callable[[], Analyzer]] = {
        "tpx": partial(tpx_analyze, case.flags),
        PEER: partial(model_analyzer, setting.peers),
    }
    sides = {side: partial(_ask, setting, case, tool, answers) for side, tool in tools.items()}
    return compare(NAME, case.name, sides, 1)


def _ask(setting: Setting, case: Case, tool: Callable[[], Analyzer], answers: dict[str, Answer]) -> Sample:
    """The figures of one search, on a server of its own; of an analyzer that has answered, those it had."""
    analyzer = tool()
    if analyzer.name not in answers:
        repository = setting.models.repository(case.kind, (SERVED,))
        command = launch(case.kind, repository, setting.peers, "--model-control-mode=explicit")
        folder = setting.work / case.folder / analyzer.name
        with Server(command, setting.work) as server:
            server.wait_until_ready()
            answers[analyzer.name] = analyzer.ask(server, SERVED, folder)
    return answers[analyzer.name].figures


def _measured_again(setting: Setting, case: Case, answers: dict[str, Answer]) -> Cell:
    """What was recommended and the default, each under the load at which it was found best."""
    variants = {side: answers[side].best for side in ("tpx", PEER) if side in answers}
    variants["default"] = answers["tpx"].default
    sides = {side: partial(_measure, setting, case.kind, variant) for side, variant in variants.items()}
    return compare(NAME, f"{case.name}, again", sides, setting.rounds)


def _measure(setting: Setting, kind: Kind, variant: Variant) -> Sample:
    """One sample of a configuration by perf_analyzer, on a server of its own."""
    tool = perf_analyzer(setting.peers)
    repository = setting.models.repository(kind, (SERVED,))
    (repository / SERVED.name / "config.pbtxt").write_text(variant.config, encoding="utf-8")
    with Server(launch(kind, repository, setting.peers), setting.work) as server:
        server.wait_until_ready((SERVED.name,))
        load = Load(
            server=server,
            served=SERVED,
            protocol="grpc",
            concurrency=variant.concurrency,
            seconds=setting.seconds,
        )
        return tool.measure(load, setting.work)
