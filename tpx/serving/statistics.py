"""Counts and durations of the statistics extension, as plain integers.

Durations are in nanoseconds, measured where they occur and added once per batch.
"""

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from tpx.errors import Cancelled, Code, ExecutionError, TpxError
from tpx.serving.distributions.latencies import Latencies, Phase

if TYPE_CHECKING:
    from tpx.serving.batch import Batch, EarlyResponse
    from tpx.serving.request import Computation, InferRequest, InferResponse


@dataclass(slots=True)
class Duration:
    """A count and a sum of durations, as in the statistics extension."""

    count: int = 0
    ns: int = 0

    def add(self, ns: int) -> None:
        """Count one duration."""
        self.count += 1
        self.ns += ns


@dataclass(slots=True)
class BatchStatistics:
    """Executions of one batch size, with the sums of their phases."""

    count: int = 0
    compute_input_ns: int = 0
    compute_infer_ns: int = 0
    compute_output_ns: int = 0


@dataclass(slots=True)
class ResponseStatistics:
    """Responses of a decoupled model with the same index, in the protocol's order."""

    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)
    success: Duration = field(default_factory=Duration)
    fail: Duration = field(default_factory=Duration)
    empty_response: Duration = field(default_factory=Duration)
    cancel: Duration = field(default_factory=Duration)

    def count(self, response: "InferResponse", times: "Computation", begun_ns: int) -> None:
        """Add a response. An empty one has no output phase, a cancelled one no phases."""
        infer_ns, output_ns = times.computed_ns - begun_ns, times.ended_ns - times.computed_ns
        if isinstance(response.error, Cancelled):
            self.cancel.add(infer_ns)
            return
        self.compute_infer.add(infer_ns)
        if response.error is None and not response.outputs:
            self.empty_response.add(infer_ns)
            return
        self.compute_output.add(output_ns)
        (self.success if response.error is None else self.fail).add(infer_ns + output_ns)

    def as_dict(self) -> dict[str, dict[str, int]]:
        """Return the fields of the protocol's response_stats, each a count and a sum in ns."""
        durations = ((name, getattr(self, name)) for name in self.__slots__)  # asdict takes 20 ms for all
        return {name: {"count": duration.count, "ns": duration.ns} for name, duration in durations}


_LAST_INDEX = 1000
"""Index from which on responses are counted together, since their number is unbounded."""
_PHASES: tuple[Phase, ...] = ("request", "queue", "compute_input", "compute_infer", "compute_output")
_REASONS = {Code.UNAVAILABLE: "REJECTED", Code.CANCELLED: "CANCELED", Code.INTERNAL: "BACKEND"}


class PhaseTimes(Protocol):
    """Durations of a request's phases in ns."""

    queue_ns: int
    input_ns: int
    infer_ns: int
    output_ns: int


