"""From a scheduler to the instances: hands over batches that may leave, or computes them on the event loop.

Everything here runs on the event loop, except where a method says otherwise. An *instance
queue* feeds the instances that take the same batches: all of a model, or one, where requests stick to it or
instances take turns.
"""

import asyncio
import contextlib
import itertools
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from tpx.errors import NotReady, TpxError
from tpx.serving.backends.contract import Needs
from tpx.serving.batch import Batch, EarlyResponse
from tpx.serving.instances.base import Instance, close_together
from tpx.serving.instances.thread import ThreadQueue
from tpx.serving.request import InferRequest
from tpx.serving.scheduling.base import NO_AFFINITY, Refusal, Scheduler
from tpx.serving.scheduling.inline import Arrivals, InlinePolicy, LonePolicy
from tpx.serving.scheduling.limiter import FREE, Admission, Limiter

_BATCHES_AT_ONCE = 64
"""Computed on the event loop before it turns to anything else."""
_LONE = 10
"""Times the limit of short executions: what a lone request may take on the event loop."""
_PURGE_S = 0.05
"""Between purges of cancelled requests: clients leave many at a time, and queues are long."""


class AnswerSink(Protocol):
    """Takes what comes of requests, on the event loop."""

    def answered(self, batch: Batch) -> None:
        """A batch was computed, or failed."""

    def responded(self, early: EarlyResponse) -> None:
        """A request has a response before its batch has ended."""

    def refused(self, request: InferRequest, error: TpxError) -> None:
        """A request is not computed: it was cancelled, or has waited longer than it may."""


class InstanceQueue:
    """Instances that take the same batches, and the batches that they hold; implements CompletionSink."""

    __slots__ = (
        "_dispatcher",
        "_waiting",
        "admission",
        "again",
        "answered",
        "held",
        "held_long",
        "index",
        "instances",
        "responded",
        "threads",
    )

    def __init__(
        self, index: int, admission: Admission, dispatcher: "Dispatcher", answers: AnswerSink
    ) -> None:
        self.index = index
        self.admission = admission
        self.threads: ThreadQueue = ThreadQueue()
        """Shared by those of the instances that are threads."""
        self.instances: list[Instance] = []
        self.held: set[Batch] = set()
        self.held_long = 0
        """How many of them may take long, for which the loop does not wait."""
        self._waiting: deque[Batch] = deque()
        """Batches of `held` that no instance can take before a process has been restarted."""
        self._dispatcher = dispatcher
        self.answered = answers.answered
        self.responded = answers.responded
        self.again = dispatcher.again

    def submit(self, batch: Batch) -> None:
        """Hand a batch to the instances."""
        self.held.add(batch)
        self.held_long += batch.long
        self._waiting.append(batch)
        self.look()

    def look(self) -> None:
        """Hand waiting batches to the instances that hold fewest: one may have become alive, or failed."""
        while self._waiting:
            best = None
            for instance in self.instances:
                if instance.alive and (best is None or instance.held < best.held):
                    best = instance
            if best is not None:
                best.submit(self._waiting.popleft())
            elif all(instance.failure for instance in self.instances):
                why = self.instances[0].failure if self.instances else "the instance was taken away"
                batch = self._waiting.popleft()
                batch.fail(NotReady(why))
                self.computed(batch)
            else:
                return

    def computed(self, batch: Batch) -> None:
        self.released(batch)  # first give the instance work, then answer
        self.answered(batch)

    def released(self, batch: Batch) -> None:
        self.held.discard(batch)
        self.held_long -= batch.long
        self._dispatcher.released(self, batch)

    def returned(self, batch: Batch) -> None:
        """Have another instance compute a batch before all that wait; `look` is called then."""
        self._waiting.appendleft(batch)


