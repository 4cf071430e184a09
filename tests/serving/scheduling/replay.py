"""Replays a trace of arrivals against a scheduler on a clock of its own, as a dispatcher would drive it."""

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tpx.errors import Cancelled, TpxError
from tpx.serving.request import InferRequest
from tpx.serving.scheduling.base import NO_AFFINITY, Scheduler


@dataclass(frozen=True, slots=True, kw_only=True)
class Departure:
    """One batch: when it left, from which queue, when it was computed, and whether an instance stood idle."""

    at_ns: int
    requests: tuple[InferRequest, ...]
    idle: bool
    queue: int = 0
    begins_ns: int = 0
    ends_ns: int = 0

    @property
    def size(self) -> int:
        return sum(request.head.batch_size for request in self.requests)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """One request that was given up, or not even taken, and when."""

    at_ns: int
    request: InferRequest
    error: TpxError


def present(rows: Sequence[InferRequest | None]) -> list[InferRequest]:
    """The requests among the rows of a batch, without the empty slots."""
    return [request for request in rows if request is not None]


class Replay:
    """Instances that take `service_ns(batch size)` each, a queue of events, and what came of them.

    Each instance has a queue of its own where requests stick to one. `cancelled` says when who gives up,
    `purges` whether the scheduler is asked to purge at once, or finds out when it is that one's turn.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        instances: int,
        service_ns: Callable[[int], int],
        cancelled: Mapping[int, int] | None = None,
        *,
        purges: bool = False,
    ) -> None:
        self.departures: list[Departure] = []
        self.rejections: list[Rejection] = []
        self.looks = 0
        self._scheduler = scheduler
        self._service_ns = service_ns
        sticky = scheduler.affinity is not NO_AFFINITY
        self._queues = [[0] for _ in range(instances)] if sticky else [[0] * instances]
        """When each instance of each queue is free."""
        self._held = [0] * len(self._queues)
        self._cancelled = cancelled or {}
        self._purges = purges
        self._events: list[tuple[int, int, str, int]] = []
        self._numbers = 0

    def run(self, arrivals: Sequence[InferRequest]) -> list[Departure]:
        """Everything that left, in order; arrivals are in order of their `arrived_ns`."""
        for index, request in enumerate(arrivals):
            self._push(request.arrived_ns, "arrival", index)
        for index, at_ns in self._cancelled.items():
            self._push(at_ns, "cancel", index)
        while self._events:
            now, _, kind, index = heapq.heappop(self._events)
            if kind == "arrival":
                self._add(now, arrivals[index])
                if self._events and self._events[0][0] == now and self._events[0][2] == "arrival":
                    continue  # the engine looks after it has read everything that came at once
            elif kind == "done":
                self._done(now, self.departures[index])
            elif kind == "cancel":
                arrivals[index].cancel()
                if not self._purges:
                    continue
                for request, error in self._scheduler.purge_cancelled(now):
                    self._reject(now, request, error)
            self._look(now)
        return self.departures

    @property
    def computed(self) -> list[InferRequest]:
        """All requests that were computed, in order of departure."""
        return [request for departure in self.departures for request in departure.requests]

    def _push(self, at: int, kind: str, index: int) -> None:
        self._numbers += 1
        heapq.heappush(self._events, (at, self._numbers, kind, index))

    def _add(self, now: int, request: InferRequest) -> None:
        try:
            self._scheduler.add(request)
        except TpxError as error:
            self._reject(now, request, error)

    def _reject(self, now: int, request: InferRequest, error: TpxError) -> None:
        self.rejections.append(Rejection(at_ns=now, request=request, error=error))

    def _done(self, now: int, departure: Departure) -> None:
        self._held[departure.queue] -= 1
        self._scheduler.affinity.finished(departure.requests, now)

    def _look(self, now: int) -> None:
        self.looks += 1
        for request, error in self._scheduler.expire(now):
            self._reject(now, request, error)
        for queue, instances in enumerate(self._queues):
            while self._held[queue] < len(instances) and self._take(now, queue, idle=True):
                pass
            while self._held[queue] < 2 * len(instances) and self._take(now, queue, idle=False):
                pass
        wake = self._scheduler.wake_ns(now)
        if wake is not None:
            assert wake > now, "the engine would look for ever"
            self._push(wake, "wake", 0)

    def _take(self, now: int, queue: int, *, idle: bool) -> bool:
        """Whether there may be more to take."""
        taken = present(self._scheduler.take(now, idle=idle, instance=queue))
        wanted = tuple(request for request in taken if not request.cancelled)
        for request in taken:
            if request.cancelled:
                self._drop(now, request)
        if wanted:
            free_at = self._queues[queue]
            first_free = min(free_at)  # batches in hand go, in order, to whichever instance is free first
            begins = max(now, first_free)
            ends = begins + self._service_ns(sum(request.head.batch_size for request in wanted))
            free_at[free_at.index(first_free)] = ends
            self.departures.append(
                Departure(at_ns=now, requests=wanted, idle=idle, queue=queue, begins_ns=begins, ends_ns=ends)
            )
            self._held[queue] += 1
            self._push(ends, "done", len(self.departures) - 1)
        return bool(taken)

    def _drop(self, now: int, request: InferRequest) -> None:
        self._reject(now, request, Cancelled("the request was cancelled"))
        for dependent, error in self._scheduler.affinity.dropped(request, now):
            self._reject(now, dependent, error)
