"""Estimates of throughput and latency from the requests of an interval, with confidence intervals."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from tpx.perf.objectives import (
    Assessment,
    Compliance,
    Counted,
    Objective,
    assess_count,
    assess_exact,
    assess_interval,
)
from tpx.perf.records import SUCCESS, Rows, elapsed_ns
from tpx.perf.results import Estimates, LatencyEstimate
from tpx.perf.statistics.intervals import (
    CONFIDENCE,
    Interval,
    design_effect,
    quantile_interval,
    ratio_interval,
    too_few,
)
from tpx.perf.statistics.summaries import (
    EXTRA_PERCENTILES,
    FEWEST_BATCHES,
    Integers,
    batch_count,
    cut,
    rank,
    reported_percentiles,
)
from tpx.protocol.tensors import Array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample:
    """Requests that ended between two times: their end, latency and success.

    `figures` are other times of the same requests, below 0 for those that lack one.
    """

    start_ns: int
    end_ns: int
    ends: Array
    latencies: Array
    ok: npt.NDArray[np.bool_]
    figures: Mapping[str, Array] = field(default_factory=dict)

    def of(self, figure: str) -> "Sample":
        """Return the sample of another figure, of the requests that have it; itself for an empty name."""
        if not figure:
            return self
        values = self.figures[figure]
        return replace(self, latencies=values, ok=self.ok & (values >= 0))

    @property
    def requests(self) -> int:
        """Number of successful requests."""
        return int(np.count_nonzero(self.ok))

    @property
    def good(self) -> Array:
        """Latencies of the successful requests."""
        return self.latencies[self.ok]


def sample_of(rows: Rows, start_ns: int, end_ns: int) -> Sample:
    """Return the sample of `rows`; latency counts from the intended start of a request.

    A streamed request may end after `start_ns` although its row, ordered by its last response, lies
    before it: such a request counts as ended at the start.
    """
    return Sample(
        start_ns=start_ns,
        end_ns=end_ns,
        ends=np.maximum(rows["end_ns"], start_ns),
        latencies=elapsed_ns(rows, "intended_ns", "end_ns"),
        ok=rows["status"] == SUCCESS,
    )


def joined(samples: Sequence[Sample]) -> Sample:
    """Join samples of consecutive intervals."""
    if len(samples) == 1:
        return samples[0]
    return Sample(
        start_ns=samples[0].start_ns,
        end_ns=samples[-1].end_ns,
        ends=np.concatenate([s.ends for s in samples]),
        latencies=np.concatenate([s.latencies for s in samples]),
        ok=np.concatenate([s.ok for s in samples]),
        figures={name: np.concatenate([s.figures[name] for s in samples]) for name in samples[0].figures},
    )


class Estimator:
    """Confidence intervals of one sample, which must have successful requests."""

    def __init__(self, sample: Sample) -> None:
        self._sample = sample
        self._count = k = batch_count(sample.requests)
        span = max(sample.end_ns - sample.start_ns, 1)
        self._seconds = span / 1e9 / k
        # the batch of each request, by its end
        place = np.minimum((sample.ends - sample.start_ns) * k // span, k - 1)
        self._place: Integers = place[sample.ok].astype(np.int64)
        self._good = sample.good
        self._requests = np.bincount(self._place, minlength=k)
        self._ordered: Array | None = None

    def throughput(self, batch_size: int, confidence: float = CONFIDENCE) -> Interval:
        """Return the interval of inferences per second."""
        return ratio_interval(
            self._requests * float(batch_size), np.full(self._count, self._seconds), confidence
        )

    def mean(self, confidence: float = CONFIDENCE) -> Interval:
        """Return the interval of the mean latency in ns.

        With too few requests for batches, requests count as independent of each other. A single request
        gives no upper bound.
        """
        count = len(self._good)
        if count < FEWEST_BATCHES * 2:
            if count == 1:
                return Interval(value=float(self._good[0]), low=0.0, high=None, confidence=confidence)
            return ratio_interval(self._good.astype(np.float64), np.ones(count), confidence)
        sums = np.bincount(self._place, weights=self._good, minlength=self._count)
        return ratio_interval(sums, self._requests, confidence)

    def quantile(self, percentile: float) -> LatencyEstimate:
        """Return the interval of a latency percentile in ns, using the same rank as the report."""
        ordered = self._ordered = np.sort(self._good) if self._ordered is None else self._ordered
        value = float(ordered[rank(percentile, len(ordered))])
        # too few requests lie beyond a high percentile to show clustering: assume at least that beyond p90
        usual = min(value, float(ordered[rank(90.0, len(ordered))]))
        effect = max(self.effect(self._good > value), self.effect(self._good > usual))
        interval = quantile_interval(ordered, value, percentile / 100, effect)
        note = "" if interval.high is not None else too_few(percentile, len(ordered), effect)
        return LatencyEstimate(percentile=percentile, interval=interval, note=note)

    def effect(self, inside: npt.NDArray[np.bool_]) -> float:
        """Return the design effect of a property, given as a mask over the successful requests."""
        counts = np.bincount(self._place, weights=inside, minlength=self._count)
        return design_effect(counts, self._requests)

    def latency(self, percentile: float | None) -> LatencyEstimate:
        """Return the estimate of a percentile; None is the mean."""
        if percentile is not None:
            return self.quantile(percentile)
        interval = self.mean()
        note = "" if interval.high is not None else "n too small for the mean (need >= 2)"
        return LatencyEstimate(percentile=None, interval=interval, note=note)


def estimate(sample: Sample, batch_size: int, percentile: float | None) -> Estimates | None:
    """Return all estimates of a sample, including the user's `percentile`; None if no request succeeded."""
    if not sample.requests or sample.end_ns <= sample.start_ns:
        return None
    estimator = Estimator(sample)
    wanted = sorted({*reported_percentiles(percentile), *EXTRA_PERCENTILES})
    return Estimates(
        throughput=estimator.throughput(batch_size),
        latency=tuple(estimator.latency(p) for p in (None, *wanted)),
        batches=cut(sample.ends, sample.latencies, sample.ok, (sample.start_ns, sample.end_ns)),
    )


