"""What serving costs beside computing: AlexNet through tpx, and in a bare loop around ONNX Runtime.

Each sample is a process of its own: two sessions of this file, opened in one process and run in turn, were
seen to differ by 6% for as long as they lived, which is more than the difference that is looked for.
"""

import json
import sys
from functools import partial

import tpx
from benchmarks.models import ALEXNET, Served
from benchmarks.processes import Process, last_lines
from benchmarks.results import Cell, Sample, compare
from benchmarks.setting import Setting
from tpx.errors import MeasurementError

NAME = "alexnet"
TITLE = "AlexNet: served, and ONNX Runtime in a bare loop (direct), as many threads each"
SHOWN = ("throughput", "p50_us", "p99_us", "failed")
THREADS = (1, 2)
WINDOWS = 3
ROUNDS_MORE = 2
"""Over those of the other benches: the difference that is looked for is small."""
DIRECT_S = 60.0


def run(setting: Setting) -> list[Cell]:
    """Every number of threads with one and two requests in flight."""
    cells = []
    for threads in THREADS:
        served = Served(model=ALEXNET, threads=threads)
        for concurrency in (1, 2):
            name = f"alexnet grpc c={concurrency}, threads={threads}"
            sides = {
                "tpx": partial(_served, setting, served, concurrency),
                "direct": partial(_direct, setting, threads),
            }
            if setting.wants(name):
                cells.append(compare(NAME, name, sides, setting.rounds + ROUNDS_MORE))
    return cells


def _served(setting: Setting, served: Served, concurrency: int) -> Sample:
    """A closed loop in this process, by the load generator's API, on a server of its own."""
    with setting.servers(("tpx",), (served,)) as servers:
        run = tpx.measure(
            f"127.0.0.1:{servers['tpx'].grpc_port}",
            served.name,
            concurrency=concurrency,
            protocol="grpc",
            measurement_interval=setting.seconds * 1000 // WINDOWS,
            max_trials=WINDOWS,
            stability_percentage=90,
            warmup_request_count=5,
        )
    [level] = run.levels
    if level.latency is None:
        raise MeasurementError(f"tpx answered nothing: {level.reason}")
    return {
        "throughput": level.throughput_infer_per_s,
        "p50_us": level.latency.percentiles_ns[50] / 1000,
        "p99_us": level.latency.percentiles_ns[99] / 1000,
        "failed": level.failed,
    }


def _direct(setting: Setting, threads: int) -> Sample:
    program = (sys.executable, "-m", "benchmarks.runtimes.direct_loop")
    arguments = (str(setting.models.onnx(ALEXNET)), str(threads), str(setting.seconds))
    with Process((*program, *arguments), setting.work / "direct.log") as process:
        status = process.wait(DIRECT_S)
        if status:
            raise MeasurementError(f"the direct loop ends with {status}: {last_lines(process.output)}")
        sample: Sample = json.loads(process.output)
        return sample
