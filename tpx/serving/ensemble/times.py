"""What the steps of a request took, and who else wants to know of them."""

from tpx.serving.request import Computation, InferRequest, InferResponse, RequestTrace


class Times:
    """Sums over the steps: what the statistics of an ensemble have."""

    __slots__ = ("infer_ns", "input_ns", "output_ns", "queue_ns")

    def __init__(self) -> None:
        self.queue_ns = 0
        self.input_ns = 0
        self.infer_ns = 0
        self.output_ns = 0

    def add(self, request: InferRequest, times: Computation) -> None:
        """A step was computed, or answered without that."""
        started_ns = times.started_ns
        if not started_ns:
            return
        self.queue_ns += started_ns - request.arrived_ns
        self.input_ns += times.gathered_ns - started_ns
        self.infer_ns += times.computed_ns - times.gathered_ns
        self.output_ns += times.ended_ns - times.computed_ns


class StepTrace:
    """Implements RequestTrace for steps: adds their times up, and tells the trace of a step, if any."""

    __slots__ = ("_inner", "_times")

    def __init__(self, times: Times, inner: RequestTrace | None) -> None:
        self._times = times
        self._inner = inner

    @property
    def context(self) -> str:
        return self._inner.context if self._inner is not None else ""

    def computed(self, request: InferRequest, times: Computation, response: InferResponse) -> None:
        if response.final:
            self._times.add(request, times)
        if self._inner is not None:
            self._inner.computed(request, times, response)

    def refused(self) -> None:
        if self._inner is not None:
            self._inner.refused()

    def child(self, request: InferRequest) -> RequestTrace:
        return StepTrace(self._times, self._inner.child(request) if self._inner is not None else None)
