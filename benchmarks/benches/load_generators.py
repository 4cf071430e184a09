"""What `tpx perf` and perf_analyzer get out of a server that shares its cores with them, and what each costs.

The cheaper tool leaves the server more, so that their figures differ by right; whether both measure the same
where it cannot matter is the question of `agreement`. wrk and h2load tell what small requests cost a program
in C that measures next to nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from benchmarks.clients.light import LightClients
from benchmarks.clients.load_tools import Load, Tool, perf_analyzer, tpx_perf
from benchmarks.models import GAP, IDENTITY, MNIST, Kind, Served
from benchmarks.results import Cell, compare
from benchmarks.servers import Server
from benchmarks.setting import Setting
from tpx.perf.clients.grpc import SLOTS_PER_CONNECTION

NAME = "load_generators"
TITLE = "tpx perf and perf_analyzer against the same server"
SHOWN = ("throughput", "served", "p50_us", "p99_us", "client_cpu_us", "failed")
KINDS: tuple[Kind, ...] = ("tpx", "triton")
PROTOCOLS: tuple[Literal["grpc", "http"], ...] = ("grpc", "http")
MODELS = (Served(model=MNIST), Served(model=IDENTITY), Served(model=GAP))


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One load on one server; a concurrency or a rate."""

    kind: Kind
    served: Served
    protocol: Literal["grpc", "http"]
    concurrency: int = 0
    request_rate: int = 0
    on_wire: bool = False
    """The packets are watched, too."""
    yardstick: bool = False
    """wrk or h2load sends the same beside them."""

    @property
    def name(self) -> str:
        load = f"{self.request_rate}/s" if self.request_rate else f"c={self.concurrency}"
        return f"{self.kind} server, {self.served.name} {self.protocol} {load}"


def cases() -> Iterator[Case]:
    """One model on both servers; the smallest requests and 600 KB on the faster one."""
    mnist, identity, gap = MODELS
    for kind in KINDS:
        for concurrency in (1, 4, 16):
            for protocol in PROTOCOLS:
                yield Case(
                    kind=kind,
                    served=mnist,
                    protocol=protocol,
                    concurrency=concurrency,
                    yardstick=kind == "tpx",
                )
    for served, concurrencies in ((identity, (1, 4, 16, 64)), (gap, (1, 4))):
        for concurrency in concurrencies:
            for protocol in PROTOCOLS:
                yield Case(
                    kind="tpx",
                    served=served,
                    protocol=protocol,
                    concurrency=concurrency,
                    yardstick=served is identity,
                )


def run(setting: Setting) -> list[Cell]:
    """Every case, both servers up meanwhile."""
    return side_by_side(NAME, setting, MODELS, cases())


def side_by_side(
    bench: str,
    setting: Setting,
    models: Sequence[Served],
    cases: Iterator[Case],
    further: Sequence[Tool] = (),
) -> list[Cell]:
    """Both tools, and further ones, in turn, both servers up meanwhile."""
    tools = (tpx_perf(setting.work), perf_analyzer(setting.peers), *further)
    with setting.servers(KINDS, models) as servers:
        return [
            _measure(bench, setting, tools, servers[case.kind], case)
            for case in cases
            if case.kind in servers and setting.wants(case.name)
        ]


def _measure(bench: str, setting: Setting, tools: Sequence[Tool], server: Server, case: Case) -> Cell:
    load = Load(
        server=server,
        served=case.served,
        protocol=case.protocol,
        concurrency=case.concurrency,
        request_rate=case.request_rate,
        seconds=setting.seconds,
        on_wire=case.on_wire,
    )
    sides = {tool.name: partial(tool.measure, load, setting.work) for tool in tools}
    if case.yardstick:
        exchange = setting.exchange(server, case.served, case.protocol)
        connections = -(-case.concurrency // SLOTS_PER_CONNECTION)  # as many as tpx perf opens over gRPC
        clients = LightClients(setting.peers, setting.work, connections)
        name = "h2load" if case.protocol == "grpc" else "wrk"
        sides[name] = partial(clients.measure, exchange, case.concurrency, setting.seconds)
    return compare(bench, case.name, sides, setting.rounds)
