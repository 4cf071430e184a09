"""Two python backends on the same `model.py`: what the process boundary costs. Light clients."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from benchmarks.benches.light import WARM_UP_S, Case
from benchmarks.clients.light import LightClients
from benchmarks.models import GAP, IDENTITY, Kind, Served
from benchmarks.results import Cell, Sample, compare
from benchmarks.servers import Server, launch
from benchmarks.setting import Setting

NAME = "python_backend"
TITLE = "The same model.py in two python backends: wrk (HTTP) and h2load (gRPC)"
SHOWN = ("throughput", "p50_us", "p99_us", "server_cpu_us", "failed")

KINDS: tuple[Kind, ...] = ("tpx", "triton")
MODELS = (
    Served(model=IDENTITY),
    Served(model=IDENTITY, dynamic_batching=True),
    Served(model=GAP),
)


def cases() -> Iterator[Case]:
    """A small model alone, under load, and under load with dynamic batching; then 600 KB in."""
    small, batched, large = MODELS
    for served, concurrencies in ((small, (1, 16)), (batched, (16,)), (large, (1, 4))):
        for concurrency in concurrencies:
            for protocol in ("grpc", "http"):
                yield Case(served=served, protocol=protocol, concurrency=concurrency, kinds=KINDS)


def run(setting: Setting) -> list[Cell]:
    """Every case, both servers up meanwhile, on one repository: every model is a `model.py`."""
    clients = LightClients(setting.peers, setting.work)
    with _servers(setting) as servers:
        return [_measure(setting, clients, servers, case) for case in cases() if setting.wants(case.name)]


@contextmanager
def _servers(setting: Setting) -> Iterator[dict[Kind, Server]]:
    repository = setting.models.repository("triton", MODELS)
    with ExitStack() as running:
        started: dict[Kind, Server] = {}
        for kind in KINDS:
            command = launch(kind, repository, setting.peers)
            server = running.enter_context(Server(command, setting.work))
            server.wait_until_ready([served.name for served in MODELS])
            started[kind] = server
        yield started


def _measure(setting: Setting, clients: LightClients, servers: dict[Kind, Server], case: Case) -> Cell:
    sides: dict[str, Callable[[], Sample]] = {}
    for kind, server in servers.items():
        exchange = setting.exchange(server, case.served, case.protocol)
        clients.measure(exchange, case.concurrency, WARM_UP_S)
        sides[kind] = partial(clients.measure, exchange, case.concurrency, setting.seconds)
    return compare(NAME, case.name, sides, setting.rounds)
