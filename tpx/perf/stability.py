"""When a level has been measured enough: perf_analyzer's rule over its last three windows."""

from collections.abc import Sequence
from dataclasses import dataclass

STABILITY_WINDOWS = 3


@dataclass(frozen=True, slots=True)
class Observation:
    """What one window says to the rule; a window without a valid request has throughput 0."""

    throughput: float
    latency_ns: int


def is_stable(windows: Sequence[Observation], tolerance: float, *, latency: bool = True) -> bool:
    """Whether throughput and latency of the last three windows spread by a factor of at most 1 +
    `tolerance`; throughput alone without `latency`.

    perf_analyzer: inference_profiler.cc, DetermineStability (the greatest over the least, not a deviation
    from the average as its documentation says).
    """
    last = windows[-STABILITY_WINDOWS:]
    if len(last) < STABILITY_WINDOWS or any(w.throughput == 0 for w in last):
        return False
    if _spread([w.throughput for w in last]) > 1 + tolerance:
        return False
    return not latency or _spread([w.latency_ns for w in last]) <= 1 + tolerance


def describe_spread(windows: Sequence[Observation]) -> str:
    """Which quantity moved, and by how much, over the last three windows: `throughput by 12.1%, latency by
    3.0%`."""
    last = [w for w in windows[-STABILITY_WINDOWS:] if w.throughput > 0]
    if len(last) < STABILITY_WINDOWS:
        return (
            f"only {len(last)} of the last {min(len(windows), STABILITY_WINDOWS)} windows had valid requests"
        )
    throughput = (_spread([w.throughput for w in last]) - 1) * 100
    latency = (_spread([w.latency_ns for w in last]) - 1) * 100
    return f"throughput moved by {throughput:.1f}%, latency by {latency:.1f}%"


def _spread(values: Sequence[float]) -> float:
    return max(values) / max(min(values), 1e-9)
