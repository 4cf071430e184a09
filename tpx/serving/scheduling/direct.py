"""No scheduling: each request goes alone, first come first served, to the first free instance."""

from collections import deque
from collections.abc import Sequence

from tpx.serving.request import InferRequest


class DirectScheduler:
    """A queue."""

    waits = False

    def __init__(self) -> None:
        self._queue: deque[InferRequest] = deque()

    def add(self, request: InferRequest) -> None:
        self._queue.append(request)

    def take(self, now_ns: int, *, idle: bool) -> Sequence[InferRequest]:  # noqa: ARG002
        return (self._queue.popleft(),) if self._queue else ()

    def wake_ns(self) -> int | None:
        return None

    def drain(self) -> Sequence[InferRequest]:
        waiting = list(self._queue)
        self._queue.clear()
        return waiting

    def __len__(self) -> int:
        return len(self._queue)
