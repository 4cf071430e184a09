"""Whether `tpx perf`, by both of its clients, and perf_analyzer measure the same, where what they cost
themselves cannot matter.

The model sleeps for a set time before it computes, in as many instances as let the cores idle: what a tool
takes of them changes little, and both must find the same throughput and the same percentiles. The packets
are watched meanwhile: where the tools differ, they tell which one adds more to what the server took.
"""

from collections.abc import Iterator
from dataclasses import replace

from benchmarks.benches.load_generators import KINDS, Case, side_by_side
from benchmarks.clients.load_tools import tpx_perf
from benchmarks.clients.wire import why_unwatched
from benchmarks.models import IDENTITY, Served
from benchmarks.results import Cell
from benchmarks.setting import Setting

NAME = "agreement"
TITLE = "tpx perf, its library client, and perf_analyzer on a model that sleeps 40 ms in 4 instances"
BY_LIBRARY = ("--client", "library")
OVER_WIRE = ("p50_us_over_wire", "p90_us_over_wire", "p99_us_over_wire")
SHOWN = ("throughput", "served", "p50_us", "p90_us", "p99_us", *OVER_WIRE, "client_cpu_us", "failed")
MODEL = Served(model=IDENTITY, wait_ms=40, instances=4)
"""100 inferences a second at most."""
CONCURRENCIES = (1, 4, 16)
RATES = (25, 75)
"""perf_analyzer sends rates from four threads that wait for their answers: it cannot make more than 100."""
SECONDS = 6
"""Of a sample at least: a 99th percentile is nothing without some hundred requests."""


def cases(*, on_wire: bool = False) -> Iterator[Case]:
    """Idle, full and queueing closed loops, and two rates."""
    for kind in KINDS:
        for protocol in ("grpc", "http"):
            case = Case(kind=kind, served=MODEL, protocol=protocol, on_wire=on_wire)
            for concurrency in CONCURRENCIES:
                yield replace(case, concurrency=concurrency)
            for rate in RATES:
                yield replace(case, request_rate=rate)


def run(setting: Setting) -> list[Cell]:
    """Every case, both servers up meanwhile."""
    if reason := why_unwatched():
        setting.leave_out("the wire", reason)
    longer = replace(setting, seconds=max(setting.seconds, SECONDS))
    library = tpx_perf(setting.work, *BY_LIBRARY)
    return side_by_side(NAME, longer, (MODEL,), cases(on_wire=not reason), [library])