class ModelStatistics:
    """Counters of one model version. `success` counts requests, `inference_count` batch elements.

    Each request of a batch is charged the compute times of the whole batch, as in Triton.
    """

    def __init__(self) -> None:
        self.inference_count = 0
        self.execution_count = 0
        self.batches: dict[int, BatchStatistics] = {}
        self.responses: dict[int, ResponseStatistics] = {}
        """Responses of a decoupled model, by index within the request."""
        self.failures = dict.fromkeys(("REJECTED", "CANCELED", "BACKEND", "OTHER"), 0)
        self.load_ns = 0
        self.latencies: Latencies | None = None
        """Latency distributions, if --metrics-config enables some."""
        self._hits = Duration()
        self._misses = Duration()
        self._success_count = 0
        self._success_ns = 0
        self._fail_ns = 0
        self._queue_ns = 0
        self._input_ns = 0
        self._infer_ns = 0
        self._output_ns = 0
        self.last_used_ns = 0
        """Time of the last answered request, on the clock of durations; 0 before the first."""
        self._epoch_ns = time.time_ns() - time.perf_counter_ns()

    def executed(self, batch: "Batch", now_ns: int) -> None:
        """Record a computed batch whose requests are being answered."""
        requests = batch.requests
        count = len(requests)
        arrived = 0
        for request in requests:
            arrived += request.arrived_ns
        started, gathered, computed = batch.started_ns, batch.gathered_ns, batch.computed_ns
        input_ns, infer_ns, output_ns = gathered - started, computed - gathered, batch.ended_ns - computed
        self._success_count += count
        self._success_ns += count * now_ns - arrived
        self._queue_ns += count * started - arrived
        self._input_ns += count * input_ns
        self._infer_ns += count * infer_ns
        self._output_ns += count * output_ns
        self.inference_count += batch.size
        if batch.executes:
            self.execution_count += 1
            self._count_size(batch.size + batch.empty, input_ns, infer_ns, output_ns)
        self.last_used_ns = now_ns
        if self.latencies is not None and requests:
            self.latencies.executed(batch, now_ns)

    def computed(
        self, executions: int, count: int, batch_size: int, phases_ns: tuple[int, int, int, int], now_ns: int
    ) -> None:
        """Record executions of `count` requests of this batch size each, answered at once.

        `phases_ns` are sums over the executions: queue, input, inference, and output.
        """
        waited_ns, input_ns, infer_ns, output_ns = phases_ns
        requests, rows = executions * count, count * batch_size
        self._success_count += requests
        self._success_ns += count * (waited_ns + input_ns + infer_ns + output_ns)
        self._queue_ns += count * waited_ns
        self._input_ns += count * input_ns
        self._infer_ns += count * infer_ns
        self._output_ns += count * output_ns
        self.inference_count += executions * rows
        self.execution_count += executions
        self._count_size(rows, input_ns, infer_ns, output_ns, executions)
        self.last_used_ns = now_ns

    def answered(self, request: "InferRequest", times: "Computation", now_ns: int) -> None:
        """Record a request answered before its batch has ended; the execution counts with `executed`."""
        arrived, started = request.arrived_ns, times.started_ns
        input_ns, infer_ns = times.gathered_ns - started, times.computed_ns - times.gathered_ns
        output_ns = times.ended_ns - times.computed_ns
        self._count_success(now_ns - arrived, started - arrived, input_ns, infer_ns, output_ns, now_ns)

    def composed(self, times: "PhaseTimes", batch_size: int, ns: int, now_ns: int) -> None:
        """Record a request answered by an ensemble; its phases are the sums of its steps'."""
        input_ns, infer_ns, output_ns = times.input_ns, times.infer_ns, times.output_ns
        self._count_success(ns, times.queue_ns, input_ns, infer_ns, output_ns, now_ns)
        self.inference_count += batch_size
        self.execution_count += 1
        self._count_size(batch_size, input_ns, infer_ns, output_ns)

    def _count_success(
        self, ns: int, queue_ns: int, input_ns: int, infer_ns: int, output_ns: int, now_ns: int
    ) -> None:
        """Count one successful request with its phases."""
        self._success_count += 1
        self._success_ns += ns
        self._queue_ns += queue_ns
        self._input_ns += input_ns
        self._infer_ns += infer_ns
        self._output_ns += output_ns
        self.last_used_ns = now_ns
        if self.latencies is not None:
            for phase, phase_ns in zip(_PHASES, (ns, queue_ns, input_ns, infer_ns, output_ns), strict=True):
                self.latencies.observe(phase, phase_ns, now_ns)

    def _count_size(
        self, size: int, input_ns: int, infer_ns: int, output_ns: int, executions: int = 1
    ) -> None:
        sizes = self.batches.get(size)
        if sizes is None:
            sizes = self.batches[size] = BatchStatistics()
        sizes.count += executions
        sizes.compute_input_ns += input_ns
        sizes.compute_infer_ns += infer_ns
        sizes.compute_output_ns += output_ns

    def cached(self, ns: int, now_ns: int) -> None:
        """Record a request answered from the cache."""
        self._hits.add(ns)
        self._success_count += 1
        self._success_ns += ns
        self.last_used_ns = now_ns
        if self.latencies is not None:
            self.latencies.observe("cache_hit", ns, now_ns)

    def missed(self, ns: int, now_ns: int) -> None:
        """Record a cache miss and the insertion of its response, which both took this long."""
        self._misses.add(ns)
        if self.latencies is not None:
            self.latencies.observe("cache_miss", ns, now_ns)

    def responded_once(self, batch: "Batch", now_ns: int) -> None:
        """Record the only responses of requests to a decoupled model; `batch` itself counts separately."""
        for request, response in zip(batch.requests, batch.responses, strict=True):
            taken_ns = now_ns - request.arrived_ns
            self._count_response(0, response, batch, batch.gathered_ns, taken_ns, now_ns)

    def responded(self, early: "EarlyResponse", now_ns: int) -> None:
        """Record a response of a decoupled model."""
        response = early.response
        taken_ns = now_ns - early.request.arrived_ns
        self._count_response(early.index, response, early, early.begun_ns, taken_ns, now_ns)
        if not response.final:
            return
        if response.error is not None:
            self.failed(response.error, 1, taken_ns)
        else:
            self.executed(early.batch, now_ns)

    def streamed(self, index: int, count: int, ns: int) -> None:
        """Record pieces of a stream from the `index`-th on, which is not its first. They were sent as soon as
        they were there: the first one `ns` after the piece before it, the others together with it.
        """
        responses = self.responses
        for each in range(index, index + count):
            kept = responses.get(each)
            if kept is None:
                kept = responses.setdefault(min(each, _LAST_INDEX), ResponseStatistics())
            infer, success = kept.compute_infer, kept.success
            infer.count += 1
            infer.ns += ns
            success.count += 1
            success.ns += ns
            kept.compute_output.count += 1
            ns = 0

    def _count_response(
        self,
        index: int,
        response: "InferResponse",
        times: "Computation",
        begun_ns: int,
        taken_ns: int,
        now_ns: int,
    ) -> None:
        if index > _LAST_INDEX:
            index = _LAST_INDEX
        kept = self.responses.get(index)
        if kept is None:
            kept = self.responses[index] = ResponseStatistics()
        kept.count(response, times, begun_ns)
        if self.latencies is not None and index == 0 and (response.outputs or response.error is not None):
            self.latencies.observe("first_response", taken_ns, now_ns)

    def failed(self, error: TpxError, count: int, ns: int) -> None:
        """Count failed requests by the reason of the error."""
        backend = isinstance(error, ExecutionError)
        self.failed_for("BACKEND" if backend else _REASONS.get(error.code, "OTHER"), count, ns)

    def failed_for(self, reason: str, count: int, ns: int) -> None:
        """Count failed requests by a label of nv_inference_request_failure."""
        self._fail_ns += ns
        self.failures[reason] += count

    def durations(self) -> dict[str, Duration]:
        """Return the fields of inference_stats, in the protocol's order."""
        count = self._success_count
        computed = count - self._hits.count
        return {
            "success": Duration(count, self._success_ns),
            "fail": Duration(sum(self.failures.values()), self._fail_ns),
            "queue": Duration(count, self._queue_ns),
            "compute_input": Duration(computed, self._input_ns),
            "compute_infer": Duration(computed, self._infer_ns),
            "compute_output": Duration(computed, self._output_ns),
            "cache_hit": self._hits,
            "cache_miss": self._misses,
        }

    @property
    def last_inference_ms(self) -> int:
        """Time of the last answered request in ms since the epoch; 0 before the first."""
        return (self._epoch_ns + self.last_used_ns) // 1_000_000 if self.last_used_ns else 0
