"""A queue with levels of priority, limits and deadlines (Triton: core/src/scheduler_utils.cc)."""

from collections import deque
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
    def waits_for_instances(self) -> bool:
        """Requests have to be judged at the last moment: none is to wait in an instance's hand."""
        return bool(self.timeout_ns or self.allow_timeout_override or self.max_queue_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePolicies:
    """The levels of a queue, 1 first. With 0 levels there is one, and requests have no priority."""

    levels: int = 0
    default_level: int = 0
    default: QueuePolicy = field(default_factory=QueuePolicy)
    by_level: Mapping[int, QueuePolicy] = field(default_factory=dict)

    @property
    def plain(self) -> bool:
        """Nothing is asked for that a simple queue does not do."""
        return not self.levels and not self.default.waits_for_instances

    def level_of(self, request: InferRequest) -> int:
        """A level that does not exist is the default one."""
        asked = request.head.priority
        return asked if 1 <= asked <= self.levels else self.default_level


class _Level:
    """One level: those in time, in order, and behind them those that are late."""

    __slots__ = ("deadlines", "delayed", "policy", "queue")

    def __init__(self, policy: QueuePolicy) -> None:
        self.policy = policy
        self.queue: deque[InferRequest] = deque()
        self.delayed: deque[InferRequest] = deque()
        self.deadlines = policy.timeout_ns > 0

    def __len__(self) -> int:
        return len(self.queue) + len(self.delayed)


class PolicyQueue:
    """Requests by level, first come first served within one."""

    def __init__(self, policies: QueuePolicies) -> None:
        self._policies = policies
        numbers = range(1, policies.levels + 1) if policies.levels else (0,)
        self._levels = {n: _Level(policies.by_level.get(n, policies.default)) for n in numbers}

    def append(self, request: InferRequest) -> None:
        """Take a request. Raises Overloaded where its level is full."""
        level = self._levels[self._policies.level_of(request)]
        limit = level.policy.max_queue_size
        if limit and len(level) >= limit:
            identity = request.head.request_id or "<id_unknown>"
            raise Overloaded(f"[request id: {identity}] Exceeds maximum queue size")
        level.queue.append(request)

    def expire(self, now_ns: int) -> list[InferRequest]:
        """Remove and return those that may not wait any longer; those that may come last from now on."""
        refused: list[InferRequest] = []
        for level in self._levels.values():
            if not level.deadlines or not level.queue:
                continue
            late = [r for r in level.queue if self._deadline_ns(level.policy, r) <= now_ns]
            if late:
                late_ids = {id(request) for request in late}
                level.queue = deque(r for r in level.queue if id(r) not in late_ids)
                if level.policy.delays:
                    level.delayed.extend(late)
                else:
                    refused += late
        return refused

    def next_deadline_ns(self) -> int | None:
        """When `expire` will next find something."""
        deadlines = [
            self._deadline_ns(level.policy, request)
            for level in self._levels.values()
            if level.deadlines
            for request in level.queue
        ]
        return min(deadlines, default=None)

    def popleft(self) -> InferRequest:
        for level in self._levels.values():
            if level.queue:
                return level.queue.popleft()
            if level.delayed:
                return level.delayed.popleft()
        raise IndexError("pop from an empty queue")

    def __iter__(self) -> Iterator[InferRequest]:
        return chain.from_iterable((*level.queue, *level.delayed) for level in self._levels.values())

    def __len__(self) -> int:
        return sum(len(level) for level in self._levels.values())

    @staticmethod
    def _deadline_ns(policy: QueuePolicy, request: InferRequest) -> int:
        timeout_ns = policy.timeout_ns
        asked_ns = request.head.timeout_ns
        if policy.allow_timeout_override and 0 < asked_ns < timeout_ns:
            timeout_ns = asked_ns
        return request.arrived_ns + timeout_ns
