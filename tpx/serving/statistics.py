"""What a model has done: the counts and durations of the statistics extension, kept as plain integers.

Durations are taken where they happen, in nanoseconds, and added once per batch.
"""

import time
from typing import TYPE_CHECKING

from tpx.errors import Code, TpxError

if TYPE_CHECKING:
    from tpx.serving.batch import Batch


class Duration:
    """A count and the sum of what was counted."""

    __slots__ = ("count", "ns")

    def __init__(self) -> None:
        self.count = 0
        self.ns = 0

    def add(self, count: int, ns: int) -> None:
        self.count += count
        self.ns += ns

    def as_dict(self) -> dict[str, int]:
        return {"count": self.count, "ns": self.ns}


class BatchStatistics:
    """Executions of one batch size."""

    __slots__ = ("compute_infer", "compute_input", "compute_output")

    def __init__(self) -> None:
        self.compute_input = Duration()
        self.compute_infer = Duration()
        self.compute_output = Duration()


PHASES = (
    "success",
    "fail",
    "queue",
    "compute_input",
    "compute_infer",
    "compute_output",
    "cache_hit",
    "cache_miss",
)
"""The members of inference_stats, in the protocol's order."""

_REASONS = {Code.UNAVAILABLE: "REJECTED", Code.CANCELLED: "CANCELED", Code.INTERNAL: "BACKEND"}


class ModelStatistics:
    """The counters of one model version. Requests count once in `success`; batch elements in
    `inference_count`."""

    def __init__(self) -> None:
        self.inference_count = 0
        self.execution_count = 0
        self.durations = {phase: Duration() for phase in PHASES}
        self.batches: dict[int, BatchStatistics] = {}
        self.failures = dict.fromkeys(("REJECTED", "CANCELED", "BACKEND", "OTHER"), 0)
        self.load_ns = 0
        self._last_ns = 0
        durations = self.durations
        self._success = durations["success"]
        self._queue = durations["queue"]
        self._input = durations["compute_input"]
        self._infer = durations["compute_infer"]
        self._output = durations["compute_output"]

    def executed(self, batch: "Batch", now_ns: int) -> None:
        """A batch was computed and its requests are being answered."""
        requests = batch.requests
        count = len(requests)
        arrived = 0
        for request in requests:
            arrived += request.arrived_ns
        taken, loaded, computed, done = batch.started_ns, batch.gathered_ns, batch.computed_ns, batch.ended_ns
        self._success.count += count
        self._success.ns += count * now_ns - arrived
        self._queue.count += count
        self._queue.ns += count * taken - arrived
        self._input.count += count
        self._input.ns += count * (loaded - taken)
        self._infer.count += count
        self._infer.ns += count * (computed - loaded)
        self._output.count += count
        self._output.ns += count * (done - computed)
        self.inference_count += batch.size
        self.execution_count += 1
        sizes = self.batches.get(batch.size)
        if sizes is None:
            sizes = self.batches[batch.size] = BatchStatistics()
        sizes.compute_input.add(1, loaded - taken)
        sizes.compute_infer.add(1, computed - loaded)
        sizes.compute_output.add(1, done - computed)
        self._last_ns = now_ns

    def failed(self, error: TpxError, count: int, ns: int) -> None:
        """Requests that got an error instead of an answer."""
        self.durations["fail"].add(count, ns)
        self.failures[_REASONS.get(error.code, "OTHER")] += count

    @property
    def last_inference_ms(self) -> int:
        """When the last request was answered, in ms since the epoch; 0 before the first."""
        if not self._last_ns:
            return 0
        return (time.time_ns() - (time.perf_counter_ns() - self._last_ns)) // 1_000_000
