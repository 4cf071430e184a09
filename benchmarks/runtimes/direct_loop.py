"""ONNX Runtime called in a loop, as a program of its own: what a model can do when nothing serves it."""

import argparse
import json
from pathlib import Path
from time import perf_counter_ns

from benchmarks.models import ALEXNET
from benchmarks.payloads import inputs

WARM_UP = 5


def main() -> None:
    """Print throughput and percentiles as JSON; all but the number of threads is ONNX Runtime's default."""
    import onnxruntime

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("onnx", type=Path)
    parser.add_argument("threads", type=int)
    parser.add_argument("seconds", type=int)
    given = parser.parse_args()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = given.threads
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(given.onnx), options, providers=["CPUExecutionProvider"])
    feed = dict(inputs(ALEXNET))
    for _ in range(WARM_UP):
        session.run(None, feed)
    times: list[int] = []
    start = now = perf_counter_ns()
    while now - start < given.seconds * 1_000_000_000:
        session.run(None, feed)
        times.append(perf_counter_ns() - now)
        now = perf_counter_ns()
    times.sort()
    sample = {
        "throughput": len(times) / (now - start) * 1e9,
        "p50_us": times[len(times) // 2] / 1000,
        "p99_us": times[len(times) * 99 // 100] / 1000,
    }
    print(json.dumps(sample))


if __name__ == "__main__":
    main()
