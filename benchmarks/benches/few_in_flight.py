"""How well one to four requests in flight can be measured: the spread of p50 from run to run, and what a run
costs.

Client and server sleep and wake each other then, so that most of a latency is the machine's. A client that
polls (`--poll busy`) never sleeps; it takes a processor of its own, so its CPU says nothing. Each round is a
run of three windows, as short as the bench's seconds say.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from benchmarks.clients.load_tools import Load, perf_analyzer, tpx_perf
from benchmarks.models import IDENTITY, Served
from benchmarks.results import Cell, Side, compare
from benchmarks.setting import Setting

NAME = "few_in_flight"
TITLE = "One to four requests in flight: polling, sleeping and perf_analyzer"
SHOWN = ("p50_us", "p50_range", "p99_us", "throughput", "run_cpu_s", "failed")
MODEL = Served(model=IDENTITY)
PROTOCOLS: tuple[Literal["grpc", "http"], ...] = ("grpc", "http")
CONCURRENCIES = (1, 2, 4)
ASLEEP = ", asleep"
ROUNDS = 5
"""At least, since what is looked for is how much they differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One load on the identity model."""

    protocol: Literal["grpc", "http"]
    concurrency: int

    @property
    def name(self) -> str:
        return f"identity {self.protocol} c={self.concurrency}"


def cases() -> Iterator[Case]:
    """Both protocols, at each concurrency for which polling is meant."""
    for protocol in PROTOCOLS:
        for concurrency in CONCURRENCIES:
            yield Case(protocol=protocol, concurrency=concurrency)


def run(setting: Setting) -> list[Cell]:
    """Every case against tpx serve."""
    with setting.servers(("tpx",), (MODEL,)) as servers:
        server = servers["tpx"]
        tools = (
            tpx_perf(setting.work, "--poll", "busy"),
            tpx_perf(setting.work),
            perf_analyzer(setting.peers),
        )
        cells = []
        for case in cases():
            if not setting.wants(case.name):
                continue
            load = Load(
                server=server,
                served=MODEL,
                protocol=case.protocol,
                concurrency=case.concurrency,
                seconds=setting.seconds,
            )
            sides = {tool.name: partial(tool.measure, load, setting.work) for tool in tools}
            measured = compare(NAME, case.name, sides, max(setting.rounds, ROUNDS))
            polling, asleep, peer = map(_with_range, measured.sides)
            cells.append(replace(measured, sides=(polling, asleep, peer)))
            # the same samples once more: of the CPU it is the client that sleeps which is judged
            cells.append(replace(measured, name=case.name + ASLEEP, sides=(asleep, peer)))
        return cells


def _with_range(side: Side) -> Side:
    """The side with the range of its p50 over the median, in percent, in each of its samples."""
    half = side.spread("p50_us")
    if half is None:
        return side
    return replace(side, samples=tuple({**sample, "p50_range": half * 200} for sample in side.samples))