class Dispatcher:
    """Gives each batch of a scheduler to a queue that has room, or to the event loop."""

    def __init__(
        self,
        scheduler: Scheduler,
        loop: asyncio.AbstractEventLoop,
        answers: AnswerSink,
        limiter: Limiter,
        *,
        inline_below_ns: int,
        arrivals: Arrivals,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        """`arrivals` counts the requests to all models, before they come here."""
        self._scheduler = scheduler
        self._clock = clock
        self._affinity = scheduler.affinity
        self._limiter = limiter
        self._loop = loop
        self._answers = answers
        self._inline = InlinePolicy(inline_below_ns)
        self._lone = LonePolicy(_LONE * inline_below_ns, arrivals)
        self._arrivals = arrivals
        self._immediate = False
        """Every request goes alone, to whichever instance is free."""
        self._numbers = itertools.count()
        self._shared = self._new_queue(FREE)
        self._queues: list[InstanceQueue] = []
        self._closing: list[tuple[InstanceQueue, Instance]] = []
        """Instances that leave with the last of their sequences."""
        self._look_scheduled = False
        self._looking = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0
        self._purging: asyncio.TimerHandle | None = None

    # instances

    def queue_for(self, needs: Needs) -> InstanceQueue:
        """Return the queue for one more instance. May be called from any thread."""
        admission = self._limiter.admission(needs, self._look_soon)
        if self._affinity is NO_AFFINITY and not admission.limited:
            return self._shared
        return self._new_queue(admission)

    def _new_queue(self, admission: Admission) -> InstanceQueue:
        return InstanceQueue(next(self._numbers), admission, self, self._answers)

    def join(self, queue: InstanceQueue, instance: Instance) -> None:
        """Have one more instance compute; on the event loop, once there are requests."""
        if queue not in self._queues:
            self._queues.append(queue)
            scheduler = self._scheduler
            self._immediate = self._queues == [self._shared] and not (scheduler.waits or scheduler.timed)
            self._affinity.open_instance(queue.index, self._clock())
            self._loop.call_soon_threadsafe(queue.admission.enter)
        queue.instances.append(instance)
        instance.begin(queue)
        self._loop.call_soon_threadsafe(self._look_soon)

    def part(self, instance: Instance) -> None:
        """Have an instance leave after what it holds, with the last of its sequences; then close it."""
        queue = next(queue for queue in self._queues if instance in queue.instances)
        self._closing.append((queue, instance))
        self._close_vacant()

    def _close_vacant(self) -> None:
        """Have those instances leave whose last sequence has ended."""
        for queue, instance in list(self._closing):
            if self._affinity.close_instance(queue.index):
                self._closing.remove((queue, instance))
                self._remove(queue, instance)

    def end_closing(self) -> None:
        """Have the instances leave that wait for their last sequences; nothing may be in flight."""
        for queue, instance in self._closing:
            queue.instances.remove(instance)
            instance.leave()
        self._closing.clear()

    def _remove(self, queue: InstanceQueue, instance: Instance) -> None:
        queue.instances.remove(instance)
        instance.leave()
        self._drop(queue)

    def _drop(self, queue: InstanceQueue) -> None:
        """Forget a queue of its own whose instance has left, once it holds nothing."""
        if queue is not self._shared and not queue.instances and not queue.held:
            # another list: the loop over the old one may be what has led here
            self._queues = [other for other in self._queues if other is not queue]
            queue.admission.leave()

    def close(self) -> None:
        """End the instances after what they hold; nothing may be in flight. May be called from any thread.

        Instances that were parted are closed by the caller of `part`.
        """
        self.end_closing()
        instances = self.instances
        for instance in instances:
            instance.leave()
        close_together(instances)
        for queue in self._queues:
            queue.instances.clear()
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._leave)

    def _leave(self) -> None:
        for timer in (self._timer, self._purging):
            if timer is not None:
                timer.cancel()
        for queue in self._queues:
            queue.admission.leave()

    @property
    def sequences(self) -> int:
        """Return how many sequences have begun and not ended."""
        return self._affinity.live

    @property
    def instances(self) -> list[Instance]:
        """Return all instances that have joined and not left."""
        return [instance for queue in self._queues for instance in queue.instances]

    @property
    def pending(self) -> int:
        """Return how many requests wait for an instance, in the queue or in a batch that was not begun."""
        held = [batch for queue in self._queues for batch in queue.held]
        return len(self._scheduler) + sum(len(batch.requests) for batch in held if not batch.started_ns)

    # requests

    def add(self, request: InferRequest) -> None:
        """Take a request; it may be answered before this returns. Raises RequestError."""
        scheduler = self._scheduler
        if self._immediate and self._computed_at_once(request):
            return
        scheduler.add(request)
        if not scheduler.waits:
            self._look()
        elif not self._look_scheduled:
            # after everything that has arrived with this request was read
            self._look_scheduled = True
            self._loop.call_soon(self._look)

    def _computed_at_once(self, request: InferRequest) -> bool:
        """Compute a request on the event loop, if it may be and nothing is in its way: the short form of
        `_look`."""
        queue = self._shared
        row_size = request.head.row_size
        policy: InlinePolicy | LonePolicy = self._inline
        if row_size > policy.row_size:
            policy = self._lone
        if row_size > policy.row_size or queue.held or self._looking or self._look_scheduled:
            return False
        compute = queue.instances[0].compute if queue.instances else None
        if compute is None or request.cancelled:
            return False
        batch = Batch((request,))
        self._looking = True
        try:
            compute(batch)
            cost_ns = batch.ended_ns - batch.started_ns
            if cost_ns >= policy.usual_ns:
                policy.measured_here(cost_ns, row_size)
            queue.answered(batch)
        finally:
            self._looking = False
        if len(self._scheduler):
            self._look()
        return True

    def again(self, request: InferRequest) -> None:
        """Take a request once more, because its model wants it."""
        try:
            self.add(request)
        except TpxError as error:
            self._answers.refused(request, error)

    def cancelled(self) -> None:
        """Purge the queue soon: some request was cancelled."""
        if self._purging is None and len(self._scheduler):
            self._purging = self._loop.call_later(_PURGE_S, self._purge)

    def _purge(self) -> None:
        self._purging = None
        for request, error in self._scheduler.purge_cancelled(self._clock()):
            self._answers.refused(request, error)
        self._look()

    def released(self, queue: InstanceQueue, batch: Batch) -> None:
        """Look for more work: an instance of a queue is done with a batch."""
        row_size = batch.requests[0].head.row_size if batch.requests else 0
        self._inline.measured_in_thread(batch.cost_ns, row_size)
        alone = not queue.held and len(batch.requests) == 1
        self._lone.measured_in_thread(batch.cost_ns, row_size, alone=alone)
        if queue is not self._shared:
            self._finished(queue, batch)
            self._drop(queue)
        if self._scheduler.timed or len(self._scheduler):
            self._look()

    def _finished(self, queue: InstanceQueue, batch: Batch) -> None:
        """Let those go on that wait for a batch of a queue of its own."""
        self._affinity.finished(batch.requests, self._clock())
        queue.admission.done(self._scheduler)

    # requests that are computed as they come

    @property
    def rows_at_once(self) -> int:
        """Return the most rows that `idle` is asked for; 0 where batches are the scheduler's to make."""
        return self._scheduler.rows_at_once

    def idle(self, row_size: int) -> bool:
        """Return whether a batch of rows of so many bytes, which is here now, may be computed on the loop
        without asking the scheduler: nothing waits, no instance computes."""
        queue = self._shared
        if queue.held or row_size > self._inline.row_size or len(self._scheduler):
            return False
        return bool(queue.instances)

    def computed_here(self, cost_ns: int, row_size: int) -> bool:
        """Note what such a batch has cost; return whether the next one may be computed so, too."""
        inline = self._inline
        self._arrivals.count += 1
        if cost_ns >= inline.usual_ns:
            inline.measured_here(cost_ns, row_size)
        return row_size <= inline.row_size

    # dispatch

    def _look_soon(self) -> None:
        if not self._look_scheduled:
            self._look_scheduled = True
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        """Hand to instances what may leave now, or compute it here."""
        if self._looking:
            return  # an answer has brought another request: the loop below takes it next
        self._look_scheduled = False
        self._looking = True
        timed = self._scheduler.timed
        try:
            looked_ns = self._refuse_late() if timed else 0
            for queue in self._queues:
                self._fill(queue)
            if self._closing:
                self._close_vacant()
        finally:
            self._looking = False
        if timed:
            self._wake_later(looked_ns)

    def _fill(self, queue: InstanceQueue) -> None:
        """Keep the instances of a queue busy, or the event loop."""
        scheduler = self._scheduler
        left = _BATCHES_AT_ONCE
        while len(scheduler):
            if not left:
                self._look_soon()
                return
            if not self._dispatch(queue):
                if not self._inline.open or queue.held_long:
                    self._prefetch(queue)
                return
            left -= 1
        if queue is not self._shared and not queue.held:
            queue.admission.withdraw()

    def _refuse_late(self) -> int:
        """Refuse requests that have waited too long. Return the time of it."""
        now_ns = self._clock()
        for request, error in self._scheduler.expire(now_ns):
            self._answers.refused(request, error)
        return now_ns

    def _wake_later(self, looked_ns: int) -> None:
        """Look again when the scheduler may give something that it did not give at that time."""
        wake_ns = self._scheduler.wake_ns(looked_ns)
        if wake_ns is None or (self._timer is not None and self._timer_ns <= wake_ns):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ns = wake_ns
        self._timer = self._loop.call_later(max(0, wake_ns - self._clock()) / 1e9, self._woken)

    def _woken(self) -> None:
        self._timer = None
        self._look()

    def _dispatch(self, queue: InstanceQueue) -> bool:
        """Compute or hand over one batch, if there is one and an instance for it."""
        held, inline = queue.held, self._inline
        if len(held) >= len(queue.instances):
            return False
        if held and inline.open and not queue.held_long:
            return False  # what the instances hold is soon back; then the loop computes
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
        policy: InlinePolicy | LonePolicy = inline
        if row_size > inline.row_size and len(batch.requests) == 1 and not len(self._scheduler):
            policy = self._lone
        if not held and row_size <= policy.row_size and compute is not None:
            compute(batch)
            policy.measured_here(batch.ended_ns - batch.started_ns, row_size)
            if queue is not self._shared:
                self._finished(queue, batch)
            queue.answered(batch)
        else:
            if not held:
                self._lone.handed_over()
            queue.submit(batch)
        return True

    def _prefetch(self, queue: InstanceQueue) -> None:
        """Keep batches in hand, so that no instance waits for the loop; none where instances take turns."""
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
        """Make a batch of the requests that were not cancelled."""
        if self._affinity.slotted:
            return self._batch_of_wanted(rows)
        for request in rows:
            if request is None or request.cancelled:
                return self._batch_of_wanted(rows)
        return Batch(rows)  # type: ignore[arg-type]  # none is empty; cast() would cost every batch a call

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
