"""PyTorch called in a loop, as a program of its own: what a model costs when nothing serves it."""

import argparse
import json
from pathlib import Path
from time import perf_counter_ns, process_time_ns

import numpy as np

WARM_UP = 20


def main() -> None:
    """Print throughput and CPU time per call as JSON: arrays in, arrays out, as a server's instance does."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("archive", type=Path)
    parser.add_argument("threads", type=int)
    parser.add_argument("rows", type=int)
    parser.add_argument("seconds", type=int)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    program = torch.export.load(given.archive).module()
    image = np.random.default_rng(0).random((given.rows, 3, 32, 32), np.float32)
    count = 0
    with torch.inference_mode():
        for _ in range(WARM_UP):
            program(torch.from_numpy(image)).numpy()
        start, used = perf_counter_ns(), process_time_ns()
        while perf_counter_ns() - start < given.seconds * 1_000_000_000:
            program(torch.from_numpy(image)).numpy()
            count += 1
        used, taken = process_time_ns() - used, perf_counter_ns() - start
    print(json.dumps({"throughput": count / taken * 1e9, "server_cpu_us": used / count / 1000}))


if __name__ == "__main__":
    main()
