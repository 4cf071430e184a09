"""A queue with levels of priority, limits and deadlines (Triton: core/src/scheduler_utils.cc)."""

import heapq
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain

from tpx.errors import Overloaded
from tpx.serving.request import InferRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePolicy:
    """How long and how many requests may wait at one level."""

    timeout_ns: int = 0
    """Requests that have waited longer are refused, or come last if `delays`; 0 lets them wait for ever."""
    delays: bool = False
    allow_timeout_override: bool = False
    """A request may shorten the timeout, not lengthen it."""
    max_queue_size: int = 0
    """0 is no limit."""

    @property
    def plain(self) -> bool:
        """Nothing is asked for that a simple queue does not do."""
        return not self.timeout_ns and not self.max_queue_size

    def deadline_ns(self, request: InferRequest) -> int:
        """Until when a request may wait, where there is a timeout."""
        timeout_ns = self.timeout_ns
        asked_ns = request.head.timeout_ns
        if self.allow_timeout_override and 0 < asked_ns < timeout_ns:
            timeout_ns = asked_ns
        return request.arrived_ns + timeout_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePolicies:
    """The levels of a queue, 1 first. With 0 levels there is one, and requests have no priority."""

    levels: int = 0
    default_level: int = 0
    default: QueuePolicy = field(default_factory=QueuePolicy)
    by_level: Mapping[int, QueuePolicy] = field(default_factory=dict)

    @property
    def plain(self) -> bool:
        """One simple queue does all that is asked for."""
        return not self.levels and self.default.plain

    def level_of(self, request: InferRequest) -> int:
        """A level that does not exist is the default one."""
        if not self.levels:
            return 0
        asked = request.head.priority
        return asked if 1 <= asked <= self.levels else self.default_level


class _Level:
    """One level: those in time, in order, and behind them those that are late."""

    __slots__ = ("deadlines", "delayed", "policy", "queue")

    def __init__(self, policy: QueuePolicy) -> None:
        self.policy = policy
        self.queue: OrderedDict[int, InferRequest] = OrderedDict()
        """By number of arrival."""
        self.delayed: deque[InferRequest] = deque()
        self.deadlines: list[tuple[int, int]] = []
        """A heap of times and numbers; those of requests that have left stay until they come to the front."""

    def __len__(self) -> int:
        return len(self.queue) + len(self.delayed)

    def next_deadline_ns(self) -> int | None:
        deadlines = self.deadlines
        while deadlines and deadlines[0][1] not in self.queue:
            heapq.heappop(deadlines)
        return deadlines[0][0] if deadlines else None

    def late(self, now_ns: int) -> Iterator[InferRequest]:
        """Remove and give those whose time has come."""
        while (deadline_ns := self.next_deadline_ns()) is not None and deadline_ns <= now_ns:
            yield self.queue.pop(heapq.heappop(self.deadlines)[1])

    def weed(self) -> None:
        """Remove those that are cancelled."""
        self.queue = OrderedDict((n, request) for n, request in self.queue.items() if not request.cancelled)
        self.delayed = deque(request for request in self.delayed if not request.cancelled)
        self.deadlines = [each for each in self.deadlines if each[1] in self.queue]
        heapq.heapify(self.deadlines)

    def pop(self) -> InferRequest:
        return self.queue.popitem(last=False)[1] if self.queue else self.delayed.popleft()


class PolicyQueue:
    """Requests by level, first come first served within one."""

    def __init__(self, policies: QueuePolicies) -> None:
        self._policies = policies
        numbers = range(1, policies.levels + 1) if policies.levels else (0,)
        self._levels = {n: _Level(policies.by_level.get(n, policies.default)) for n in numbers}
        self._arrivals = 0
        self._count = 0

    def append(self, request: InferRequest) -> None:
        """Take a request. Raises Overloaded where its level is full."""
        level = self._levels[self._policies.level_of(request)]
        policy = level.policy
        if 0 < policy.max_queue_size <= len(level):
            identity = request.head.request_id or "<id_unknown>"
            raise Overloaded(f"[request id: {identity}] Exceeds maximum queue size")
        self._arrivals += 1
        self._count += 1
        level.queue[self._arrivals] = request
        if policy.timeout_ns:
            heapq.heappush(level.deadlines, (policy.deadline_ns(request), self._arrivals))

    def expire(self, now_ns: int) -> list[InferRequest]:
        """Remove and return those that may not wait any longer; those that may come last from now on."""
        refused: list[InferRequest] = []
        for level in self._levels.values():
            if level.policy.delays:
                level.delayed.extend(level.late(now_ns))
            else:
                refused += level.late(now_ns)
        self._count -= len(refused)
        return refused

    def weed(self) -> None:
        """Remove those that are cancelled."""
        for level in self._levels.values():
            level.weed()
        self._count = sum(len(level) for level in self._levels.values())

    def next_deadline_ns(self) -> int | None:
        """When `expire` will next find something."""
        deadlines = [level.next_deadline_ns() for level in self._levels.values()]
        return min((at for at in deadlines if at is not None), default=None)

    def popleft(self) -> InferRequest:
        """The first one. Raises IndexError where there is none."""
        for level in self._levels.values():
            if len(level):
                self._count -= 1
                return level.pop()
        raise IndexError("pop from an empty queue")

    def __iter__(self) -> Iterator[InferRequest]:
        return chain.from_iterable(
            chain(level.queue.values(), level.delayed) for level in self._levels.values()
        )

    def __len__(self) -> int:
        return self._count