def assess(
    objectives: Sequence[Objective],
    sample: Sample,
    batch_size: int,
    confidence: float,
    good: Sample | None = None,
) -> tuple[Assessment, ...]:
    """Assess a sample against each objective; in `good`, only requests that count as goodput succeeded."""
    estimators: dict[str, tuple[Sample, Estimator | None]] = {}

    def assess_one(objective: Objective) -> Assessment:
        goodput = objective.quantity == "goodput"
        key = "goodput" if goodput else objective.figure
        if key not in estimators:
            own = good if goodput and good is not None else sample.of(objective.figure)
            usable = own.requests and own.end_ns > own.start_ns
            estimators[key] = own, Estimator(own) if usable else None
        return _assess_objective(objective, *estimators[key], 1 if goodput else batch_size, confidence)

    return tuple(map(assess_one, objectives))


def _assess_objective(
    objective: Objective, sample: Sample, estimator: Estimator | None, batch_size: int, confidence: float
) -> Assessment:
    """Assess one objective; without an estimator, failures have an error rate and zero throughput."""
    total, quantity = len(sample.ok), objective.quantity
    elapsed_ns = sample.end_ns - sample.start_ns
    if quantity == "error_rate" and total:
        failed = total - sample.requests
        if objective.bound <= 0 or objective.bound >= 1 or not objective.below:
            return assess_exact(objective, failed / total)
        counted = Counted(violations=failed, requests=total, allowed=objective.bound, duration_ns=elapsed_ns)
        return assess_count(objective, failed / total, counted, confidence)
    if estimator is None:
        if quantity in ("throughput", "goodput") and total:
            return assess_exact(objective, 0.0)
        reason = "no request succeeded"
        return Assessment(objective=objective, outcome=Compliance.UNDECIDED, value=0.0, reason=reason)
    # each end of this interval is a one-sided bound at `confidence`
    two_sided, good = 2 * confidence - 1, sample.good
    match quantity:
        case "throughput" | "goodput":
            return assess_interval(objective, estimator.throughput(batch_size, two_sided))
        case "mean":
            return assess_interval(objective, estimator.mean(two_sided))
        case "min" | "max":
            return assess_exact(objective, float(good.max() if quantity == "max" else good.min()))
    share = objective.percentile / 100
    outside = objective.outside(good)
    counted = Counted(
        violations=int(np.count_nonzero(outside)),
        requests=len(good),
        allowed=1 - share if objective.below else share,
        effect=estimator.effect(outside),
        duration_ns=elapsed_ns,
    )
    index = rank(objective.percentile, len(good))
    return assess_count(objective, float(np.partition(good, index)[index]), counted, confidence)
