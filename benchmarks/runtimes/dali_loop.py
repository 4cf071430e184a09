"""A DALI pipeline called in a loop, as a program of its own: what decoding costs when nothing serves it."""

import argparse
import json
from pathlib import Path
from time import perf_counter_ns, process_time_ns

import numpy as np

WARM_UP = 5


def main() -> None:
    """Print throughput in pictures per second and CPU time per picture as JSON."""
    import nvidia.dali as dali

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pipeline", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("rows", type=int)
    parser.add_argument("seconds", type=int)
    given = parser.parse_args()
    pipeline = dali.Pipeline.deserialize(
        given.pipeline.read_bytes(),
        batch_size=given.rows,
        prefetch_queue_depth=1,
        exec_pipelined=False,
        exec_async=False,
    )
    pipeline.build()
    batch = [np.fromfile(given.picture, np.uint8)] * given.rows

    def decode() -> None:
        pipeline.feed_input("encoded", batch)
        np.array(pipeline.run()[0].as_array())

    for _ in range(WARM_UP):
        decode()
    count = 0
    start, used = perf_counter_ns(), process_time_ns()
    while perf_counter_ns() - start < given.seconds * 1_000_000_000:
        decode()
        count += given.rows
    used, taken = process_time_ns() - used, perf_counter_ns() - start
    print(json.dumps({"throughput": count / taken * 1e9, "server_cpu_us": used / count / 1000}))


if __name__ == "__main__":
    main()
