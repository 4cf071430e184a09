"""ResNet-50 without trained weights, and the loop that calls it: what a GPU does when nothing serves it."""

import argparse
import json
from pathlib import Path
from time import perf_counter_ns, process_time_ns
from typing import Any

WARM_UP = 10
LAYERS = (3, 4, 6, 3)


def resnet(width: int, classes: int = 1000) -> Any:
    """Return the network with `width` channels in its first stage; 64 is ResNet-50 (arXiv:1512.03385)."""
    from torch import nn

    class Bottleneck(nn.Module):  # type: ignore[misc]
        def __init__(self, channels: int, inner: int, stride: int) -> None:
            super().__init__()
            out = 4 * inner
            self.body = nn.Sequential(
                *(nn.Conv2d(channels, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU()),
                *(nn.Conv2d(inner, inner, 3, stride, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU()),
                *(nn.Conv2d(inner, out, 1, bias=False), nn.BatchNorm2d(out)),
            )
            same = channels == out and stride == 1
            self.past = nn.Identity() if same else nn.Conv2d(channels, out, 1, stride, bias=False)

        def forward(self, x: Any) -> Any:
            return (self.body(x) + self.past(x)).relu()

    stem = [nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    blocks, channels = [], width
    for stage, count in enumerate(LAYERS):
        inner = width << stage
        for index in range(count):
            blocks.append(Bottleneck(channels, inner, 2 if index == 0 and stage else 1))
            channels = 4 * inner
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


def main() -> None:
    """Print throughput in pictures per second and percentiles of a call as JSON: host arrays in and out."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("archive", type=Path)
    parser.add_argument("device")
    parser.add_argument("rows", type=int)
    parser.add_argument("side", type=int)
    parser.add_argument("seconds", type=int)
    given = parser.parse_args()
    program = torch.jit.load(given.archive, map_location=given.device).eval()
    dtype = next(program.parameters()).dtype
    picture = torch.zeros(given.rows, 3, given.side, given.side, dtype=dtype)
    picture = picture.pin_memory() if given.device != "cpu" else picture
    times: list[int] = []
    with torch.inference_mode():
        for _ in range(WARM_UP):
            program(picture.to(given.device)).cpu()
        start = now = perf_counter_ns()
        used = process_time_ns()
        while now - start < given.seconds * 1_000_000_000:
            program(picture.to(given.device, non_blocking=True)).cpu()
            times.append(perf_counter_ns() - now)
            now = perf_counter_ns()
        used = process_time_ns() - used
    times.sort()
    pictures = len(times) * given.rows
    sample = {
        "throughput": pictures / (now - start) * 1e9,
        "p50_us": times[len(times) // 2] / 1000,
        "p99_us": times[len(times) * 99 // 100] / 1000,
        "server_cpu_us": used / pictures / 1000,
    }
    print(json.dumps(sample))


if __name__ == "__main__":
    main()
