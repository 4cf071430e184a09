"""Comparison of saved runs, by load and figure: one run is one value, so a verdict needs several."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count, product
from operator import itemgetter
from statistics import fmean
from typing import Literal

import numpy as np

from tpx.errors import UsageError
from tpx.perf.options.measuring import Strictness
from tpx.perf.statistics.findings import FEWEST_RUNS, WINDOW_VARIANCE, Contrast, contrast_runs, corrected
from tpx.perf.statistics.summaries import Batches, Floats, Integers, quantiles
from tpx.protocol.json_values import JsonObject
from tpx.protocol.tensors import Array
from tpx.report.digits import latency, rounded

FigureName = Literal["throughput", "p50", "p99"]
SCHEMA = 1
FEWEST_REQUESTS = 10
"""Minimum requests for a load to be compared."""

Figure = Callable[[Batches, Floats], Floats]
"""A figure of weighted batches: maps rows of weights to one value per row."""


def _quantile_figure(probability: float) -> Figure:
    return lambda batches, weights: quantiles(weights @ batches.histogram, batches.bins, probability)


FIGURES: Mapping[FigureName, Figure] = {
    "throughput": lambda batches, weights: (
        (weights @ batches.requests) / (weights.sum(axis=1) * batches.seconds)
    ),
    "p50": _quantile_figure(0.5),
    "p99": _quantile_figure(0.99),
}
"""Figures by which runs are compared; higher is better for throughput, lower for the others."""


def shown(figure: FigureName, value: float) -> str:
    """Return a figure's value with its unit."""
    return f"{rounded(value)} infer/s" if figure == "throughput" else latency(value)


Outcome = Literal["same", "better", "worse", "undecided"]
"""Outcome of a figure: equivalent, different in either direction, or neither."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The change of one figure at one load: inferences per second, or latency in ns."""

    load: str
    figure: FigureName
    before: float
    contrast: Contrast
    repeat_s: float = 0.0
    """Seconds that one more repetition takes on each side."""

    @property
    def after(self) -> float:
        return self.before * (1 + self.contrast.value)

    @property
    def relative(self) -> float:
        return self.contrast.value

    @property
    def low(self) -> float:
        """Lower bound of the relative difference."""
        return self.contrast.low

    @property
    def high(self) -> float:
        return self.contrast.high

    @property
    def p_value(self) -> float:
        return self.contrast.p_value

    @property
    def finding(self) -> Outcome:
        if self.contrast.finding == "undecided":
            return "undecided"
        if self.contrast.finding == "equivalent":
            return "same"
        return "better" if (self.relative > 0) is (self.figure == "throughput") else "worse"

    @property
    def more_s(self) -> float:
        """Seconds of measuring per side that would probably decide an undecided figure."""
        return ((self.contrast.needed or FEWEST_RUNS) - self.contrast.repeats) * self.repeat_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Differences at all loads that all runs have, and the names of the loads that were not compared."""

    differences: tuple[Difference, ...]
    only_before: tuple[str, ...] = ()
    only_after: tuple[str, ...] = ()
    too_few: tuple[str, ...] = ()
    """Loads of all runs with too few requests in one of them."""

    @property
    def left_out(self) -> tuple[str, ...]:
        """Loads that were not compared, as text."""
        named = (
            ("only before", self.only_before),
            ("only after", self.only_after),
            (f"fewer than {FEWEST_REQUESTS} requests in one of the runs", self.too_few),
        )
        return tuple(f"{why}: {', '.join(loads)}" for why, loads in named if loads)


def overall(differences: Sequence[Difference]) -> Outcome:
    """Return the outcome of a comparison: worse or undecided if any figure is, better if none is either."""
    found = {difference.finding for difference in differences}
    order: tuple[Outcome, ...] = ("worse", "undecided", "better")
    return next((outcome for outcome in order if outcome in found), "same")


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedLevel:
    """A level of a run's JSON: the figures that its reports show, and the batches that tell their spread."""

    batches: Batches
    batch_size: int = 1
    figures: Mapping[FigureName, float] = field(default_factory=dict)
    """Figures in infer/s and ns; those that are absent are computed from the batches, in their bins."""

    def value(self, name: FigureName) -> float:
        found = self.figures.get(name)
        if found is None:
            found = self.scale(name) * float(FIGURES[name](self.batches, np.ones((1, self.batches.count)))[0])
        return found

    def scale(self, name: FigureName) -> int:
        """Return the factor from a figure of the batches, which count requests, to one of inferences."""
        return self.batch_size if name == "throughput" else 1

    def variance(self, name: FigureName) -> float:
        """Return the variance of the figure's logarithm that its batches show."""
        values = np.log(FIGURES[name](self.batches, np.eye(self.batches.count)[self.batches.requests > 0]))
        return float(values.var(ddof=1)) / len(values) if len(values) > 1 else 0.0

    @property
    def seconds(self) -> float:
        """Duration of the kept windows."""
        return self.batches.seconds * self.batches.count


Levels = Mapping[str, SavedLevel]
"""Levels of a run by the name of their load, in ascending order."""


