"""The instances of a model and the queues that they take batches from; they join and leave while it serves.

An *instance queue* feeds instances that take the same batches: all instances of a model, or a single one if
requests are bound to instances or a rate limiter is used.
"""

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from tpx.errors import NotReady, TpxError
from tpx.serving.backends.contract import Needs
from tpx.serving.batch import Batch, EarlyResponse
from tpx.serving.instance import Instance
from tpx.serving.instances.thread import ThreadQueue
from tpx.serving.request import InferRequest
from tpx.serving.scheduling.base import NO_AFFINITY, Scheduler
from tpx.serving.scheduling.limiter import FREE, Admission, Limiter


class ResponseSink(Protocol):
    """Receives the results of requests, on the event loop."""

    def answered(self, batch: Batch) -> None:
        """Handle a batch that was computed or has failed."""

    def responded(self, early: EarlyResponse) -> None:
        """Handle a response that a request has before its batch has ended."""

    def streamed(
        self, request: InferRequest, pieces: list[bytes], index: int, begun_ns: int, now_ns: int
    ) -> None:
        """Handle pieces of a stream."""

    def refused(self, request: InferRequest, error: TpxError) -> None:
        """Handle a request that will not be computed because it was cancelled or timed out in the queue."""


class Dispatching(Protocol):
    """The dispatcher, as its instances see it."""

    def released(self, queue: "InstanceQueue", batch: Batch) -> None:
        """Dispatch more work, because an instance of a queue has finished a batch."""

    def requeue(self, request: InferRequest) -> None:
        """Schedule a request once more, as its model requested."""

    def dispatch_soon(self) -> None:
        """Dispatch in the next iteration of the loop."""


class InstanceQueue:
    """Instances that take the same batches, and the batches they hold (implements CompletionSink)."""

    def __init__(
        self, index: int, admission: Admission, dispatching: Dispatching, answers: ResponseSink
    ) -> None:
        self.index = index
        self.admission = admission
        self.threads: ThreadQueue = ThreadQueue()
        """Queue shared by those instances that are threads."""
        self.instances: list[Instance] = []
        self.held: set[Batch] = set()
        self.held_long = 0
        """Number of held batches that may take long; the loop does not wait for these."""
        self._waiting: deque[Batch] = deque()
        """Held batches that no instance can take until a process has restarted."""
        self._dispatching = dispatching
        self.answered = answers.answered
        self.responded = answers.responded
        self.streamed = answers.streamed
        self.requeue = dispatching.requeue

    def submit(self, batch: Batch) -> None:
        """Hand a batch to an instance."""
        self.held.add(batch)
        self.held_long += batch.long
        self._waiting.append(batch)
        self.dispatch()

    def dispatch(self) -> None:
        """Hand waiting batches to the least loaded instances."""
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
        self.released(batch)  # keep the instance busy before answering
        self.answered(batch)

    def released(self, batch: Batch) -> None:
        self.held.discard(batch)
        self.held_long -= batch.long
        self._dispatching.released(self, batch)

    def returned(self, batch: Batch) -> None:
        """Requeue a batch at the front, for another instance; the caller then calls `dispatch`."""
        self._waiting.appendleft(batch)


class InstancePool:
    """The instances of one model; on the event loop, unless a method says otherwise."""

    def __init__(
        self,
        scheduler: Scheduler,
        loop: asyncio.AbstractEventLoop,
        answers: ResponseSink,
        limiter: Limiter,
        dispatching: Dispatching,
        clock: Callable[[], int],
    ) -> None:
        self._scheduler = scheduler
        self._affinity = scheduler.affinity
        self._loop = loop
        self._answers = answers
        self._limiter = limiter
        self._dispatching = dispatching
        self._clock = clock
        self._numbers = itertools.count()
        self.shared = self._new_queue(FREE)
        """Queue of all instances that take any batch."""
        self.queues: list[InstanceQueue] = []
        """Queues with instances or batches."""
        self.immediate = False
        """True if every request is computed alone, by any free instance."""
        self.closing: list[tuple[InstanceQueue, Instance]] = []
        """Instances that leave once their last sequence has ended."""

    def queue_for(self, needs: Needs) -> InstanceQueue:
        """Return the queue for one more instance. May be called from any thread."""
        admission = self._limiter.admission(needs, self._dispatching.dispatch_soon)
        if self._affinity is NO_AFFINITY and not admission.limited:
            return self.shared
        return self._new_queue(admission)

    def _new_queue(self, admission: Admission) -> InstanceQueue:
        return InstanceQueue(next(self._numbers), admission, self._dispatching, self._answers)

    def add(self, queue: InstanceQueue, instance: Instance) -> None:
        """Add an instance. Call on the event loop once there are requests; before that, from any thread."""
        if queue not in self.queues:
            self.queues.append(queue)
            scheduler = self._scheduler
            self.immediate = self.queues == [self.shared] and not (scheduler.waits or scheduler.timed)
            self._affinity.open_instance(queue.index, self._clock())
            # the limiter belongs to the event loop, and instances are created by load threads
            self._loop.call_soon_threadsafe(queue.admission.enter)
        queue.instances.append(instance)
        instance.begin(queue)
        self._loop.call_soon_threadsafe(self._dispatching.dispatch_soon)

    def remove(self, instance: Instance) -> None:
        """Remove an instance after the batches it holds and its last sequence. The caller then closes it."""
        queue = next(queue for queue in self.queues if instance in queue.instances)
        self.closing.append((queue, instance))
        self.close_vacant()

    def close_vacant(self) -> None:
        """Remove the closing instances whose last sequence has ended."""
        for queue, instance in list(self.closing):
            if self._affinity.close_instance(queue.index):
                self.closing.remove((queue, instance))
                queue.instances.remove(instance)
                instance.leave()
                self.drop(queue)

    def end_closing(self) -> None:
        """Remove the instances that wait for their last sequences. Nothing may be in flight."""
        for queue, instance in self.closing:
            queue.instances.remove(instance)
            instance.leave()
        self.closing.clear()

    def drop(self, queue: InstanceQueue) -> None:
        """Drop an instance's own queue once the instance has left and the queue holds no batch."""
        if queue is not self.shared and not queue.instances and not queue.held:
            # build a new list: the caller may be iterating over the old one
            self.queues = [other for other in self.queues if other is not queue]
            queue.admission.leave()

    def close(self) -> None:
        """Close the instances after the batches they hold; nothing may be in flight. May be called from
        any thread.

        Instances removed by `remove` are closed by its caller.
        """
        self.end_closing()
        instances = self.instances
        for instance in instances:
            instance.leave()
        close_together(instances)
        for queue in self.queues:
            queue.instances.clear()

    def leave(self) -> None:
        """Withdraw all queues from the rate limiter: the model is closed."""
        for queue in self.queues:
            queue.admission.leave()

    @property
    def instances(self) -> list[Instance]:
        """Instances that have joined and not left."""
        return [instance for queue in self.queues for instance in queue.instances]


def close_together(instances: Sequence[Instance]) -> None:
    """Close instances in parallel, because a process may take long to finalize. Blocks."""
    if len(instances) == 1:
        instances[0].close()
    elif instances:
        with ThreadPoolExecutor(len(instances)) as pool:
            list(pool.map(lambda instance: instance.close(), instances))
