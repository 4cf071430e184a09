"""Decisions of a cluster as pure functions of observations and time: how many replicas to run, how long
to wait before a restart, and whether to keep a canary.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from tpx.cluster.spec import ClusterSpec, Rollout
from tpx.perf.statistics.intervals import t_quantile

BACKOFF_FIRST_S = 0.5
BACKOFF_MOST_S = 30.0
BACKOFF_FORGOTTEN_S = 60.0
"""Uptime after which a replica that dies is restarted without waiting."""
CANARY_CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSample:
    """Activity of one replica in the last interval."""

    requests_per_s: float = 0.0
    failures_per_s: float = 0.0
    queue_ms: float = 0.0
    """Mean queue time of answered requests."""
    utilization: float = 0.0
    """Used share of the reserved CPUs."""
    p99_ms: float | None = None
    """99th percentile of the last minute; None without requests."""
    pending: float = 0.0


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
        wanted = min(max(self._wanted(count, samples), low), high)
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

    def _wanted(self, count: int, samples: Sequence[ReplicaSample]) -> int:
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


@dataclass(slots=True)
class Canary:
    """Compares the first replica of an update with the replicas of the old release, sample by sample."""

    rollout: Rollout
    new: list[ReplicaSample] = field(default_factory=list)
    old: list[ReplicaSample] = field(default_factory=list)

    def observe(self, new: ReplicaSample, old: Sequence[ReplicaSample]) -> None:
        """Add one interval of the canary and of the old replicas."""
        self.new.append(new)
        self.old.extend(old)

    def fault(self) -> str:
        """Return why the canary is worse, or an empty string.

        It is worse if its share of failures exceeds that of the old replicas by more than the limit, or
        if the lower bound of a one-sided Welch interval for the difference of mean log p99 exceeds the
        allowed ratio, so that noise causes no rollback.
        """
        share, usual = _failures(self.new), _failures(self.old)
        if share > usual + self.rollout.canary_error_share:
            return f"{share:.1%} of its requests failed, {usual:.1%} on the old replicas"
        ratio = _surely_at_least(
            [math.log(p) for p in _tails(self.new)], [math.log(p) for p in _tails(self.old)]
        )
        if ratio is not None and ratio > math.log(self.rollout.canary_latency_ratio):
            return f"its p99 is at least {math.exp(ratio):.2g} times that of the old replicas"
        return ""


def _failures(samples: Sequence[ReplicaSample]) -> float:
    failed = sum(sample.failures_per_s for sample in samples)
    total = failed + sum(sample.requests_per_s for sample in samples)
    return failed / total if total else 0.0


def _tails(samples: Sequence[ReplicaSample]) -> list[float]:
    return [sample.p99_ms for sample in samples if sample.p99_ms]


def _surely_at_least(new: Sequence[float], old: Sequence[float]) -> float | None:
    """Return the lower bound of the interval for mean(new) - mean(old), or None if there are too few
    values.
    """
    if len(new) < 3 or len(old) < 3:
        return None
    parts = []
    for values in (new, old):
        mean = sum(values) / len(values)
        parts.append(
            (mean, sum((v - mean) ** 2 for v in values) / (len(values) - 1) / len(values), len(values) - 1)
        )
    (m1, v1, d1), (m2, v2, d2) = parts
    if v1 + v2 == 0:
        return m1 - m2
    degrees = (v1 + v2) ** 2 / (v1**2 / d1 + v2**2 / d2)
    return m1 - m2 - t_quantile(CANARY_CONFIDENCE, max(1, int(degrees))) * math.sqrt(v1 + v2)
