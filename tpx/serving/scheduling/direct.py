"""No scheduling: each request runs alone on the first free instance, first come first served."""

from collections import deque
from collections.abc import Sequence

from tpx.serving.request import InferRequest
from tpx.serving.scheduling.base import NO_AFFINITY, Affinity, Refusal


class DirectScheduler:
    """A plain queue."""

    waits = False
    rows_at_once = 1
    timed = False
    affinity: Affinity = NO_AFFINITY

    def __init__(self) -> None:
        self._queue: deque[InferRequest] = deque()

    def add(self, request: InferRequest) -> None:
        self._queue.append(request)

    def take(
        self,
        now_ns: int,  # noqa: ARG002
        *,
        idle: bool,  # noqa: ARG002
        instance: int = 0,  # noqa: ARG002
    ) -> Sequence[InferRequest]:
        return (self._queue.popleft(),) if self._queue else ()

    def expire(self, now_ns: int) -> Sequence[Refusal]:  # noqa: ARG002
        return ()

    def purge_cancelled(self, now_ns: int) -> Sequence[Refusal]:  # noqa: ARG002
        left = [Refusal.of_cancelled(request) for request in self._queue if request.cancelled]
        if left:
            self._queue = deque(request for request in self._queue if not request.cancelled)
        return left

    def wake_ns(self, now_ns: int) -> int | None:  # noqa: ARG002
        return None

    def __len__(self) -> int:
        return len(self._queue)
