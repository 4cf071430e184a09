"""Comparison of the first replica of an update with the replicas of the old release.

Replicas count requests and latencies since their start. The difference between two readings holds the
requests of that interval alone, so intervals are independent samples, and figures get the confidence
intervals of `tpx perf`: binomial, with the effective sample size that the intervals show.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tpx.cluster.spec import Rollout
from tpx.perf.statistics.intervals import binomial_at_most, design_effect, quantile_interval, too_few
from tpx.perf.statistics.summaries import FEWEST_BATCHES, Floats, batch_count

CONFIDENCE = 0.95
"""Probability that no comparison of an update finds a difference that does not exist."""
LOOKS = ((0.1, 0.1), (0.3, 0.2), (1.0, 0.7))
"""Shares of the canary's time after which it is compared, and of the permitted error: early comparisons
stop a very bad release soon.
"""
HANGING_S = 2.0
"""Minimum time without a response after which requests in flight count as hanging."""
SETTLING_S = 1.0
"""Time before the comparison: the first requests to a new server open connections and fill caches."""
PERCENTILES = (99.0, 95.0, 90.0, 50.0)
"""The first for which there are enough independent requests is compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryCounters:
    """Requests to one model since its replica's server was started."""

    answered: int = 0
    failed: int = 0
    in_flight: int = 0
    """Requests that are not yet answered."""
    bounds_us: tuple[float, ...] = ()
    """Upper bounds of the buckets of the latency histogram, at least two, positive; empty without one."""
    counts: tuple[int, ...] = ()
    """Answered requests by bucket, the last of which has no bound."""

    @classmethod
    def of(
        cls, answered: int, failed: int, below: Mapping[float, int], in_flight: int = 0
    ) -> "CanaryCounters":
        """Return the counters with a histogram of cumulative counts by bound, as Prometheus writes it."""
        bounds_us = tuple(sorted(below))[:-1]
        counts = np.diff([0, *(below[bound] for bound in sorted(below))])
        if len(bounds_us) < 2 or bounds_us[0] <= 0 or (counts < 0).any():  # versions with different buckets
            return cls(answered=answered, failed=failed, in_flight=in_flight)
        return cls(
            answered=answered,
            failed=failed,
            in_flight=in_flight,
            bounds_us=bounds_us,
            counts=tuple(counts.tolist()),
        )

    def quantile_us(self, probability: float, earlier: "CanaryCounters | None" = None) -> float | None:
        """Return a quantile of the requests since an earlier reading; None without requests."""
        ranks = np.append(0.0, _subtract_counters(self, earlier)[2:].cumsum())
        if not ranks[-1]:
            return None
        return math.exp(np.interp(probability * ranks[-1], ranks, log_edges(self.bounds_us)))


Reading = Mapping[str, CanaryCounters]
"""Counters of one replica, by model."""


@dataclass(slots=True)
class _ComparedRequests:
    """Requests to one model, by interval: rows of answered, failed, and answered by bucket."""

    bounds_us: tuple[float, ...]
    new: list[Floats] = field(default_factory=list)
    old: list[Floats] = field(default_factory=list)
    in_flight: int = 0
    """Requests in flight on the canary at the last reading."""
    stuck_s: float = 0.0
    """Time in which each reading of the canary had requests in flight, and none was answered."""
    slowest_s: float = math.inf
    """Upper bound of the latencies on the old replicas since their start; infinite if unknown."""


