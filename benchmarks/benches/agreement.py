"""Whether `tpx perf` and perf_analyzer measure the same, where what they cost themselves cannot matter.

The model sleeps for a set time before it computes, in as many instances as let the cores idle: what a tool
takes of them changes nothing, and both must find the same throughput and the same percentiles.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

from benchmarks.clients.load_tools import Load, Tool, perf_analyzer, tpx_perf
from benchmarks.models import IDENTITY, Kind, Served
from benchmarks.results import Cell, compare
from benchmarks.servers import Server
from benchmarks.setting import Setting

NAME = "agreement"
TITLE = "tpx perf and perf_analyzer on a model that sleeps 10 ms in 4 instances"
SHOWN = ("throughput", "served", "p50_us", "p90_us", "p99_us", "client_cpu_us", "failed")
KINDS: tuple[Kind, ...] = ("tpx", "triton")
MODEL = Served(model=IDENTITY, wait_ms=10, instances=4)
"""400 inferences a second at most."""
CONCURRENCIES = (1, 4, 16)
RATES = (100, 300)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One load on one server; a concurrency or a rate."""

    kind: Kind
    protocol: Literal["grpc", "http"]
    concurrency: int = 0
    request_rate: int = 0

    @property
    def name(self) -> str:
        load = f"{self.request_rate}/s" if self.request_rate else f"c={self.concurrency}"
        return f"{self.kind} server, {self.protocol} {load}"


def cases() -> Iterator[Case]:
    """Idle, full and queueing closed loops, and two rates."""
    for kind in KINDS:
        for protocol in ("grpc", "http"):
            for concurrency in CONCURRENCIES:
                yield Case(kind=kind, protocol=protocol, concurrency=concurrency)
            for rate in RATES:
                yield Case(kind=kind, protocol=protocol, request_rate=rate)


def run(setting: Setting) -> list[Cell]:
    """Every case, both servers up meanwhile."""
    tools = (tpx_perf(setting.work), perf_analyzer(setting.peers))
    with setting.servers(KINDS, (MODEL,)) as servers:
        return [
            _measure(setting, tools, servers[case.kind], case)
            for case in cases()
            if case.kind in servers and setting.wants(case.name)
        ]


def _measure(setting: Setting, tools: tuple[Tool, ...], server: Server, case: Case) -> Cell:
    load = Load(
        server=server,
        served=MODEL,
        protocol=case.protocol,
        concurrency=case.concurrency,
        request_rate=case.request_rate,
        seconds=setting.seconds,
    )
    sides = {tool.name: partial(tool.measure, load, setting.work) for tool in tools}
    return compare(NAME, case.name, sides, setting.rounds)
