"""Servers under clients that cost next to nothing: wrk over HTTP, h2load over gRPC."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from benchmarks.clients.light import LightClients
from benchmarks.models import GAP, IDENTITY, MNIST, SMALL, Kind, Served
from benchmarks.payloads import Protocol
from benchmarks.results import Cell, Sample, compare
from benchmarks.servers import Server
from benchmarks.setting import Setting

NAME = "light"
TITLE = "Light clients: wrk (HTTP) and h2load (gRPC)"
SHOWN = ("throughput", "p50_us", "p99_us", "server_cpu_us", "failed")
WARM_UP_S = 1

ALL: tuple[Kind, ...] = ("tpx", "triton", "mlserver")
BINARY_HTTP: tuple[Kind, ...] = ("tpx", "triton")
"""MLServer has no binary tensors over HTTP."""
BATCHING: tuple[Kind, ...] = ("tpx", "triton")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One load, and the servers that can take it."""

    served: Served
    protocol: Protocol
    concurrency: int
    kinds: tuple[Kind, ...]

    @property
    def name(self) -> str:
        return f"{self.served.name} {self.protocol} c={self.concurrency}"


def cases() -> Iterator[Case]:
    """Small inputs alone and under load, with and without dynamic batching, then large ones."""
    for model in (IDENTITY, MNIST):
        served = Served(model=model)
        for concurrency in (1, 16):
            yield Case(served=served, protocol="grpc", concurrency=concurrency, kinds=ALL)
            yield Case(served=served, protocol="http", concurrency=concurrency, kinds=BINARY_HTTP)
        yield Case(served=served, protocol="json", concurrency=16, kinds=ALL)
        batched = Served(model=model, dynamic_batching=True)
        yield Case(served=batched, protocol="grpc", concurrency=16, kinds=BATCHING)
        yield Case(served=batched, protocol="http", concurrency=16, kinds=BATCHING)
    for concurrency in (1, 4):
        served = Served(model=GAP)
        yield Case(served=served, protocol="grpc", concurrency=concurrency, kinds=ALL)
        yield Case(served=served, protocol="http", concurrency=concurrency, kinds=BINARY_HTTP)


def run(setting: Setting) -> list[Cell]:
    """Every case, all servers up meanwhile."""
    clients = LightClients(setting.peers, setting.work)
    with setting.servers(ALL, SMALL) as servers:
        return [_measure(setting, clients, servers, case) for case in cases() if setting.wants(case.name)]


def _measure(setting: Setting, clients: LightClients, servers: dict[Kind, Server], case: Case) -> Cell:
    sides: dict[str, Callable[[], Sample]] = {}
    for kind in case.kinds:
        if kind not in servers:
            continue
        exchange = setting.exchange(servers[kind], case.served, case.protocol)
        clients.measure(exchange, case.concurrency, WARM_UP_S)
        sides[kind] = partial(clients.measure, exchange, case.concurrency, setting.seconds)
    return compare(NAME, case.name, sides, setting.rounds)