@dataclass(slots=True)
class Canary:
    """Comparison of one new replica with the old ones, reading by reading."""

    rollout: Rollout
    began_s: float
    _looks: int = 0
    _intervals: int = 0
    _read_s: float = 0.0
    _before: Mapping[str, Reading] = field(default_factory=dict)
    _models: dict[str, _ComparedRequests] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        """True after the last comparison."""
        return self._looks == len(LOOKS)

    @property
    def summary(self) -> str:
        """Number of requests that were compared."""
        kept = self._models.values()
        new = sum(row[:2].sum() for each in kept for row in each.new)
        old = sum(row[:2].sum() for each in kept for row in each.old)
        return f"{new:.0f} requests in {self._intervals} intervals, {old:.0f} to the old replicas"

    def observe(self, now_s: float, new: Reading, old: Mapping[str, Reading]) -> None:
        """Add a reading of the canary, and readings of the old replicas by name."""
        if new is self._before.get(""):  # the canary's replica has not been read again
            return
        before, self._before = self._before, {"": new, **old}
        since_s, self._read_s = now_s - self._read_s, now_s
        if now_s < self.began_s + SETTLING_S:
            return
        self._intervals += 1
        if not before.get(""):
            return
        for model, counters in new.items():
            others = {name: old[name][model] for name in old if before.get(name) and model in old[name]}
            kept = self._models.get(model)
            if kept is None:
                same_buckets = all(other.bounds_us == counters.bounds_us for other in others.values())
                kept = self._models[model] = _ComparedRequests(counters.bounds_us if same_buckets else ())
            width = 2 + (len(kept.bounds_us) + 1 if kept.bounds_us else 0)
            rows = {
                name: _subtract_counters(each, before[name].get(model))[:width]
                for name, each in {"": counters, **others}.items()
                if each.bounds_us == kept.bounds_us or not kept.bounds_us
            }
            kept.new.append(rows.pop("", np.zeros(width)))
            kept.in_flight = counters.in_flight
            kept.stuck_s = (
                kept.stuck_s + since_s if counters.in_flight and not kept.new[-1][:2].any() else 0.0
            )
            kept.slowest_s = (
                _find_slowest_s(kept.bounds_us, list(others.values())) if others else kept.slowest_s
            )
            kept.old.append(sum(rows.values(), np.zeros(width)))

    def fault(self, now_s: float) -> str:
        """Return why the canary is worse, or an empty string, also if no comparison is due."""
        if self.ended:
            return ""
        share, portion = LOOKS[self._looks]
        early = now_s < self.began_s + SETTLING_S + self.rollout.canary_secs * share
        if early or (share == 1 and self._intervals < FEWEST_BATCHES):  # readings are slow on a busy machine
            return ""
        for name, kept in self._models.items():
            limit_s = max(HANGING_S, kept.slowest_s * self.rollout.canary_latency_ratio)
            if kept.stuck_s > limit_s:
                return (
                    f"model '{name}': no request has been answered for {kept.stuck_s:.1f} s, "
                    f"{kept.in_flight} are in flight; the slowest on the old replicas took "
                    f"{kept.slowest_s:.2g} s at most"
                )
            if share == 1 and 0 < kept.stuck_s < limit_s < math.inf:
                return ""  # until a request is answered or the limit is reached
        self._looks += 1
        compared = [
            (name, np.array(kept.new), np.array(kept.old), kept.bounds_us)
            for name, kept in self._models.items()
            if kept.new and min(np.sum(side, axis=0)[:2].sum() for side in (kept.new, kept.old)) > 0
        ]
        error = (1 - CONFIDENCE) * portion / max(1, 2 * len(compared))  # two figures for each model
        for name, new, old, bounds_us in compared:
            fault = _compare_failures(new[:, :2], old[:, :2], self.rollout.canary_error_share, error)
            if not fault and bounds_us:
                fault = _compare_latencies(
                    new[:, 2:], old[:, 2:], bounds_us, self.rollout.canary_latency_ratio, error
                )
            if fault:
                return f"model '{name}': {fault}"
        return ""


def _subtract_counters(now: CanaryCounters, before: CanaryCounters | None) -> Floats:
    """Return the row of the interval between two readings; all of `now` if the server was restarted."""
    row = np.array([now.answered, now.failed, *now.counts], np.float64)
    if before is None or before.bounds_us != now.bounds_us:
        return row
    grown: Floats = row - [before.answered, before.failed, *before.counts]
    return row if (grown < 0).any() else grown


def _find_slowest_s(bounds_us: tuple[float, ...], old: Sequence[CanaryCounters]) -> float:
    """Return the upper edge of the slowest bucket in use; infinite if over 1% are in the last bucket."""
    counts = np.sum([each.counts for each in old if bounds_us and each.bounds_us == bounds_us], axis=0)
    if not np.any(counts) or counts[-1] > 0.01 * counts.sum():
        return math.inf
    return math.exp(log_edges(bounds_us)[np.flatnonzero(counts)[-1] + 1]) / 1e6


