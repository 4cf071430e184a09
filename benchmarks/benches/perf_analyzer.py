"""Servers under the client that Triton's users measure with; it takes half of a small machine for itself."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

from benchmarks.clients.load_tools import Load, Tool, perf_analyzer
from benchmarks.models import IDENTITY, MNIST, SMALL, Kind, Served
from benchmarks.results import Cell, Sample, compare
from benchmarks.servers import Server
from benchmarks.setting import Setting

NAME = "perf_analyzer"
TITLE = "perf_analyzer (C++) as the client"
SHOWN = ("throughput", "p50_us", "p99_us", "server_cpu_us", "failed")
KINDS: tuple[Kind, ...] = ("tpx", "triton")
"""MLServer lacks the extension by which perf_analyzer learns a model's configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One load."""

    served: Served
    protocol: Literal["grpc", "http"]
    concurrency: int

    @property
    def name(self) -> str:
        return f"{self.served.name} {self.protocol} c={self.concurrency}"


def cases() -> Iterator[Case]:
    """Small inputs alone and under load, and under more load with dynamic batching."""
    for model in (IDENTITY, MNIST):
        served = Served(model=model)
        for concurrency in (1, 16):
            yield Case(served=served, protocol="grpc", concurrency=concurrency)
            yield Case(served=served, protocol="http", concurrency=concurrency)
        batched = Served(model=model, dynamic_batching=True)
        yield Case(served=batched, protocol="grpc", concurrency=64)


def run(setting: Setting) -> list[Cell]:
    """Every case, both servers up meanwhile."""
    tool = perf_analyzer(setting.peers)
    with setting.servers(KINDS, SMALL) as servers:
        return [_measure(setting, tool, servers, case) for case in cases() if setting.wants(case.name)]


def _measure(setting: Setting, tool: Tool, servers: dict[Kind, Server], case: Case) -> Cell:
    sides: dict[str, Callable[[], Sample]] = {}
    for kind, server in servers.items():
        load = Load(
            server=server,
            served=case.served,
            protocol=case.protocol,
            concurrency=case.concurrency,
            seconds=setting.seconds,
        )
        sides[kind] = partial(tool.measure, load, setting.work)
    return compare(NAME, case.name, sides, setting.rounds)
