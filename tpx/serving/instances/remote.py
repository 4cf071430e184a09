"""Instances that compute in another process: batches go out and answers come back on the event loop."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from tpx.errors import NotReady, TpxError
from tpx.serving.backends.contract import RemoteExecutor
from tpx.serving.batch import Batch, EarlyResponse
from tpx.serving.instances.base import Instance
from tpx.serving.request import InferRequest

_clock = time.perf_counter_ns
_WARM_UP_S = 600
_DEPTHS = ((300_000, 8), (3_000_000, 2))
"""Batches for each process, in work or in hand, by what an execution takes at most: handing one over costs
more than the execution of a short model. Of long models none is in hand: another process could have begun
it."""
_FIRST_GUESS_NS = 1_000_000


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Implements CompletionSink; all of it is called on the event loop."""

    answered: Callable[[Batch], None]
    released: Callable[[Batch], None]
    responded: Callable[[EarlyResponse], None]
    again: Callable[[InferRequest], None]


class RemoteInstance:
    """One of them, and how many batches it holds; implements CompletionSink for them."""

    __slots__ = ("_executor", "_held", "_inbox", "_loop", "_outcomes", "leaving", "name")

    def __init__(
        self,
        name: str,
        executor: RemoteExecutor,
        loop: asyncio.AbstractEventLoop,
        outcomes: Outcomes,
        inbox: "RemoteInbox",
    ) -> None:
        self.name = name
        self._held: deque[Batch] = deque()
        """The first is in work, as far as is known here."""
        self._executor = executor
        self._loop = loop
        self._outcomes = outcomes
        self._inbox = inbox
        self.leaving = False

    def begin(self) -> None:
        """Its process runs already."""

    @property
    def drained(self) -> bool:
        """It gives back what it holds on the event loop, not while it is closed."""
        return not self._held

    @property
    def alive(self) -> bool:
        """It takes batches now."""
        return self._executor.alive

    @property
    def doomed(self) -> str:
        """Why it will take none any more."""
        return self._executor.doomed

    def submit(self, batch: Batch) -> None:
        if not self._held:
            batch.started_ns = _clock()
        self._held.append(batch)
        self._executor.submit(batch, self)

    @property
    def held(self) -> int:
        """Batches that it has been given and not released."""
        return len(self._held)

    @property
    def forsaken(self) -> int:
        """Requests that it holds and that nobody waits for any more."""
        return sum(request.cancelled for batch in self._held for request in batch.requests)

    def answered(self, batch: Batch) -> None:
        self._outcomes.answered(batch)

    def released(self, batch: Batch) -> None:
        held = self._held
        held.remove(batch)
        if held and not held[0].started_ns:
            held[0].started_ns = _clock()
        if batch.gathered_ns:
            self._inbox.computed(batch)
        self._outcomes.released(batch)

    def responded(self, early: EarlyResponse) -> None:
        self._outcomes.responded(early)

    def again(self, request: InferRequest) -> None:
        self._outcomes.again(request)

    def returned(self, batch: Batch) -> None:
        self._held.remove(batch)
        batch.started_ns = 0
        self._inbox.put_back(batch)

    def wait_until_started(self) -> None:
        """Raises LoadError."""
        self._executor.wait_until_started()

    def warm(self, batch: Batch) -> TpxError | None:
        done: Future[TpxError | None] = Future()
        sink = _WarmUp(done, len(batch.requests))
        self._loop.call_soon_threadsafe(self._executor.submit, batch, sink)
        return done.result(_WARM_UP_S)

    @property
    def opinionated(self) -> bool:
        """The model is to be asked whether it is ready."""
        return self._executor.opinionated

    async def ready(self) -> bool:
        """Whether the model itself says so."""
        return await self._executor.ready()

    def close(self) -> None:
        self._executor.close()


def close_together(instances: Sequence[Instance]) -> None:
    """End instances; processes at the same time, because each may take long to finalize. Blocks."""
    remote = [instance for instance in instances if isinstance(instance, RemoteInstance)]
    for instance in instances:
        if not isinstance(instance, RemoteInstance):
            instance.close()
    if remote:
        with ThreadPoolExecutor(len(remote)) as pool:
            list(pool.map(RemoteInstance.close, remote))


class _WarmUp:
    """Implements CompletionSink for a batch that nobody waits for."""

    def __init__(self, done: "Future[TpxError | None]", requests: int) -> None:
        self._done = done
        self._left = requests
        self._error: TpxError | None = None

    def answered(self, batch: Batch) -> None:
        if batch.requests:  # none: each has its responses apart
            self._finish(self._error or batch.error)

    def released(self, batch: Batch) -> None:
        """Nobody waits for it."""

    def responded(self, early: EarlyResponse) -> None:
        if early.request.pace is not None:
            early.request.pace.delivered(early.size)
        self._error = self._error or early.response.error
        if early.response.final:
            self._left -= 1
            if not self._left:
                self._finish(self._error)

    def again(self, request: InferRequest) -> None:  # noqa: ARG002
        """It would go on for ever: once is warm enough."""
        self._finish(None)

    def returned(self, batch: Batch) -> None:  # noqa: ARG002
        self._finish(NotReady("the process has ended before it was warmed up"))

    def _finish(self, error: TpxError | None) -> None:
        if not self._done.done():
            self._done.set_result(error)


class RemoteInbox:
    """Gives each batch to the instance that holds fewest; batches wait while all of them are being
    restarted."""

    def __init__(self, on_refused: Callable[[Batch, TpxError], None]) -> None:
        self.instances: list[RemoteInstance] = []
        self._waiting: deque[Batch] = deque()
        self._on_refused = on_refused
        self._took_ns = _FIRST_GUESS_NS
        self.depth = 2
        """Batches for each instance."""

    def put(self, batch: Batch | None) -> None:
        """Called on the event loop; None, from any thread, means nothing here."""
        if batch is not None:
            self._waiting.append(batch)
            self.look()

    def put_back(self, batch: Batch) -> None:
        """It was in the hands of a process that has ended: before all that wait. `look` is called then."""
        self._waiting.appendleft(batch)

    def computed(self, batch: Batch) -> None:
        """An instance has computed a batch: how many to hand over depends on how long that takes."""
        took_ns = self._took_ns
        took_ns += (batch.computed_ns - batch.gathered_ns - took_ns) >> 3
        self._took_ns = took_ns
        self.depth = next((depth for most_ns, depth in _DEPTHS if took_ns <= most_ns), 1)

    def look(self) -> None:
        """An instance may have become alive, or doomed."""
        while self._waiting:
            best = None
            for instance in self.instances:
                if instance.alive and (best is None or instance.held < best.held):
                    best = instance
            if best is not None:
                best.submit(self._waiting.popleft())
            elif all(instance.doomed for instance in self.instances):
                why = self.instances[0].doomed if self.instances else "the instance was taken away"
                self._on_refused(self._waiting.popleft(), NotReady(why))
            else:
                return
