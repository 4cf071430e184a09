"""What servers spend on a request beside the least that any could: sockets in C, and ONNX Runtime's `Run`.

The floor is measured in two parts: the CPU time of `runtimes/floor.c`, which answers with tpx's own bytes and
computes nothing, under the same client as the servers; and that of one call in `runtimes/bound_loop.py`.
`bare` is the same in Python: `runtimes/bare_server.py` computes each request and knows nothing else.
"""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from benchmarks.clients.light import LightClients
from benchmarks.models import GAP, IDENTITY, MNIST, RUNTIMES, Kind, Model, Served
from benchmarks.payloads import Protocol, payload
from benchmarks.processes import Process, free_port, last_lines
from benchmarks.recording import record
from benchmarks.results import Cell, Sample, Side, compare
from benchmarks.servers import Launch, Server
from benchmarks.setting import Setting
from tpx.errors import MeasurementError

NAME = "floor"
TITLE = "CPU per request over the floor: sockets in C, and ONNX Runtime on bound memory"
SHOWN = ("server_cpu_us", "socket_us", "compute_us", "over_floor", "throughput", "failed")
KINDS: tuple[Kind, ...] = ("tpx", "triton")
PROTOCOLS: tuple[Protocol, ...] = ("http", "grpc")
LOADS = ((IDENTITY, (1, 16, 64)), (MNIST, (1, 16)), (GAP, (1, 4)))
COMPUTE_S = 0.5
PROGRAM_S = 60.0
WARM_UP_S = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One load on one model."""

    served: Served
    protocol: Protocol
    concurrency: int

    @property
    def name(self) -> str:
        return f"{self.served.name} {self.protocol} c={self.concurrency}"


def cases() -> Iterator[Case]:
    """Small inputs, a small network, and 600 KB."""
    for model, concurrencies in LOADS:
        for protocol in PROTOCOLS:
            for concurrency in concurrencies:
                yield Case(served=Served(model=model), protocol=protocol, concurrency=concurrency)


def run(setting: Setting) -> list[Cell]:
    """Every case; all servers are up meanwhile, but for the floor, which answers for one model at a time."""
    clients = LightClients(setting.peers, setting.work)
    program = build(setting.peers.tool("gcc"), setting.work)
    models = [Served(model=model) for model, _ in LOADS]
    wanted = [case for case in cases() if setting.wants(case.name)]
    cells = []
    with setting.servers(KINDS, models) as servers:
        named = {str(kind): server for kind, server in servers.items()}
        for served in models:
            answers = {
                protocol: record(payload(served, protocol), protocol, servers["tpx"].port(protocol))
                for protocol in PROTOCOLS
            }
            bare_words = bare_program(setting.models.onnx(served.model), served.model)
            with (
                Server(launch(NAME, (program,), answers, setting.work), setting.work) as floor,
                Server(launch("bare", bare_words, answers, setting.work), setting.work) as bare,
            ):
                floor.wait_until_ready()
                bare.wait_until_ready()
                cells += [
                    _measure(setting, clients, {**named, "bare": bare, NAME: floor}, case)
                    for case in wanted
                    if case.served == served
                ]
    return cells


def build(compiler: str, directory: Path) -> Path:
    """Compile the floor. Raises MeasurementError where that fails."""
    program = directory / "floor"
    words: list[str | Path] = [compiler, "-O2", "-Wall", "-Werror", "-o", program, RUNTIMES / "floor.c"]
    with Process(words, directory / "build.log") as compiling:
        if compiling.wait(PROGRAM_S):
            raise MeasurementError(f"floor.c does not compile: {last_lines(compiling.output)}")
    return program


def bare_program(onnx: Path, model: Model) -> tuple[str | Path, ...]:
    """The command of the bare server of a model, without the port and the answers."""
    return sys.executable, "-m", "benchmarks.runtimes.bare_server", onnx, model.name


def launch(
    kind: str, program: Sequence[str | Path], answers: dict[Protocol, bytes], directory: Path
) -> Launch:
    """The command of a program that answers both protocols on one port."""
    port = free_port()
    files = []
    for protocol in PROTOCOLS:
        file = directory / f"{kind}.{protocol}"
        file.write_bytes(answers[protocol])
        files.append(str(file))
    return Launch(
        kind=kind,
        argv=(*map(str, program), str(port), *files),
        env={},
        http_port=port,
        grpc_port=port,
        metrics_port=port,
    )


def _measure(setting: Setting, clients: LightClients, servers: Mapping[str, Server], case: Case) -> Cell:
    sides: dict[str, Callable[[], Sample]] = {}
    for side, server in servers.items():
        exchange = setting.exchange(server, case.served, case.protocol)
        clients.measure(exchange, case.concurrency, WARM_UP_S)
        measure = partial(clients.measure, exchange, case.concurrency, setting.seconds)
        sides[side] = partial(_floor, setting, measure, case.served) if side == NAME else measure
    cell = compare(NAME, case.name, sides, setting.rounds)
    floor = cell.side(NAME)
    least = floor.median("server_cpu_us") if floor else None
    return replace(cell, sides=tuple(_over(side, least) for side in cell.sides)) if least else cell


def _floor(setting: Setting, measure: Callable[[], Sample], served: Served) -> Sample:
    """The two parts of the floor and their sum."""
    sample = measure()
    program = (sys.executable, "-m", "benchmarks.runtimes.bound_loop")
    arguments = (setting.models.onnx(served.model), served.model.name, str(COMPUTE_S))
    with Process((*program, *arguments), setting.work / "bound.log") as process:
        if process.wait(PROGRAM_S):
            raise MeasurementError(f"the bound loop fails: {last_lines(process.output)}")
        compute_us = json.loads(process.output)["compute_us"]
    socket_us = sample["server_cpu_us"]
    return {
        **sample,
        "socket_us": socket_us,
        "compute_us": compute_us,
        "server_cpu_us": socket_us + compute_us,
    }


def _over(side: Side, least: float) -> Side:
    samples = ({**each, "over_floor": each["server_cpu_us"] / least} for each in side.samples)
    return replace(side, samples=tuple(samples))