def read_levels(document: object, source: str) -> Levels:
    """Read the levels of a run's JSON. Raises UsageError naming `source` if it is something else."""
    if not isinstance(document, dict) or document.get("schema") != SCHEMA or "levels" not in document:
        raise UsageError(f"{source} is not a result of tpx perf --json (schema {SCHEMA})")
    levels: dict[str, SavedLevel] = {}
    try:
        for level in sorted(document["levels"], key=itemgetter("value")):  # a search has another order
            if level["batches"] is not None:
                name = f"{level['mode']} {level['value']:g}"
                # repeated loads are numbered, so that they are compared in order
                names = chain([name], (f"{name} ({number})" for number in count(2)))
                levels[next(each for each in names if each not in levels)] = _read_level(level)
    except (KeyError, TypeError, ValueError, AttributeError) as exc:
        raise UsageError(f"{source}: a level lacks its batches, or they are damaged ({exc!r})") from exc
    if not levels:
        raise UsageError(f"{source} has no level with successful requests")
    return levels


def batches_json(batches: Batches) -> dict[str, object]:
    """Return the batches of a level's kept windows; `histogram` has a row per batch, a column per bin.

    Rows are strings, so that numbers do not take a line each.
    """

    def row(values: Array) -> str:
        return " ".join(map(str, values.tolist()))

    return {
        "start_ns": batches.start_ns,
        "end_ns": batches.end_ns,
        "requests": row(batches.requests),
        "failed": row(batches.failed),
        "latency_sum_ns": row(batches.latency_sum_ns.astype(np.int64)),
        "bins": row(batches.bins),
        "histogram": [row(counts) for counts in batches.histogram],
    }


def _read_level(members: JsonObject) -> SavedLevel:
    latencies = members.get("latency_us") or {}
    figures: dict[FigureName, float] = {p: latencies[p] * 1000 for p in ("p50", "p99") if p in latencies}
    if "throughput" in members:
        figures["throughput"] = members["throughput"]["value"]
    return SavedLevel(
        batches=_read_batches(members["batches"]), batch_size=members.get("batch_size", 1), figures=figures
    )


def _read_batches(members: JsonObject) -> Batches:
    def row(text: str) -> Integers:
        return np.array([int(number) for number in text.split()], dtype=np.int64)

    bins, requests = row(members["bins"]), row(members["requests"])
    return Batches(
        start_ns=int(members["start_ns"]),
        end_ns=int(members["end_ns"]),
        requests=requests,
        failed=row(members["failed"]),
        latency_sum_ns=row(members["latency_sum_ns"]).astype(np.float64),
        bins=bins,
        histogram=np.stack([row(text) for text in members["histogram"]]).reshape(len(requests), len(bins)),
    )


def compare(before: Sequence[Levels], after: Sequence[Levels], strictness: Strictness) -> Comparison:
    """Compare all figures at all loads that all runs have.

    Without three runs before, how runs differ is unknown, and every figure is undecided.
    """
    runs = [*before, *after]
    first, second = (
        [load for load in side[0] if all(load in run for run in side)] for side in (before, after)
    )
    both = [load for load in first if load in second]
    common = [
        load for load in both if min(int(run[load].batches.requests.sum()) for run in runs) >= FEWEST_REQUESTS
    ]
    repeat_s = fmean(sum(level.seconds for level in run.values()) for run in runs)
    raw = []
    for load, name in product(common, FIGURES):
        old, new = ([run[load].value(name) for run in side] for side in (before, after))
        within = fmean(run[load].variance(name) for run in runs)
        raw.append(difference(load, name, old, new, repeat_s=repeat_s, within=within))
    return Comparison(
        differences=settled(raw, strictness),
        only_before=tuple(load for load in first if load not in second),
        only_after=tuple(load for load in second if load not in first),
        too_few=tuple(load for load in both if load not in common),
    )


def difference(
    load: str,
    figure: FigureName,
    before: Sequence[float],
    after: Sequence[float],
    *,
    repeat_s: float,
    within: float = WINDOW_VARIANCE,
) -> Difference:
    """Return the change of a figure between two sets of runs; `within` is the variance within one run."""
    old, new = (np.log(side).tolist() for side in (before, after))
    contrast = contrast_runs(old, new, within)
    return Difference(
        load=load, figure=figure, before=math.exp(fmean(old)), contrast=contrast, repeat_s=repeat_s
    )


def settled(differences: Sequence[Difference], strictness: Strictness) -> tuple[Difference, ...]:
    """Return the differences of one comparison, corrected for their number."""
    found = corrected([d.contrast for d in differences], strictness.alpha, strictness.min_effect)
    return tuple(replace(d, contrast=contrast) for d, contrast in zip(differences, found, strict=True))


def difference_json(differences: Sequence[Difference]) -> list[dict[str, object]]:
    """Return the differences as JSON values; latencies are in ns."""
    return [
        {
            "load": d.load,
            "figure": d.figure,
            "before": d.before,
            "after": d.after,
            "relative": d.relative,
            "ci": [d.low, d.high if math.isfinite(d.high) else None],
            "p_value": d.p_value,
            "finding": d.finding,
            "more_s": round(d.more_s, 1) if d.finding == "undecided" else None,
        }
        for d in differences
    ]
