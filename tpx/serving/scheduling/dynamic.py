"""Dynamic batching: requests that arrive close together are computed together.

A batch leaves when an instance is free and one of these holds (Triton: core/src/dynamic_batch_scheduler.cc):
it has a preferred size, or more than the largest of them; it cannot grow, because it is full or the next
request does not fit; its oldest request has waited for `max_queue_delay`. With no delay configured it leaves
as it is: batches then form by themselves while all instances are busy, and batching costs nothing when it
cannot help.
"""

from collections import deque
from collections.abc import Sequence

from tpx.errors import Overloaded, TpxError
from tpx.serving.request import InferRequest
from tpx.serving.scheduling.queue import PolicyQueue, QueuePolicies


class DynamicBatcher:
    """One queue in order of arrival; batches are runs of its front that can be stacked."""

    waits = True

    sticky = False

    def __init__(
        self,
        max_batch_size: int,
        preferred_batch_size: Sequence[int] = (),
        max_queue_delay_ns: int = 0,
        policies: QueuePolicies | None = None,
    ) -> None:
        self._max = max(1, max_batch_size)
        preferred = frozenset(preferred_batch_size)
        self._preferred = preferred if preferred != {self._max} else frozenset()
        self._target = max(preferred, default=self._max)
        self._delay_ns = max_queue_delay_ns
        self.expires = policies is not None and not policies.plain
        self._policed = PolicyQueue(policies) if policies is not None and not policies.plain else None
        self._queue: deque[InferRequest] | PolicyQueue = deque() if self._policed is None else self._policed

    def add(self, request: InferRequest) -> None:
        self._queue.append(request)

    def take(self, now_ns: int, *, idle: bool, lane: int = 0) -> Sequence[InferRequest]:  # noqa: ARG002
        queue = self._queue
        if not queue or (self._policed is not None and not idle):
            return ()  # priorities and deadlines are judged when an instance is free, not before
        count, final = self._longest_run()
        preferred = self._preferred_run() if self._preferred else 0
        overdue = now_ns - self._oldest_ns() >= self._delay_ns
        if preferred and not (overdue and self._delay_ns):
            count = preferred
        elif not final and not (overdue and idle):
            return ()
        return [queue.popleft() for _ in range(count)]

    def wake_ns(self) -> int | None:
        if not self._queue:
            return None
        deadline = self._policed.next_deadline_ns() if self._policed is not None else None
        leaves = self._oldest_ns() + self._delay_ns if self._delay_ns else None
        return min((at for at in (deadline, leaves) if at is not None), default=None)

    def finished(self, requests: Sequence[InferRequest], now_ns: int) -> None:
        """Nothing depends on it."""

    def expire(self, now_ns: int) -> Sequence[tuple[InferRequest, TpxError]]:
        if self._policed is None:
            return ()
        return [(request, _expired(request)) for request in self._policed.expire(now_ns)]

    def __len__(self) -> int:
        return len(self._queue)

    def _oldest_ns(self) -> int:
        """When the one came that has waited longest."""
        if self._policed is not None:
            return min(request.arrived_ns for request in self._policed)
        return next(iter(self._queue)).arrived_ns

    def _longest_run(self) -> tuple[int, bool]:
        """How many requests of the front fit into one batch, and whether no later arrival could join them."""
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

    def _preferred_run(self) -> int:
        """The longest run of the front that makes a preferred size, or the one that would overshoot the
        largest: then what comes before the overshoot leaves, or the one request that overshoots by itself."""
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


def _expired(request: InferRequest) -> Overloaded:
    return Overloaded(f"[request id: {request.head.request_id or '<id_unknown>'}] Request timeout expired")
