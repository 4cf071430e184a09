"""What serving costs beside computing: AlexNet through tpx, and in a bare loop around ONNX Runtime."""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter_ns

from benchmarks.models import ALEXNET, Kind, Served
from benchmarks.payloads import inputs
from benchmarks.results import Cell, Sample, compare
from benchmarks.servers import Server
from benchmarks.setting import Setting
from tpx.errors import MeasurementError
from tpx.perf.options import PerfConfig
from tpx.perf.run import event_loop
from tpx.perf.run import run as run_perf
from tpx.perf.settings import LevelRange

NAME = "alexnet"
TITLE = "AlexNet: served, and ONNX Runtime in a bare loop (direct), as many threads each"
KINDS: tuple[Kind, ...] = ("tpx", "triton")
THREADS = (1, 2)
WINDOWS = 3
SHOWN = ("throughput", "p50_us", "p99_us", "failed")


def run(setting: Setting) -> list[Cell]:
    """Every number of threads with one and two requests in flight."""
    models = tuple(Served(model=ALEXNET, threads=count) for count in THREADS)
    cells = []
    with setting.servers(KINDS, models) as servers:
        for served in models:
            direct = _direct_loop(setting.models.onnx(ALEXNET), served.threads, setting.seconds)
            for concurrency in (1, 2):
                name = f"alexnet grpc c={concurrency}, threads={served.threads}"
                if setting.wants(name):
                    sides: dict[str, Callable[[], Sample]] = {
                        kind: partial(_served, setting, server, served, concurrency)
                        for kind, server in servers.items()
                    }
                    cells.append(compare(NAME, name, {**sides, "direct": direct}, setting.rounds))
    return cells


def _served(setting: Setting, server: Server, served: Served, concurrency: int) -> Sample:
    """A closed loop in this process, by the load generator's own code."""
    config = PerfConfig(
        model=served.name,
        protocol="grpc",
        url=f"127.0.0.1:{server.grpc_port}",
        concurrency_range=LevelRange(start=concurrency),
        measurement_interval=setting.seconds * 1000 // WINDOWS,
        max_trials=WINDOWS,
        stability_percentage=90,
    )
    with asyncio.Runner(loop_factory=event_loop) as runner:
        level = runner.run(run_perf(config)).levels[0]
    if level.latency is None:
        raise MeasurementError(f"{server.kind} answered nothing: {level.reason}")
    return {
        "throughput": level.throughput_infer_per_s,
        "p50_us": level.latency.percentiles_ns[50] / 1000,
        "p99_us": level.latency.percentiles_ns[99] / 1000,
        "failed": level.failed,
    }


def _direct_loop(onnx: Path, threads: int, seconds: int) -> Callable[[], Sample]:
    """Calls one session again and again; everything but the number of threads is ONNX Runtime's default."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(onnx), options, providers=["CPUExecutionProvider"])
    feed = dict(inputs(ALEXNET))

    def loop() -> Sample:
        times: list[int] = []
        start = now = perf_counter_ns()
        while now - start < seconds * 1_000_000_000:
            session.run(None, feed)
            times.append(perf_counter_ns() - now)
            now = perf_counter_ns()
        times.sort()
        return {
            "throughput": len(times) / (now - start) * 1e9,
            "p50_us": times[len(times) // 2] / 1000,
            "p99_us": times[len(times) * 99 // 100] / 1000,
        }

    return loop
