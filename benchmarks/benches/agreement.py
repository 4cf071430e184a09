"""Whether `tpx perf` and perf_analyzer measure the same, where what they cost themselves cannot matter.

The model sleeps for a set time before it computes, in as many instances as let the cores idle: what a tool
takes of them changes nothing, and both must find the same throughput and the same percentiles.
"""

from collections.abc import Iterator

from benchmarks.benches.load_generators import KINDS, Case, side_by_side
from benchmarks.models import IDENTITY, Served
from benchmarks.results import Cell
from benchmarks.setting import Setting

NAME = "agreement"
TITLE = "tpx perf and perf_analyzer on a model that sleeps 10 ms in 4 instances"
SHOWN = ("throughput", "served", "p50_us", "p90_us", "p99_us", "client_cpu_us", "failed")
MODEL = Served(model=IDENTITY, wait_ms=10, instances=4)
"""400 inferences a second at most."""
CONCURRENCIES = (1, 4, 16)
RATES = (100, 300)


def cases() -> Iterator[Case]:
    """Idle, full and queueing closed loops, and two rates."""
    for kind in KINDS:
        for protocol in ("grpc", "http"):
            for concurrency in CONCURRENCIES:
                yield Case(kind=kind, served=MODEL, protocol=protocol, concurrency=concurrency)
            for rate in RATES:
                yield Case(kind=kind, served=MODEL, protocol=protocol, request_rate=rate)


def run(setting: Setting) -> list[Cell]:
    """Every case, both servers up meanwhile."""
    return side_by_side(NAME, setting, (MODEL,), cases())
