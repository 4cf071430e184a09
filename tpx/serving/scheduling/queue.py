"""A queue with priority levels, limits, and deadlines (Triton: core/src/scheduler_utils.cc)."""

import heapq
from bisect import bisect_left, insort
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import NamedTuple

import msgspec

from tpx.errors import Overloaded
from tpx.serving.request import InferRequest

_MANY_STALE = 64
"""Number of stale deadlines, beyond the number of requests, at which they are removed."""


class QueuePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How long requests may wait at one level, and how many."""

    timeout_ns: int = 0
    """Requests that have waited longer are refused, or moved last if `delays`; 0 = unlimited."""
    delays: bool = False
    allow_timeout_override: bool = False
    """True if a request may shorten the timeout; it cannot lengthen it."""
    max_queue_size: int = 0
    """Maximum requests; 0 = unlimited."""

    @property
    def plain(self) -> bool:
        """Return whether a simple queue suffices."""
        return not self.timeout_ns and not self.max_queue_size

    def deadline_ns(self, request: InferRequest) -> int:
        """Return the deadline of a request, None without a timeout."""
        timeout_ns = self.timeout_ns
        asked_ns = request.head.timeout_ns
        if self.allow_timeout_override and 0 < asked_ns < timeout_ns:
            timeout_ns = asked_ns
        return request.arrived_ns + timeout_ns


class QueuePolicies(msgspec.Struct, frozen=True, kw_only=True):
    """The levels of a queue, 1 first. With 0 levels there is one, and requests have no priority."""

    levels: int = 0
    default_level: int = 0
    default: QueuePolicy = msgspec.field(default_factory=QueuePolicy)
    by_level: Mapping[int, QueuePolicy] = msgspec.field(default_factory=dict)

    @property
    def plain(self) -> bool:
        """Return whether one simple queue suffices."""
        return not self.levels and self.default.plain

    def level_of(self, request: InferRequest) -> int:
        """Return the level of a request; the default one if its level does not exist."""
        if not self.levels:
            return 0
        priority = request.head.priority
        return priority if 1 <= priority <= self.levels else self.default_level


class _Level:
    """One level: timely requests in order, and the late ones behind them."""

    __slots__ = ("delayed", "policy", "queue")

    def __init__(self, policy: QueuePolicy) -> None:
        self.policy = policy
        self.queue: OrderedDict[int, InferRequest] = OrderedDict()
        """Requests by arrival number."""
        self.delayed: deque[InferRequest] = deque()

    def __len__(self) -> int:
        return len(self.queue) + len(self.delayed)

    def purge_cancelled(self) -> None:
        """Remove the cancelled requests."""
        self.queue = OrderedDict((n, request) for n, request in self.queue.items() if not request.cancelled)
        self.delayed = deque(request for request in self.delayed if not request.cancelled)

    def pop(self) -> InferRequest:
        return self.queue.popitem(last=False)[1] if self.queue else self.delayed.popleft()


class _Deadline(NamedTuple):
    """The time at which a request becomes late."""

    at_ns: int
    arrival: int
    level: int


class PolicyQueue:
    """Requests by level, first come first served within a level.

    A level exists only while requests wait at it: a configuration may have 2^64 of them.
    """

    def __init__(self, policies: QueuePolicies) -> None:
        self._policies = policies
        self._levels: dict[int, _Level] = {}
        self._numbers: list[int] = []
        """Keys of `_levels`, ascending."""
        self._deadlines: list[_Deadline] = []
        """A heap; entries of requests that have left remain until they reach the front."""
        self._arrivals = 0
        self._count = 0

    def append(self, request: InferRequest) -> None:
        """Add a request. Raises Overloaded if its level is full."""
        number = self._policies.level_of(request)
        level = self._levels.get(number)
        if level is None:
            level = self._levels[number] = _Level(self._policies.by_level.get(number, self._policies.default))
            insort(self._numbers, number)
        policy = level.policy
        if 0 < policy.max_queue_size <= len(level):
            identity = request.head.request_id or "<id_unknown>"
            raise Overloaded(f"[request id: {identity}] Exceeds maximum queue size")
        self._arrivals += 1
        self._count += 1
        level.queue[self._arrivals] = request
        if policy.timeout_ns:
            deadline = _Deadline(policy.deadline_ns(request), self._arrivals, number)
            heapq.heappush(self._deadlines, deadline)
            if len(self._deadlines) > 2 * self._count + _MANY_STALE:
                self._drop_stale()

    def expire(self, now_ns: int) -> list[InferRequest]:
        """Remove and return the requests past their deadline; move delayed ones to the end of their level."""
        refused: list[InferRequest] = []
        while (deadline_ns := self.next_deadline_ns()) is not None and deadline_ns <= now_ns:
            due = heapq.heappop(self._deadlines)
            level = self._levels[due.level]
            late = level.queue.pop(due.arrival)
            if level.policy.delays:
                level.delayed.append(late)
            else:
                refused.append(late)
                self._drop_empty(due.level)
        self._count -= len(refused)
        return refused

    def purge_cancelled(self) -> None:
        """Remove the cancelled requests."""
        for level in self._levels.values():
            level.purge_cancelled()
        self._levels = {number: level for number, level in self._levels.items() if len(level)}
        self._numbers = sorted(self._levels)
        self._drop_stale()
        self._count = sum(len(level) for level in self._levels.values())

    def next_deadline_ns(self) -> int | None:
        """Return the time of the next deadline, None if there is none."""
        deadlines = self._deadlines
        while deadlines and not self._is_waiting(deadlines[0]):
            heapq.heappop(deadlines)
        return deadlines[0].at_ns if deadlines else None

    def popleft(self) -> InferRequest:
        """Remove and return the first request. Raises IndexError if there is none."""
        number = self._numbers[0]
        request = self._levels[number].pop()
        self._drop_empty(number)
        self._count -= 1
        return request

    def _is_waiting(self, deadline: _Deadline) -> bool:
        """Return whether the request of a deadline is still queued."""
        level = self._levels.get(deadline.level)
        return level is not None and deadline.arrival in level.queue

    def _drop_stale(self) -> None:
        self._deadlines = [each for each in self._deadlines if self._is_waiting(each)]
        heapq.heapify(self._deadlines)

    def _drop_empty(self, number: int) -> None:
        if not len(self._levels[number]):
            del self._levels[number]
            del self._numbers[bisect_left(self._numbers, number)]

    def __iter__(self) -> Iterator[InferRequest]:
        return chain.from_iterable(
            chain(level.queue.values(), level.delayed)
            for level in map(self._levels.__getitem__, self._numbers)
        )

    def __len__(self) -> int:
        return self._count
