"""Dynamic batching: requests that arrive close together are computed together.

A batch is dispatched when an instance is free and one of these holds (Triton:
core/src/dynamic_batch_scheduler.cc): it has a preferred size, or more than the largest of them; it
cannot grow, because it is full or the next request does not fit; its oldest request has waited for
`max_queue_delay`. Without a delay it is dispatched as it is: batches then form while all instances are
busy, and batching costs nothing when it cannot help.
"""

from collections import deque
from collections.abc import Sequence
from itertools import islice

from tpx.errors import Overloaded
from tpx.serving.request import InferRequest
from tpx.serving.scheduling.base import NO_AFFINITY, Affinity, Refusal
from tpx.serving.scheduling.queue import PolicyQueue, QueuePolicies


class DynamicBatcher:
    """Queue in order of arrival, or of its policies; a batch is a run of stackable requests at its front."""

    waits = True
    affinity: Affinity = NO_AFFINITY

    def __init__(
        self,
        max_batch_size: int,
        preferred_batch_size: Sequence[int] = (),
        max_queue_delay_ns: int = 0,
        policies: QueuePolicies | None = None,
    ) -> None:
        self._max = max(1, max_batch_size)
        preferred = frozenset(preferred_batch_size)
        # the maximum alone is no preference: every batch grows up to it
        self._preferred = preferred if preferred != {self._max} else frozenset()
        self._target = max(preferred, default=self._max)
        self._delay_ns = max_queue_delay_ns
        self._policed = PolicyQueue(policies) if policies is not None and not policies.plain else None
        self._queue: deque[InferRequest] | PolicyQueue = deque() if self._policed is None else self._policed
        self.timed = max_queue_delay_ns > 0 or self._policed is not None
        self.rows_at_once = 0 if self.timed or self._preferred else self._max

    def add(self, request: InferRequest) -> None:
        self._queue.append(request)

    def take(self, now_ns: int, *, idle: bool, instance: int = 0) -> Sequence[InferRequest]:  # noqa: ARG002
        queue = self._queue
        if not queue or (self._policed is not None and not idle):
            return ()  # priorities and deadlines are judged when an instance is free, not before
        count, final = self._find_longest_run()
        if self._delay_ns:
            overdue = now_ns - self._find_oldest_ns(count) >= self._delay_ns
            preferred = self._find_preferred_run() if self._preferred and not overdue else 0
        else:
            overdue = True
            preferred = self._find_preferred_run() if self._preferred else 0
        if preferred:
            count = preferred
        elif not final and not (overdue and idle):
            return ()
        return [queue.popleft() for _ in range(count)]

    def expire(self, now_ns: int) -> Sequence[Refusal]:
        if self._policed is None:
            return ()
        return [Refusal(r, Overloaded("Request timeout expired")) for r in self._policed.expire(now_ns)]

    def purge_cancelled(self, now_ns: int) -> Sequence[Refusal]:  # noqa: ARG002
        left = [request for request in self._queue if request.cancelled]
        if left and self._policed is not None:
            self._policed.purge_cancelled()
        elif left:
            self._queue = deque(request for request in self._queue if not request.cancelled)
        return [Refusal.of_cancelled(request) for request in left]

    def wake_ns(self, now_ns: int) -> int | None:
        if not self._queue:
            return None
        times = []
        if self._delay_ns:
            times.append(self._find_oldest_ns(self._find_longest_run()[0]) + self._delay_ns)
        if self._policed is not None:
            times.append(self._policed.next_deadline_ns() or 0)
        return min((at for at in times if at > now_ns), default=None)

    def __len__(self) -> int:
        return len(self._queue)

    def _find_oldest_ns(self, count: int) -> int:
        """Return the earliest arrival among the first `count` requests."""
        if self._policed is None:
            request = next(iter(self._queue))
            sequence = request.sequence
            # in a sequence, a request first waits for earlier ones
            return request.arrived_ns if sequence is None else max(request.arrived_ns, sequence.touched_ns)
        return min(request.arrived_ns for request in islice(self._policed, count))

    def _find_longest_run(self) -> tuple[int, bool]:
        """Return the number of requests at the front that fit into one batch, and whether the batch is
        final: no later arrival could join it.
        """
        queue = self._queue
        key = None
        size = count = 0
        for request in queue:
            head = request.head
            if key is None:
                key = head.batch_key
            if size + head.batch_size > self._max or (head.batch_key is not key and head.batch_key != key):
                return count, True
            size += head.batch_size
            count += 1
        return count, size >= self._max

    def _find_preferred_run(self) -> int:
        """Return the length of the longest run at the front that has a preferred size.

        If the front would exceed the largest preferred size, return the run before the request that
        exceeds it, or 1 if that is the first.
        """
        key = next(iter(self._queue)).head.batch_key
        size = best = 0
        for count, request in enumerate(self._queue):
            head = request.head
            if size + head.batch_size > self._target and not best:
                return max(1, count)
            if size + head.batch_size > self._max or head.batch_key != key:
                break
            size += head.batch_size
            if size in self._preferred:
                best = count + 1
        return best
