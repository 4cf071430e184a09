"""Sequences: a running sum whose state tpx keeps, beside one that keeps it in Triton's python backend."""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from benchmarks import accumulators
from benchmarks.clients import sequences as client
from benchmarks.models import Kind
from benchmarks.results import Cell, Sample, compare
from benchmarks.servers import Server, launch
from benchmarks.setting import Setting
from tpx.errors import MeasurementError

NAME = "sequences"
TITLE = f"Sequences of {client.LENGTH} requests over gRPC, each answer checked"
SHOWN = ("throughput", "p50_us", "p99_us", "server_cpu_us", "failed")
WARM_UP_S = 0.5
AT_ONCE = (1, 16, 64)
"""Sequences at a time; of the last ones half wait for a slot."""
KINDS: tuple[Kind, ...] = ("tpx", "triton")


def run(setting: Setting) -> list[Cell]:
    """Both strategies, both servers up meanwhile."""
    cells = []
    with ExitStack() as running:
        servers = {kind: server for kind in KINDS if (server := _start(setting, kind, running)) is not None}
        for strategy in accumulators.STRATEGIES:
            for count in AT_ONCE:
                name = f"{strategy} grpc sequences={count}"
                if not setting.wants(name):
                    continue
                sides: dict[str, Callable[[], Sample]] = {}
                for kind, server in servers.items():
                    client.measure(server, strategy, count, WARM_UP_S)
                    sides[kind] = partial(client.measure, server, strategy, count, setting.seconds)
                cells.append(compare(NAME, name, sides, setting.rounds))
    return cells


def _start(setting: Setting, kind: Kind, running: ExitStack) -> Server | None:
    """None for a peer that cannot be had, which is said. Raises MeasurementError for tpx."""
    try:
        command = launch(kind, accumulators.write(setting.work, kind), setting.peers)
        server = running.enter_context(Server(command, setting.work))
        server.wait_until_ready(tuple(accumulators.STRATEGIES))
    except MeasurementError as exc:
        if kind == "tpx":
            raise
        setting.leave_out(kind, exc)
        return None
    return server