def _compare_failures(new: Floats, old: Floats, allowed: float, error: float) -> str:
    """Return the shares of failures if the difference certainly exceeds `allowed`; rows of answered and
    failed.

    The interval of the difference is Newcombe's: the distances of two exact bounds, in quadrature.
    """
    requests = [float(side.sum()) for side in (new, old)]
    share, usual = (float(side[:, 1].sum()) / total for side, total in zip((new, old), requests, strict=True))
    if len(new) < 2 or share - usual <= allowed:
        return ""
    effect = max(design_effect(side[:, 1], side.sum(axis=1), 1 - 2 * error) for side in (new, old))
    low = _bound_share(share, requests[0] / effect, error)
    high = 1 - _bound_share(1 - usual, requests[1] / effect, error)
    if share - usual - math.hypot(share - low, high - usual) <= allowed:
        return ""
    return f"{share:.1%} of the requests failed, {usual:.1%} on the old replicas"


def _bound_share(share: float, trials: float, error: float) -> float:
    """Return the exact lower bound of a probability: C. Clopper and E. Pearson, Biometrika 26, 1934."""
    low, high = 0.0, share
    for _ in range(40):
        middle = (low + high) / 2
        if 1 - binomial_at_most(trials, middle, share * trials - 1) < error:
            low = middle
        else:
            high = middle
    return low


def _compare_latencies(
    new: Floats, old: Floats, bounds_us: tuple[float, ...], allowed: float, error: float
) -> str:
    """Return the ratio of a latency percentile to that of the old replicas if it certainly exceeds
    `allowed`; rows of requests by bucket.
    """
    requests = int(min(new.sum(), old.sum()))
    batches = min(batch_count(requests), len(new))
    if not requests or batches < FEWEST_BATCHES:
        return ""
    edges = log_edges(bounds_us)
    firsts = np.arange(batches) * len(new) // batches
    sides = [np.add.reduceat(side, firsts) for side in (new, old)]
    below = [np.append(0.0, side.sum(axis=0).cumsum()) for side in sides]
    for percentile in PERCENTILES:
        probability = percentile / 100
        values = [float(np.interp(probability * ranks[-1], ranks, edges)) for ranks in below]
        effects = [
            _estimate_design_effect(side, edges, at, 1 - 2 * error)
            for side, at in zip(sides, values, strict=True)
        ]
        if any(
            too_few(percentile, int(ranks[-1]), effect) for ranks, effect in zip(below, effects, strict=True)
        ):
            continue
        if values[0] - values[1] <= math.log(allowed):
            return ""
        tail, usual = (
            quantile_interval(
                np.exp(np.interp(np.arange(1, ranks[-1] + 1), ranks, edges)),
                math.exp(at),
                probability,
                effect,
                1 - 2 * error,
            )
            for ranks, at, effect in zip(below, values, effects, strict=True)
        )
        if not tail.low or usual.high is None:
            continue
        hidden = np.diff(edges)[np.searchsorted(edges, values) - 1].max() / 2
        distances = values[0] - math.log(tail.low), math.log(usual.high) - values[1], hidden
        low = values[0] - values[1] - math.hypot(*distances)
        if low <= math.log(allowed):
            return ""
        return (
            f"p{percentile:g} of {tail.value / 1000:.3g} ms is at least {math.exp(low):.2g} times that "
            f"of the old replicas, {usual.value / 1000:.3g} ms"
        )
    return ""


def log_edges(bounds_us: tuple[float, ...]) -> Floats:
    """Return the logarithms of the edges of all buckets; the first and the last bucket are taken to be as
    wide as their neighbors.
    """
    edges: Floats = np.log([bounds_us[0] ** 2 / bounds_us[1], *bounds_us, bounds_us[-1] ** 2 / bounds_us[-2]])
    return edges


def _estimate_design_effect(rows: Floats, edges: Floats, value: float, confidence: float) -> float:
    """Return the design effect of the share of requests above a latency; rows of requests by bucket."""
    requests = rows.sum(axis=1)
    below = np.append(np.zeros((len(rows), 1)), rows.cumsum(axis=1), axis=1)
    above = requests - np.array([np.interp(value, edges, row) for row in below])
    return design_effect(above, requests, confidence)
