"""The same small requests to servers with up to 12 frontends in processes of their own."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from benchmarks.clients.light import LightClients
from benchmarks.models import GAP, IDENTITY, Served
from benchmarks.payloads import Protocol
from benchmarks.results import Cell, Sample, compare
from benchmarks.servers import Server, launch
from benchmarks.setting import Setting

NAME = "scaling"
TITLE = "Frontends in processes of their own"
SHOWN = ("throughput", "p50_us", "p99_us", "server_cpu_us", "failed")
WARM_UP_S = 1
FRONTENDS = (0, 1, 2, 4, 8, 12)
CONNECTIONS = 64
"""Over gRPC. A connection belongs to one frontend, so that there must be several for each."""
SMALL, BATCHED, LARGE = (
    Served(model=IDENTITY),
    Served(model=IDENTITY, dynamic_batching=True),
    Served(model=GAP),
)


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
    """Small requests alone and under load, batched, and large ones."""
    for concurrency in (1, 16, 64, 256):
        yield Case(served=SMALL, protocol="http", concurrency=concurrency)
        yield Case(served=SMALL, protocol="grpc", concurrency=concurrency)
    yield Case(served=BATCHED, protocol="http", concurrency=64)
    yield Case(served=LARGE, protocol="http", concurrency=4)


def run(setting: Setting) -> list[Cell]:
    """Every case, all servers up meanwhile; as many frontends as there are processors, and one more step."""
    cores = len(os.sched_getaffinity(0))
    clients = LightClients(setting.peers, setting.work, CONNECTIONS, max(1, cores // 4))
    repository = setting.models.repository("tpx", (SMALL, BATCHED, LARGE))
    cells = []
    with ExitStack() as running:
        servers: dict[str, Server] = {}
        for count in FRONTENDS:
            if count <= 2 * cores:
                command = launch("tpx", repository, setting.peers, f"--frontends={count}")
                server = running.enter_context(Server(command, setting.work))
                server.wait_until_ready([served.name for served in (SMALL, BATCHED, LARGE)])
                servers[f"{count} frontends"] = server
        for case in cases():
            if setting.wants(case.name):
                sides: dict[str, Callable[[], Sample]] = {}
                for name, server in servers.items():
                    exchange = setting.exchange(server, case.served, case.protocol)
                    clients.measure(exchange, case.concurrency, WARM_UP_S)
                    sides[name] = partial(clients.measure, exchange, case.concurrency, setting.seconds)
                cells.append(compare(NAME, case.name, sides, setting.rounds))
    return cells
