"""Compare two runs: how each configuration changed under the same load, and how certain that is.

Configurations match by their text, not by the number that a search gave them. Figures are compared as
logarithms: by Welch's t-test if a configuration was measured several times in both runs, otherwise by
the confidence interval of the single measurement.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from tpx.analyzer.objectives import METRICS, NS_PER_MS, MeasuredMetric
from tpx.analyzer.results.measurement import Measurement
from tpx.analyzer.results.pooled import Mean
from tpx.analyzer.results.run import ModelRun, Run, VariantRun
from tpx.analyzer.verdict import Finding, judge
from tpx.perf.compare import Difference, FigureName, settled
from tpx.perf.options.measuring import Strictness
from tpx.perf.statistics.intervals import t_quantile, t_two_sided

SINGLE_DEGREES = 30
"""Degrees of freedom assigned to the interval of a single measurement."""
NORMAL_95 = 1.96
LEAST_ERROR = 1e-9
Role = Literal["recommended", "best", ""]
_FIGURES: tuple[tuple[FigureName, str, float], ...] = (
    ("throughput", "perf_throughput", 1.0),
    ("p99", "perf_latency_p99", NS_PER_MS),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One figure of one configuration under one load, in both runs."""

    model: str
    before: str
    """Name of the configuration in the first run."""
    after: str
    role: Role
    """Role in both runs: what each recommends, what each found best, not necessarily the same; or none."""
    difference: Difference


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysisComparison:
    """All pairs present in both runs, and the names found in only one."""

    pairs: tuple[Pair, ...]
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Sample:
    """Statistics of a figure: mean of its logarithm, standard error of the mean, degrees of freedom."""

    mean: float
    error: float
    degrees: float


_Side = tuple[str, Measurement]
"""The name of a configuration, and its figures under one load."""


def compare_runs(before: Run, after: Run, strictness: Strictness) -> AnalysisComparison:
    """Compare two runs; p-values are corrected for the number of pairs."""
    first, second = ({model.model: model for model in run.models} for run in (before, after))
    pairs: list[Pair] = []
    only: tuple[list[str], list[str]] = ([], [])
    for name in [*first, *(name for name in second if name not in first)]:
        if name not in first or name not in second:
            only[0 if name in first else 1].append(name)
            continue
        verdicts = [judge(of[name], run.started.goals) for of, run in ((first, before), (second, after))]
        best = (verdict.best for verdict in verdicts)
        sides = [(ranked.name, ranked.figures) for ranked in best if ranked is not None and ranked.satisfies]
        if len(sides) == 2:
            sure = all(verdict.finding is not Finding.INCONCLUSIVE for verdict in verdicts)
            role: Role = "recommended" if sure else "best"
            pairs += _pair_figures(name, sides[0], sides[1], strictness, role)
        old, new = _index_by_text(first[name]), _index_by_text(second[name])
        for text in (text for text in old if text in new):
            others = {point.load: (new[text].variant.name, point) for point in new[text].points}
            for point in (point for point in old[text].points if point.load in others):
                pairs += _pair_figures(name, (old[text].variant.name, point), others[point.load], strictness)
        only[0].extend(old[text].variant.name for text in old if text not in new)
        only[1].extend(new[text].variant.name for text in new if text not in old)
    differences = settled([pair.difference for pair in pairs], strictness)
    return AnalysisComparison(
        pairs=tuple(replace(pair, difference=d) for pair, d in zip(pairs, differences, strict=True)),
        only_before=tuple(only[0]),
        only_after=tuple(only[1]),
    )


def _index_by_text(model: ModelRun) -> Mapping[str, VariantRun]:
    found = {}
    for variant in model.measured:
        files = variant.configuration.files
        found["\0".join(each.text for each in files)] = variant
    return found


def _pair_figures(
    model: str, first_side: _Side, second_side: _Side, strictness: Strictness, role: Role = ""
) -> Iterator[Pair]:
    (before, ours), (after, theirs) = first_side, second_side
    load = " -> ".join(dict.fromkeys((str(ours.load), str(theirs.load))))
    for figure, tag, unit in _FIGURES:
        first, second = (_summarize_samples(METRICS[tag], point) for point in (ours, theirs))
        if first is None or second is None:
            continue
        low, high, p_value = _test_difference(first, second, strictness)
        yield Pair(
            model=model,
            before=before,
            after=after,
            role=role,
            difference=Difference(
                load=load,
                figure=figure,
                before=(METRICS[tag].value(ours) or 0.0) * unit,
                after=(METRICS[tag].value(theirs) or 0.0) * unit,
                low=low,
                high=high,
                p_value=p_value,
            ),
        )


def _summarize_samples(metric: MeasuredMetric, point: Measurement) -> _Sample | None:
    samples = point.samples if isinstance(point, Mean) else (point,)
    logs = np.log([v for m in samples if (v := metric.value(m)) is not None and v > 0])
    if not len(logs):
        return None
    if len(logs) > 1:
        return _Sample(float(logs.mean()), float(logs.std(ddof=1)) / math.sqrt(len(logs)), len(logs) - 1)
    found = metric.interval(samples[0])
    if found is None or found.high is None or not 0 < found.low < found.high:
        return _Sample(float(logs[0]), math.inf, 1)
    return _Sample(float(logs[0]), math.log(found.high / found.low) / (2 * NORMAL_95), SINGLE_DEGREES)


def _test_difference(old: _Sample, new: _Sample, strictness: Strictness) -> tuple[float, float, float]:
    """Return the bounds of the relative difference, and its p-value."""
    change = new.mean - old.mean
    error = math.hypot(old.error, new.error)
    # a single measurement without an interval rules out no difference
    if math.isinf(error):
        return -1.0, math.inf, 1.0
    if error < LEAST_ERROR:
        value = math.expm1(change)
        return value, value, 1.0 if abs(change) < LEAST_ERROR else 0.0
    # Welch-Satterthwaite equation
    degrees = error**4 / sum(side.error**4 / side.degrees for side in (old, new))
    reach = t_quantile(1 - strictness.alpha / 2, max(1, math.floor(degrees))) * error
    return math.expm1(change - reach), math.expm1(change + reach), t_two_sided(change / error, degrees)
