"""A dispatcher in virtual time: its event loop, its clock and its instances do as a test says."""

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from typing import Any, cast

from tpx.errors import TpxError
from tpx.serving.backends.contract import Needs
from tpx.serving.batch import Batch, EarlyResponse
from tpx.serving.dispatcher import Dispatcher
from tpx.serving.instance import CompletionSink
from tpx.serving.request import InferRequest
from tpx.serving.scheduling.base import Scheduler
from tpx.serving.scheduling.inline import Arrivals, InlinePolicy
from tpx.serving.scheduling.limiter import Limiter, NoLimiter


class Timer:
    """What `call_later` returns."""

    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class VirtualLoop:
    """Implements what a dispatcher needs of an event loop; time passes in `run` only."""

    def __init__(self) -> None:
        self.now_ns = 0
        self._soon: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[int, int, Timer, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def call_soon(self, call: Callable[[], None]) -> None:
        self._soon.append(call)

    call_soon_threadsafe = call_soon

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Timer:
        timer = Timer()
        at_ns = self.now_ns + round(delay_s * 1e9)
        heapq.heappush(self._timers, (at_ns, next(self._numbers), timer, call))
        return timer

    def turn(self) -> None:
        """Do what is due now, but not what that makes due."""
        for _ in range(len(self._soon)):
            self._soon.popleft()()

    def run(self, until_ns: int = 0) -> None:
        """Do all that is due up to a time, each thing at its own."""
        while True:
            while self._soon:
                self._soon.popleft()()
            if not self._timers or self._timers[0][0] > until_ns:
                break
            self.now_ns, _, timer, call = heapq.heappop(self._timers)
            if not timer.cancelled:
                call()
        self.now_ns = max(self.now_ns, until_ns)


class FakeInstance:
    """Implements Instance: holds its batches until the test has computed them."""

    name = "net_0"
    alive = True
    failure = ""
    depth = 1
    abandoned = 0
    has_readiness_hook = False
    left = False

    def __init__(self, cost_ns: int = 0, loop: VirtualLoop | None = None) -> None:
        """With a cost, the event loop may compute, too, which takes that long."""
        self.batches: list[Batch] = []
        self.here: list[Batch] = []
        """Computed on the event loop."""
        self.compute: Callable[[Batch], None] | None = self._compute if cost_ns else None
        self._cost_ns = cost_ns
        self._loop = loop or VirtualLoop()
        self._sink: CompletionSink | None = None

    def _compute(self, batch: Batch) -> None:
        self.here.append(batch)
        self._loop.now_ns += self._cost_ns
        batch.end(None)
        batch.started_ns = batch.ended_ns - self._cost_ns

    @property
    def held(self) -> int:
        return len(self.batches)

    def start(self) -> None: ...
    def warm(self, batch: Batch) -> TpxError | None: ...
    def begin(self, sink: CompletionSink) -> None:
        self._sink = sink

    def submit(self, batch: Batch) -> None:
        self.batches.append(batch)

    def finish(self) -> Batch:
        """Have the first batch computed."""
        batch = self.batches.pop(0)
        batch.end(None)
        batch.cost_ns = self._cost_ns
        assert self._sink is not None
        self._sink.computed(batch)
        return batch

    def leave(self) -> None: ...
    async def ready(self) -> bool:
        return True

    def close(self) -> None: ...


class Scene:
    """A dispatcher with one instance; implements ResponseSink and notes when requests were refused."""

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        inline_below_ns: int = 0,
        cost_ns: int = 0,
        limiter: Limiter | None = None,
        needs: Needs | None = None,
    ) -> None:
        self.loop = VirtualLoop()
        self.instance = FakeInstance(cost_ns, self.loop)
        self.arrivals = Arrivals()
        self.answers: list[Batch] = []
        self.refusals: list[tuple[int, InferRequest, TpxError]] = []
        loop = cast("Any", self.loop)

        def clock() -> int:
            return self.loop.now_ns

        self.dispatcher = Dispatcher(
            scheduler,
            loop,
            self,
            limiter or NoLimiter(),
            inline=InlinePolicy(inline_below_ns, self.arrivals, clock),
            arrivals=self.arrivals,
            clock=clock,
        )
        self.dispatcher.pool.add(self.dispatcher.pool.queue_for(needs or Needs()), self.instance)

    def add(self, request: InferRequest) -> InferRequest:
        """Have a request arrive now."""
        request.arrived_ns = self.loop.now_ns
        self.arrivals.count += 1
        self.dispatcher.add(request)
        self.loop.run(self.loop.now_ns)
        return request

    def answered(self, batch: Batch) -> None:
        self.answers.append(batch)

    def responded(self, early: EarlyResponse) -> None: ...
    def streamed(
        self, request: InferRequest, pieces: list[bytes], index: int, begun_ns: int, now_ns: int
    ) -> None: ...
    def refused(self, request: InferRequest, error: TpxError) -> None:
        self.refusals.append((self.loop.now_ns, request, error))
