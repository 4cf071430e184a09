"""How sure the figures of a configuration are: by its repetitions, else by its one measurement."""

from collections.abc import Sequence
from statistics import fmean, stdev

from tpx.analyzer.objectives import METRICS, RankedVariant
from tpx.analyzer.results.measurement import Measurement, Range
from tpx.perf.statistics.distributions import t_quantile
from tpx.perf.statistics.intervals import CONFIDENCE

NS_PER_MS = 1e6


def interval_of(ranked: RankedVariant, tag: str) -> Range | None:
    """Where the true value of a figure of `ranked.figures` lies, with 95% confidence, in the metric's unit;
    None where nothing tells."""
    if ranked.settled is None:
        return interval_of_one(ranked.best, tag)
    values = [v for m in ranked.run.repetitions if (v := METRICS[tag].value(m)) is not None]
    return _of_repetitions(values)


def interval_of_one(measurement: Measurement, tag: str) -> Range | None:
    """By the batches of one measurement."""
    if tag == "perf_throughput":
        return measurement.throughput_range
    found = measurement.p99_range if tag == "perf_latency_p99" else None
    if found is None:
        return None
    return Range(low=found.low / NS_PER_MS, high=None if found.high is None else found.high / NS_PER_MS)


def _of_repetitions(values: Sequence[float]) -> Range | None:
    if len(values) < 2:
        return None
    mean = fmean(values)
    reach = t_quantile(0.5 + CONFIDENCE / 2, len(values) - 1) * stdev(values) / len(values) ** 0.5
    return Range(low=max(0.0, mean - reach), high=mean + reach)
