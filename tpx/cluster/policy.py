"""Decisions of a cluster as pure functions of observations and time: how many replicas to run, and how long
to wait before a restart.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tpx.cluster.spec import ClusterSpec

BACKOFF_FIRST_S = 0.5
BACKOFF_MOST_S = 30.0
BACKOFF_FORGOTTEN_S = 60.0
"""Uptime after which a replica that dies is restarted without waiting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSample:
    """Activity of one replica in the last interval."""

    requests_per_s: float = 0.0
    queue_ms: float = 0.0
    """Mean queue time of answered requests."""
    utilization: float = 0.0
    """Used share of the reserved CPUs."""
    p99_ms: float | None = None
    """99th percentile of the last minute, of the slowest model; None without requests."""


@dataclass(slots=True)
class Backoff:
    """Exponential backoff before a process is restarted; reset once a process has lived for a minute."""

    deaths: int = 0

    def after_death(self, lived_s: float) -> float:
        """Return the seconds to wait after a process that lived this long."""
        if lived_s >= BACKOFF_FORGOTTEN_S:
            self.deaths = 0
        self.deaths += 1
        if self.deaths == 1:
            return 0.0
        return min(BACKOFF_FIRST_S * 2.0 ** (self.deaths - 2), BACKOFF_MOST_S)


@dataclass(slots=True)
class Autoscaler:
    """Chooses the number of replicas from utilization and queue time, with a delay in each direction.

    The target is the rule of Kubernetes' Horizontal Pod Autoscaler, ceil(n * utilization / target). A
    mean queue time above its target adds at least one replica, and replicas are removed only while the
    queue is short. A change takes effect once it has been wanted continuously for `scale_up_secs` or
    `scale_down_secs`, by the smallest amount wanted in that time.
    """

    spec: ClusterSpec
    _more_since_s: float | None = None
    _fewer_since_s: float | None = None
    _least_more: int = 0
    _most_fewer: int = 0

    def decide(self, count: int, samples: Sequence[ReplicaSample], now_s: float) -> int:
        """Return the number of replicas to run, given the desired `count` and samples of the ready
        replicas.
        """
        low, high = self.spec.replica.bounds
        if low == high or not samples:
            self._more_since_s = self._fewer_since_s = None
            return min(max(count, low), high)
        wanted = min(max(self._compute_wanted_count(count, samples), low), high)
        scaling = self.spec.scaling
        if wanted > count:
            self._fewer_since_s = None
            if self._more_since_s is None:
                self._more_since_s, self._least_more = now_s, wanted
            self._least_more = min(self._least_more, wanted)
            if now_s - self._more_since_s >= scaling.scale_up_secs:
                self._more_since_s = None
                return self._least_more
        elif wanted < count:
            self._more_since_s = None
            if self._fewer_since_s is None:
                self._fewer_since_s, self._most_fewer = now_s, wanted
            self._most_fewer = max(self._most_fewer, wanted)
            if now_s - self._fewer_since_s >= scaling.scale_down_secs:
                self._fewer_since_s = None
                return self._most_fewer
        else:
            self._more_since_s = self._fewer_since_s = None
        return min(max(count, low), high)

    def _compute_wanted_count(self, count: int, samples: Sequence[ReplicaSample]) -> int:
        scaling = self.spec.scaling
        utilization = sum(sample.utilization for sample in samples) / len(samples)
        rate = sum(sample.requests_per_s for sample in samples)
        queue_ms = sum(s.queue_ms * s.requests_per_s for s in samples) / rate if rate else 0.0
        by_utilization = math.ceil(round(len(samples) * utilization / scaling.target_utilization, 6))
        if queue_ms > scaling.target_queue_ms:
            return max(by_utilization, count + 1)
        if by_utilization < count and queue_ms > scaling.target_queue_ms / 2:
            return count
        return by_utilization
