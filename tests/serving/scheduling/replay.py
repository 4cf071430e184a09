"""Replays a trace of arrivals against a scheduler on a clock of its own, as ServedModel would drive it."""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tpx.serving.request import InferRequest
from tpx.serving.scheduling.base import Scheduler


@dataclass(frozen=True, slots=True, kw_only=True)
class Departure:
    """One batch: when it left, and whether an instance stood idle for it."""

    at_ns: int
    requests: tuple[InferRequest, ...]
    idle: bool

    @property
    def size(self) -> int:
        return sum(request.head.batch_size for request in self.requests)


class Replay:
    """Instances that take `service_ns(batch size)` each, a queue of events, and what came of them."""

    def __init__(self, scheduler: Scheduler, instances: int, service_ns: Callable[[int], int]) -> None:
        self.departures: list[Departure] = []
        self._scheduler = scheduler
        self._service_ns = service_ns
        self._instances = instances
        self._held = 0
        self._free_at = [0] * instances
        self._events: list[tuple[int, int, str, int]] = []
        self._numbers = 0

    def run(self, arrivals: Sequence[InferRequest]) -> list[Departure]:
        """Everything that left, in order; arrivals are in order of their `arrived_ns`."""
        for index, request in enumerate(arrivals):
            self._push(request.arrived_ns, "arrival", index)
        while self._events:
            now, _, kind, index = heapq.heappop(self._events)
            if kind == "arrival":
                self._scheduler.add(arrivals[index])
                if self._events and self._events[0][0] == now and self._events[0][2] == "arrival":
                    continue  # the engine looks after it has read everything that came at once
            elif kind == "done":
                self._held -= 1
            self._look(now)
        return self.departures

    def _push(self, at: int, kind: str, index: int) -> None:
        self._numbers += 1
        heapq.heappush(self._events, (at, self._numbers, kind, index))

    def _look(self, now: int) -> None:
        while self._held < self._instances and len(self._scheduler):
            if not self._take(now, idle=True):
                self._wake_later(now)
                return
        while self._held < 2 * self._instances and len(self._scheduler):
            if not self._take(now, idle=False):
                self._wake_later(now)
                return

    def _take(self, now: int, *, idle: bool) -> bool:
        requests = tuple(self._scheduler.take(now, idle=idle))
        if requests:
            departure = Departure(at_ns=now, requests=requests, idle=idle)
            self.departures.append(departure)
            self._held += 1
            # batches in hand go, in order, to whichever instance is free first
            first_free = min(self._free_at)
            ends = max(now, first_free) + self._service_ns(departure.size)
            self._free_at[self._free_at.index(first_free)] = ends
            self._push(ends, "done", 0)
        return bool(requests)

    def _wake_later(self, now: int) -> None:
        wake = self._scheduler.wake_ns()
        if wake is not None and wake > now:
            self._push(wake, "wake", 0)
