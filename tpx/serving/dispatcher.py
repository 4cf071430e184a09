"""Dispatcher: moves batches from a scheduler to instances, or computes them on the event loop.

Everything here runs on the event loop unless a method says otherwise.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from tpx.errors import TpxError
from tpx.serving.batch import Batch
from tpx.serving.instance_pool import InstancePool, InstanceQueue, ResponseSink
from tpx.serving.request import InferRequest
from tpx.serving.scheduling.base import Refusal, Scheduler
from tpx.serving.scheduling.inline import Arrivals, InlinePolicy
from tpx.serving.scheduling.limiter import Limiter
from tpx.serving.turn import Turn

_PURGE_S = 0.05
"""Delay before a purge of cancelled requests: clients cancel many at once, and queues are long."""


class GatheredRequests(Protocol):
    """Requests that bypass the scheduler, gathered until the next dispatch."""

    def compute_gathered(self) -> None: ...
    def give_up_gathered(self) -> None:
        """Submit them to the scheduler."""


class Dispatcher:
    """Hands each batch of a scheduler to a queue with free capacity, or computes it on the event loop."""

    def __init__(
        self,
        scheduler: Scheduler,
        loop: asyncio.AbstractEventLoop,
        answers: ResponseSink,
        limiter: Limiter,
        *,
        inline: InlinePolicy,
        arrivals: Arrivals,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        """`arrivals` counts the requests to all models before they reach a dispatcher, as for `inline`."""
        self._scheduler = scheduler
        self._clock = clock
        self._affinity = scheduler.affinity
        self._loop = loop
        self._answers = answers
        self._inline = inline
        self._arrivals = arrivals
        self.pool = InstancePool(scheduler, loop, answers, limiter, self, clock)
        self._shared = self.pool.shared
        self.gathering: GatheredRequests | None = None
        self._dispatch_scheduled = False
        self._dispatching = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0
        self._purging: asyncio.TimerHandle | None = None

    def close(self) -> None:
        """Close the instances after the batches they hold; nothing may be in flight. May be called from
        any thread.
        """
        self.pool.close()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._leave)

    def _leave(self) -> None:
        for timer in (self._timer, self._purging):
            if timer is not None:
                timer.cancel()
        self.pool.leave()

    @property
    def sequences(self) -> int:
        """Number of sequences that have begun and not ended."""
        return self._affinity.live

    @property
    def pending(self) -> int:
        """Number of requests waiting for an instance, in the scheduler or in a batch that has not started."""
        held = [batch for queue in self.pool.queues for batch in queue.held]
        return len(self._scheduler) + sum(len(batch.requests) for batch in held if not batch.started_ns)

    # requests

    def add(self, request: InferRequest) -> None:
        """Take a request. It may be answered before this returns. Raises RequestError."""
        scheduler = self._scheduler
        if self.pool.immediate and self._computed_at_once(request):
            return
        scheduler.add(request)
        if not scheduler.waits:
            self._dispatch()
        elif not self._dispatch_scheduled:
            # dispatch after reading all requests that arrived together, so that they can share a batch
            self._dispatch_scheduled = True
            self._loop.call_soon(self._dispatch)

    def _computed_at_once(self, request: InferRequest) -> bool:
        """Compute a request on the event loop if the model is idle and the request short: a fast form
        of `_dispatch`. Return False if it must be scheduled.
        """
        queue, inline = self._shared, self._inline
        row_size = request.head.row_size
        # too large to count as short, it may be computed nevertheless: alone it delays no other request
        if row_size > inline.row_size and row_size > inline.lone_row_size:
            return False
        # an instance computes in the same bound memory, and requests that came before must not be overtaken
        if queue.held or self._dispatching or self._dispatch_scheduled:
            return False
        compute = queue.instances[0].compute if queue.instances else None
        if compute is None or request.cancelled:
            return False
        # replies may submit more requests: these wait in the scheduler instead of nesting ever deeper here
        self._dispatching = True
        try:
            self._compute_here(queue, compute, Batch((request,)), row_size)
        finally:
            self._dispatching = False
        if len(self._scheduler):
            self._dispatch()
        return True

    def requeue(self, request: InferRequest) -> None:
        """Schedule a request once more, as its model requested."""
        try:
            self.add(request)
        except TpxError as error:
            self._answers.refused(request, error)

    def cancelled(self) -> None:
        """Schedule a purge of the queue, because a request was cancelled."""
        if self._purging is None and len(self._scheduler):
            self._purging = self._loop.call_later(_PURGE_S, self._purge)

    def _purge(self) -> None:
        self._purging = None
        for request, error in self._scheduler.purge_cancelled(self._clock()):
            self._answers.refused(request, error)
        self._dispatch()

    def released(self, queue: InstanceQueue, batch: Batch) -> None:
        """Dispatch more work, because an instance of a queue has finished a batch."""
        row_size = batch.requests[0].head.row_size if batch.requests else 0
        alone = not queue.held and len(batch.requests) == 1
        self._inline.measured_in_thread(batch.cost_ns, row_size, alone=alone)
        # the shared queue has neither sequences nor a rate limit
        if queue is not self._shared:
            self._finished(queue, batch)
            self.pool.drop(queue)
        if self._scheduler.timed or len(self._scheduler):
            self._dispatch()

    def _finished(self, queue: InstanceQueue, batch: Batch) -> None:
        """Release what waited for this batch: requests bound to its instance, and the rate limiter."""
        self._affinity.finished(batch.requests, self._clock())
        queue.admission.done(self._scheduler)

    # requests that bypass the scheduler

    @property
    def rows_at_once(self) -> int:
        """Maximum rows that may bypass the scheduler with `idle`; 0 if only the scheduler forms batches."""
        return self._scheduler.rows_at_once

    def idle(self, row_size: int) -> bool:
        """Return True if a batch with this many bytes per row may be computed on the loop now,
        bypassing the scheduler: nothing is queued or being computed.
        """
        queue = self._shared
        if queue.held or row_size > self._inline.row_size or len(self._scheduler):
            return False
        return bool(queue.instances)

    def gather(self, requests: GatheredRequests, row_size: int) -> bool:
        """Compute `requests` after reading all that arrive together. Return False if requests must be
        submitted to the scheduler; so must those with another head that were gathered already.
        """
        other, self.gathering = self.gathering, None
        if other is not None:
            other.give_up_gathered()
        if not self.idle(row_size):
            return False
        self.gathering = requests
        self.dispatch_soon()
        return True

    def computed_here(self, cost_ns: int, row_size: int) -> bool:
        """Record the cost of such a batch. Return True if the next one may bypass the scheduler too."""
        inline = self._inline
        # a lone request of another model must see that it has company
        self._arrivals.count += 1
        if cost_ns >= inline.usual_ns:
            inline.measured_here(cost_ns, row_size)
        return row_size <= inline.row_size

    # dispatch

    def dispatch_soon(self) -> None:
        """Dispatch in the next iteration of the loop."""
        if not self._dispatch_scheduled:
            self._dispatch_scheduled = True
            self._loop.call_soon(self._dispatch)

    def _dispatch(self) -> None:
        """Dispatch every batch that is ready, to an instance or on the event loop."""
        if self._dispatching:
            return  # re-entered from a reply that submitted a request: the outer call dispatches it
        self._dispatch_scheduled = False
        gathering, self.gathering = self.gathering, None
        # before what is queued: nothing was when these requests arrived
        if gathering is not None:
            gathering.compute_gathered()
        self._dispatching = True
        timed = self._scheduler.timed
        looked_ns = self._clock() if timed else 0
        try:
            for request, error in self._scheduler.expire(looked_ns) if timed else ():
                self._answers.refused(request, error)
            for queue in self.pool.queues:
                self._fill(queue)
            if self.pool.closing:
                self.pool.close_vacant()
        finally:
            self._dispatching = False
        if timed:
            # wake up when the scheduler may yield something that it did not yield at `looked_ns`
            wake_ns = self._scheduler.wake_ns(looked_ns)
            # an earlier timer looks again, and sets the next one then
            if wake_ns is None or (self._timer is not None and self._timer_ns <= wake_ns):
                return
            if self._timer is not None:
                self._timer.cancel()
            self._timer_ns = wake_ns
            self._timer = self._loop.call_later(max(0, wake_ns - self._clock()) / 1e9, self._woken)

    def _fill(self, queue: InstanceQueue) -> None:
        """Keep the instances of a queue, or the event loop, busy."""
        scheduler = self._scheduler
        turn = None
        while len(scheduler):
            if not self._dispatch_batch(queue):
                # if the loop computes, the next batch waits for it instead of queueing at an instance
                if not self._inline.open or queue.held_long:
                    self._prefetch(queue)
                return
            if len(scheduler):
                now_ns = self._clock()
                turn = turn or Turn(now_ns)
                if turn.is_over(now_ns):
                    self.dispatch_soon()
                    return
        # without work, an admission that it has or waits for would hold up other models
        if queue is not self._shared and not queue.held:
            queue.admission.withdraw()

    def _woken(self) -> None:
        self._timer = None
        self._dispatch()

    def _dispatch_batch(self, queue: InstanceQueue) -> bool:
        """Compute or hand over one batch. Return False if there is no batch or no free instance."""
        held, inline = queue.held, self._inline
        # every instance has a batch; `_prefetch` adds more
        if len(held) >= len(queue.instances):
            return False
        if held and inline.open and not queue.held_long:
            return False  # the held batch is short: wait for it, then compute on the loop
        if not queue.admission.stage():
            return False
        requests = self._scheduler.take(self._clock(), idle=True, instance=queue.index)
        if not requests:
            queue.admission.withdraw()
            return False
        batch = self._batch(requests)
        if batch is None:
            return True
        row_size = batch.requests[0].head.row_size
        batch.long = inline.is_long(row_size)
        compute = queue.instances[0].compute
        lone = len(batch.requests) == 1 and not len(self._scheduler)
        here = row_size <= inline.row_size or (lone and row_size <= inline.lone_row_size)
        if here and not held and compute is not None:
            self._compute_here(queue, compute, batch, row_size)
        else:
            if not held:
                inline.handed_over()
            queue.submit(batch)
        return True

    def _compute_here(
        self, queue: InstanceQueue, compute: Callable[[Batch], None], batch: Batch, row_size: int
    ) -> None:
        """Compute a batch on the event loop, while its instances hold none, and answer it."""
        compute(batch)
        cost_ns, inline = batch.ended_ns - batch.started_ns, self._inline
        if cost_ns >= inline.usual_ns or row_size > inline.row_size:
            inline.measured_here(cost_ns, row_size)
        if queue is not self._shared:
            self._finished(queue, batch)
        queue.answered(batch)

    def _prefetch(self, queue: InstanceQueue) -> None:
        """Hand over batches in advance, so that no instance waits for the loop; not with a rate limiter."""
        if queue.admission.limited or not queue.instances:
            return
        most = queue.instances[0].depth * len(queue.instances)
        while len(queue.held) < most:
            requests = self._scheduler.take(self._clock(), idle=False, instance=queue.index)
            if not requests:
                return
            batch = self._batch(requests)
            if batch is not None:
                batch.long = self._inline.is_long(batch.requests[0].head.row_size)
                queue.submit(batch)

    def _batch(self, rows: Sequence[InferRequest | None]) -> Batch | None:
        """Build a batch from the requests that are not cancelled; None if there are none."""
        if self._affinity.slotted:
            return self._batch_of_wanted(rows)
        for request in rows:
            if request is None or request.cancelled:
                return self._batch_of_wanted(rows)
        return Batch(rows)  # type: ignore[arg-type]  # no row is None here; cast() would cost a call per batch

    def _batch_of_wanted(self, rows: Sequence[InferRequest | None]) -> Batch | None:
        wanted = [None if request is None or request.cancelled else request for request in rows]
        for request in rows:
            if request is not None and request.cancelled:
                self._answers.refused(*Refusal.of_cancelled(request))
                for dependent, error in self._affinity.dropped(request, self._clock()):
                    self._answers.refused(dependent, error)
        requests = [request for request in wanted if request is not None]
        if not requests:
            return None
        return Batch.of_rows(wanted) if self._affinity.slotted else Batch(requests)
