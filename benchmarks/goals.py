"""What the project set out to reach, and where it stands: measured ratios beside their bounds."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from benchmarks.benches import agreement, analyzers, few_in_flight, floor
from benchmarks.models import IDENTITY
from benchmarks.results import Cell


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A bound on one figure of one cell: on tpx's ratio to another side, or on tpx's own value."""

    bench: str
    cell: str
    figure: str
    over: str = ""
    """The side that is divided by; empty where tpx's own value counts."""
    at_least: float | None = None
    at_most: float | None = None

    def measured(self, cells: Sequence[Cell]) -> float | None:
        """None where the run did not measure it."""
        for cell in cells:
            if (cell.bench, cell.name) == (self.bench, self.cell) and cell.sides:
                return cell.ratio(self.figure, self.over) if self.over else cell.sides[0].median(self.figure)
        return None

    def met(self, value: float) -> bool:
        return (self.at_least is None or value >= self.at_least) and (
            self.at_most is None or value <= self.at_most
        )

    @property
    def bound(self) -> str:
        least = f">= {self.at_least:g}" if self.at_least is not None else ""
        most = f"<= {self.at_most:g}" if self.at_most is not None else ""
        return f"{least} {most}".strip()


def goals() -> Iterator[Goal]:
    """All of them, in the order in which they are shown."""
    for model in ("identity", "mnist"):
        yield from _small(model)
    for protocol in ("grpc", "http"):
        for concurrency in (1, 4):
            cell = f"gap {protocol} c={concurrency}"
            yield Goal(bench="light", cell=cell, figure="throughput", over="triton", at_least=1.0)
    for case in floor.cases():
        most = 2.0 if case.served.model is IDENTITY else 1.5
        yield Goal(bench=floor.NAME, cell=case.name, figure="over_floor", at_most=most)
    for protocol in ("grpc", "http"):
        python = partial(Goal, bench="python_backend", over="triton")
        yield python(cell=f"identity {protocol} c=16", figure="throughput", at_least=1.5)
        yield python(cell=f"identity {protocol} c=1", figure="p50_us", at_most=0.7)
    yield from _alexnet()
    yield from _load_generators()
    yield from _agreement()
    yield from _few_in_flight()
    yield from _analyzers()
    for datatype in ("FP16", "BF16"):
        for rows in (1, 8, 64):
            cell = f"resnet {datatype} batch {rows} c=4"
            yield Goal(bench="gpu", cell=cell, figure="throughput", over="direct", at_least=0.95)
        cell = f"resnet {datatype} batch 1 c=1"
        yield Goal(bench="gpu", cell=cell, figure="p99_us", over="direct", at_most=1.1)
    for size in ("640x480", "1920x1080"):
        yield Goal(
            bench="dali", cell=f"JPEG {size} http c=32", figure="throughput", over="direct", at_least=0.95
        )
    for figure, bound in (("ready_s", 2.0), ("beside_mb", 120.0)):
        yield Goal(bench="start", cell="the four examples", figure=figure, at_most=bound)


def _small(model: str) -> Iterator[Goal]:
    light = (("grpc", 3.5, 0.25), ("http", 3.0, 0.3))
    for served in (model, f"{model}_batched"):
        for protocol, throughput, cpu in light:
            cell = f"{served} {protocol} c=16"
            yield Goal(bench="light", cell=cell, figure="throughput", over="triton", at_least=throughput)
            yield Goal(bench="light", cell=cell, figure="server_cpu_us", over="triton", at_most=cpu)
    for protocol in ("grpc", "json"):
        cell = f"{model} {protocol} c=16"
        yield Goal(bench="light", cell=cell, figure="throughput", over="mlserver", at_least=6.0)
    heavy = ((f"{model} grpc c=16", 3.0), (f"{model}_batched grpc c=64", 4.5), (f"{model} http c=16", 1.6))
    for cell, bound in heavy:
        yield Goal(bench="perf_analyzer", cell=cell, figure="throughput", over="triton", at_least=bound)
    for bench in ("light", "perf_analyzer"):
        for protocol in ("grpc", "http"):
            cell = f"{model} {protocol} c=1"
            yield Goal(bench=bench, cell=cell, figure="p50_us", over="triton", at_most=0.5)


def _alexnet() -> Iterator[Goal]:
    for threads in (1, 2):
        for concurrency in (1, 2):
            cell = f"alexnet grpc c={concurrency}, threads={threads}"
            yield Goal(bench="alexnet", cell=cell, figure="throughput", over="direct", at_least=0.97)


def _load_generators() -> Iterator[Goal]:
    bench, over = "load_generators", "perf_analyzer"
    for kind in ("tpx", "triton"):
        for protocol in ("grpc", "http"):
            for concurrency in (1, 4, 16):
                cell = f"{kind} server, mnist {protocol} c={concurrency}"
                yield Goal(bench=bench, cell=cell, figure="throughput", over=over, at_least=0.97)
    for protocol in ("grpc", "http"):
        for concurrency in (1, 4):
            cell = f"tpx server, gap {protocol} c={concurrency}"
            yield Goal(bench=bench, cell=cell, figure="client_cpu_us", over=over, at_most=1.0)
    for bench in ("load_generators", "one_processor"):
        for protocol in ("grpc", "http"):
            for model in ("identity", "mnist"):
                for concurrency in (1, 4, 16):
                    cell = f"tpx server, {model} {protocol} c={concurrency}"
                    yield Goal(bench=bench, cell=cell, figure="client_cpu_us", over=over, at_most=0.5)


def _few_in_flight() -> Iterator[Goal]:
    bench = few_in_flight.NAME
    for case in few_in_flight.cases():
        yield Goal(bench=bench, cell=case.name, figure="p50_range", at_most=3.0)
        if case.concurrency == 1:
            asleep = case.name + few_in_flight.ASLEEP
            yield Goal(bench=bench, cell=asleep, figure="run_cpu_s", over="perf_analyzer", at_most=1.2)


def _analyzers() -> Iterator[Goal]:
    for kind in ("tpx", "triton"):
        cell = f"{kind} server, at most {analyzers.BUDGETS[0]}"
        yield Goal(bench=analyzers.NAME, cell=cell, figure="wall_s", over=analyzers.PEER, at_most=1 / 3)
        again = f"{cell}, again"
        yield Goal(bench=analyzers.NAME, cell=again, figure="throughput", over="default", at_least=1.5)


def _agreement() -> Iterator[Goal]:
    for case in agreement.cases():
        for figure in ("throughput", "p50_us", "p90_us", "p99_us"):
            yield Goal(
                bench=agreement.NAME,
                cell=case.name,
                figure=figure,
                over="perf_analyzer",
                at_least=0.97,
                at_most=1.03,
            )
        for figure in ("throughput", "p50_us"):
            yield Goal(
                bench=agreement.NAME,
                cell=case.name,
                figure=figure,
                over=" ".join(("tpx perf", *agreement.BY_LIBRARY)),
                at_least=0.97,
                at_most=1.03,
            )
        for figure in agreement.OVER_WIRE:
            yield Goal(bench=agreement.NAME, cell=case.name, figure=figure, at_most=1.03)
