"""Instances that compute in another process; batches and results pass through the event loop."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future

from tpx.errors import NotReady, TpxError
from tpx.serving.backends.contract import CompletionSink, RemoteExecutor
from tpx.serving.batch import Batch, EarlyResponse
from tpx.serving.polling import BusyPolling
from tpx.serving.request import InferRequest

_clock = time.perf_counter_ns
_WARM_UP_S = 600
_DEPTHS = ((300_000, 8), (3_000_000, 2))
"""Batches per process, computing or queued there, by the maximum duration of an execution.

A hand-over costs more than executing a short model. For long models none is queued, because another
process could have started it.
"""
_FIRST_GUESS_NS = 1_000_000


class ProcessInstance:
    """Hands batches to a remote executor, acts as its CompletionSink, and tracks the batches it holds."""

    compute = None

    def __init__(
        self,
        name: str,
        executor: RemoteExecutor,
        loop: asyncio.AbstractEventLoop,
        polling: BusyPolling,
        on_change: Callable[[], None],
    ) -> None:
        """Create an instance; `on_change` is called when it becomes alive or fails for good."""
        self.name = name
        self.depth = 2
        self._held: dict[Batch, None] = {}
        """Batches it holds, in order; the first is computing, as far as known here."""
        self._executor = executor
        self._loop = loop
        self._polling = polling
        self._leaving = False
        self._took_ns = _FIRST_GUESS_NS
        executor.on_change = on_change

    @property
    def alive(self) -> bool:
        return self._executor.alive

    @property
    def failure(self) -> str:
        return self._executor.failure

    @property
    def held(self) -> int:
        return len(self._held)

    @property
    def abandoned(self) -> int:
        return sum(request.cancelled for batch in self._held for request in batch.requests)

    @property
    def has_readiness_hook(self) -> bool:
        return self._executor.has_readiness_hook

    @property
    def left(self) -> bool:
        return self._leaving and not self._held

    def start(self) -> None:
        self._executor.wait_until_started()

    def warm(self, batch: Batch) -> TpxError | None:
        done: Future[TpxError | None] = Future()
        sink = _WarmUp(done, len(batch.requests))
        self._loop.call_soon_threadsafe(self._executor.submit, batch, sink)
        return done.result(_WARM_UP_S)

    def begin(self, sink: CompletionSink) -> None:
        self._sink = sink
        self.answered = sink.answered
        self.responded = sink.responded
        self.again = sink.again

    def submit(self, batch: Batch) -> None:
        if not self._held:
            batch.started_ns = _clock()
            self._polling.handed_over(batch.started_ns, self._took_ns)
        self._held[batch] = None
        self._executor.submit(batch, self)

    def leave(self) -> None:
        self._leaving = True

    async def ready(self) -> bool:
        return await self._executor.ready()

    def close(self) -> None:
        self._executor.close()

    # callbacks of the executor

    def computed(self, batch: Batch) -> None:
        self.released(batch)
        self.answered(batch)

    def released(self, batch: Batch) -> None:
        held = self._held
        del held[batch]
        for following in held:
            following.started_ns = following.started_ns or _clock()
            break
        if batch.gathered_ns:  # the depth depends on the duration of an execution
            self._took_ns += (batch.computed_ns - batch.gathered_ns - self._took_ns) >> 3
            self.depth = next((depth for most_ns, depth in _DEPTHS if self._took_ns <= most_ns), 1)
        if not held:
            self._polling.computed(batch.started_ns, _clock())
        self._sink.released(batch)

    def returned(self, batch: Batch) -> None:
        del self._held[batch]
        batch.started_ns = 0
        self._sink.returned(batch)


class _WarmUp:
    """Implements CompletionSink for a warm-up batch."""

    def __init__(self, done: "Future[TpxError | None]", requests: int) -> None:
        self._done = done
        self._left = requests
        self._error: TpxError | None = None

    def computed(self, batch: Batch) -> None:
        self.answered(batch)

    def answered(self, batch: Batch) -> None:
        if batch.requests:  # empty if all requests were answered separately
            self._finish(self._error or batch.error)

    def released(self, batch: Batch) -> None:
        """Do nothing: there is no other batch."""

    def responded(self, early: EarlyResponse) -> None:
        if early.request.backpressure is not None:
            early.request.backpressure.delivered(early.size)
        self._error = self._error or early.response.error
        if early.response.final:
            self._left -= 1
            if not self._left:
                self._finish(self._error)

    def again(self, request: InferRequest) -> None:  # noqa: ARG002
        """Refuse: rescheduling a warm-up request would never end, and one execution warms enough."""
        self._finish(None)

    def returned(self, batch: Batch) -> None:  # noqa: ARG002
        self._finish(NotReady("the process has ended before it was warmed up"))

    def _finish(self, error: TpxError | None) -> None:
        if not self._done.done():
            self._done.set_result(error)
