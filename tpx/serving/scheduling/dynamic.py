"""Dynamic batching: requests that arrive close together are computed together.

A batch leaves when an instance is free and one of these holds (Triton: core/src/dynamic_batch_scheduler.cc):
it has a preferred size, or more than the largest of them; it cannot grow, because it is full or the next
request does not fit; its oldest request has waited for `max_queue_delay`. With no delay configured it leaves
as it is: batches then form by themselves while all instances are busy, and batching costs nothing when it
cannot help.
"""

from collections import deque
from collections.abc import Sequence

from tpx.serving.request import InferRequest


class DynamicBatcher:
    """One queue in order of arrival; batches are runs of its front that can be stacked."""

    waits = True

    def __init__(
        self, max_batch_size: int, preferred_batch_size: Sequence[int] = (), max_queue_delay_ns: int = 0
    ) -> None:
        self._max = max(1, max_batch_size)
        preferred = frozenset(preferred_batch_size)
        self._preferred = preferred if preferred != {self._max} else frozenset()
        self._target = max(preferred, default=self._max)
        self._delay_ns = max_queue_delay_ns
        self._queue: deque[InferRequest] = deque()

    def add(self, request: InferRequest) -> None:
        self._queue.append(request)

    def take(self, now_ns: int, *, idle: bool) -> Sequence[InferRequest]:
        queue = self._queue
        if not queue:
            return ()
        count, final = self._longest_run()
        preferred = self._preferred_run() if self._preferred else 0
        overdue = now_ns - queue[0].arrived_ns >= self._delay_ns
        if preferred and not (overdue and self._delay_ns):
            count = preferred
        elif not final and not (overdue and idle):
            return ()
        return [queue.popleft() for _ in range(count)]

    def wake_ns(self) -> int | None:
        if not self._queue or not self._delay_ns:
            return None
        return self._queue[0].arrived_ns + self._delay_ns

    def drain(self) -> Sequence[InferRequest]:
        waiting = list(self._queue)
        self._queue.clear()
        return waiting

    def __len__(self) -> int:
        return len(self._queue)

    def _longest_run(self) -> tuple[int, bool]:
        """How many requests of the front fit into one batch, and whether no later arrival could join them."""
        queue = self._queue
        key = queue[0].head.batch_key
        size = count = 0
        for request in queue:
            head = request.head
            if size + head.batch_size > self._max or (head.batch_key is not key and head.batch_key != key):
                return count, True
            size += head.batch_size
            count += 1
        return count, size >= self._max

    def _preferred_run(self) -> int:
        """The longest run of the front that makes a preferred size, or the one that would overshoot the
        largest: then what comes before the overshoot leaves, or the one request that overshoots by itself."""
        key = self._queue[0].head.batch_key
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
