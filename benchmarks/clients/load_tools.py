"""perf_analyzer and `tpx perf`, run alike: three windows of one level, and watched from outside meanwhile.

Processor time is read while the load runs, together with what the server has counted: neither the start of
the program nor its report is in it, and the divisor is the same for every tool.
"""

import json
import os
import re
import resource
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, sleep
from typing import Literal

from benchmarks.clients.wire import Wire
from benchmarks.models import Served
from benchmarks.peers import Peers
from benchmarks.processes import Process, last_lines
from benchmarks.results import Sample
from benchmarks.servers import Server
from tpx.errors import MeasurementError

WINDOWS = 3
"""As few as both tools decide by."""
ANY_SPREAD = "99999"
"""Percent between windows: a sample is taken as it comes, the median of rounds deals with the spread."""
SETTLE_S = 1.0
"""From the start of the program until its load surely runs."""
MARGIN_S = 1.0
"""By which the windows together last longer than a sample, so that the load runs while it is watched."""
WATCHED = 0.8
"""Share of a sample's seconds in which processor time is read."""
TIMEOUT_S = 60.0
MEMORY_BYTES = 8 << 30
"""perf_analyzer can run away when its workers fill the cores; it is ended before it fills the machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a tool is asked to do."""

    server: Server
    served: Served
    protocol: Literal["grpc", "http"]
    seconds: int
    concurrency: int = 0
    request_rate: int = 0
    """A second, evenly spaced; exclusive with `concurrency`."""
    on_wire: bool = False
    """The packets are watched, too."""

    def flags(self) -> list[str]:
        """Both tools know these. Zeros: perf_analyzer's random FP32 are random bytes, NaN among them."""
        window_ms = round((self.seconds + MARGIN_S) * 1000 / WINDOWS)
        level = (
            ("--request-rate-range", str(self.request_rate))
            if self.request_rate
            else ("--concurrency-range", str(self.concurrency))
        )
        return [
            *("-m", self.served.name, "-i", self.protocol),
            *("-u", f"127.0.0.1:{self.server.port(self.protocol)}"),
            *(*level, "--input-data", "zero"),
            *("-p", str(window_ms), "-r", str(WINDOWS + 1), "-s", ANY_SPREAD),
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A load generator: how it is called, and where its figures are found."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    read: Callable[[str], Sample]
    """Takes the program's output."""
    favoured: bool = False
    """Its main thread is given priority over the workers that it has made."""
    memory_bytes: int | None = None
    """Limit of its address space; None where it maps a GPU's memory, which takes more than any limit."""

    def measure(self, load: Load, work: Path) -> Sample:
        """Run it once. Raises MeasurementError where it fails, or its output has no figures."""
        before_s = _children_cpu_s()
        with Process([*self.argv, *load.flags()], work / "tool.log", env=self.env) as process:
            if self.memory_bytes is not None:
                with suppress(OSError):
                    resource.prlimit(process.pid, resource.RLIMIT_AS, (self.memory_bytes, self.memory_bytes))
            sleep(SETTLE_S / 2)
            if self.favoured:
                with suppress(OSError):
                    os.setpriority(os.PRIO_PROCESS, process.pid, -19)
            sleep(SETTLE_S / 2)
            port = load.server.port(load.protocol)
            with Wire(port, load.protocol) if load.on_wire else nullcontext() as wire:
                watched = _watch(process, load)
                status = process.wait(TIMEOUT_S)
            if status:
                raise MeasurementError(f"{self.name} ends with {status}: {last_lines(process.output)}")
            told = self.read(process.output)
            run = {"run_cpu_s": _children_cpu_s() - before_s}
            return {**told, **watched, **run, **(wire.beside(told) if wire else {})}


def _children_cpu_s() -> float:
    """User and system time of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _watch(process: Process, load: Load) -> Sample:
    """Served inferences a second and CPU of both ends, over most of the time in which load runs."""
    model = load.served.name
    start, count = perf_counter(), load.server.inference_count(model)
    client_s, server_s = process.cpu_s(), load.server.process.cpu_s()
    sleep(load.seconds * WATCHED)
    served = load.server.inference_count(model) - count
    elapsed = perf_counter() - start
    client_s, server_s = process.cpu_s() - client_s, load.server.process.cpu_s() - server_s
    if not served or not process.running:
        raise MeasurementError(f"{process.name} made no steady load: {last_lines(process.output)}")
    return {
        "served": served / elapsed,
        "client_cpu_us": client_s / served * 1e6,
        "server_cpu_us": server_s / served * 1e6,
    }


def perf_analyzer(peers: Peers) -> Tool:
    """The C++ program; where its workers fill the cores its main thread would starve behind them."""
    return Tool(
        name="perf_analyzer",
        argv=(str(peers.perf_analyzer()),),
        env=peers.perf_analyzer_env(),
        read=_read_perf_analyzer,
        favoured=True,
        memory_bytes=MEMORY_BYTES,
    )


def tpx_perf(work: Path, *flags: str) -> Tool:
    """`tpx perf`, with these flags beside the load's, which writes its JSON into `work`."""
    report = work / "tpx-perf.json"
    return Tool(
        name=" ".join(("tpx perf", *flags)),
        argv=(sys.executable, "-m", "tpx", "perf", "--json", str(report), *flags),
        env={},
        read=lambda _: _read_tpx_perf(report),
    )


def _read_perf_analyzer(text: str) -> Sample:
    patterns = {
        "throughput": r"Throughput: ([\d.]+)",
        "p50_us": r"p50 latency: (\d+)",
        "p90_us": r"p90 latency: (\d+)",
        "p99_us": r"p99 latency: (\d+)",
    }
    found = {figure: re.search(pattern, text) for figure, pattern in patterns.items()}
    sample = {figure: float(match[1]) for figure, match in found.items() if match}
    if len(sample) < len(patterns):
        raise MeasurementError(f"perf_analyzer's output has no figures: {last_lines(text)}")
    return {**sample, "failed": 0}  # it ends at the first error


def _read_tpx_perf(report: Path) -> Sample:
    level = json.loads(report.read_text(encoding="utf-8"))["levels"][0]
    latency = level["latency_us"] or {}
    if not {"p50", "p90", "p99"} <= set(latency):
        raise MeasurementError(f"tpx perf measured nothing: {level['reason'] or level['errors']}")
    return {
        "throughput": level["throughput"]["value"],
        "p50_us": latency["p50"],
        "p90_us": latency["p90"],
        "p99_us": latency["p99"],
        "failed": level["failed"],
    }
