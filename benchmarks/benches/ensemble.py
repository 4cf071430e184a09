"""Two identity models one after the other as an ensemble, and what one of them alone costs."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from benchmarks.clients.light import LightClients
from benchmarks.models import IDENTITY, Kind, Served
from benchmarks.payloads import Protocol
from benchmarks.results import Cell, Sample, compare
from benchmarks.setting import Setting

NAME = "ensemble"
TITLE = "An ensemble of two identity models, and one of them alone"
SHOWN = ("throughput", "p50_us", "p99_us", "server_cpu_us", "failed")
WARM_UP_S = 1

KINDS: tuple[Kind, ...] = ("tpx", "triton")
ALONE = Served(model=IDENTITY)
CHAIN = Served(model=IDENTITY, steps=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One load."""

    served: Served
    protocol: Protocol
    concurrency: int

    @property
    def name(self) -> str:
        return f"{self.served.name} {self.protocol} c={self.concurrency}"


def cases() -> Iterator[Case]:
    """The ensemble and its model, alone and under load, over both protocols."""
    for concurrency in (1, 16):
        for served in (CHAIN, ALONE):
            yield Case(served=served, protocol="grpc", concurrency=concurrency)
            yield Case(served=served, protocol="http", concurrency=concurrency)


def run(setting: Setting) -> list[Cell]:
    """Every case, both servers up meanwhile."""
    clients = LightClients(setting.peers, setting.work)
    cells = []
    with setting.servers(KINDS, (ALONE, CHAIN)) as servers:
        for case in cases():
            if setting.wants(case.name):
                sides: dict[str, Callable[[], Sample]] = {}
                for kind, server in servers.items():
                    exchange = setting.exchange(server, case.served, case.protocol)
                    clients.measure(exchange, case.concurrency, WARM_UP_S)
                    sides[kind] = partial(clients.measure, exchange, case.concurrency, setting.seconds)
                cells.append(compare(NAME, case.name, sides, setting.rounds))
    return cells
