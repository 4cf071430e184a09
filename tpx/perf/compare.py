"""Comparison of two runs, by level and figure, with tests of significance."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from typing import Literal

import numpy as np

from tpx.errors import UsageError
from tpx.perf.statistics.differences import (
    Figure,
    by_batch,
    change,
    holm,
    mann_whitney,
    quantile_figure,
    rate_figure,
)
from tpx.perf.statistics.summaries import Batches, Integers
from tpx.protocol.json_values import JsonObject
from tpx.protocol.tensors import Array

FigureName = Literal["throughput", "p50", "p99"]
SCHEMA = 1
FEWEST_REQUESTS = 10
"""Minimum requests for a load to be compared."""
SEED = 1
"""Fixed seed for resampling, so that a comparison is reproducible."""


FIGURES: Mapping[FigureName, Figure] = {
    "throughput": rate_figure,
    "p50": quantile_figure(0.5),
    "p99": quantile_figure(0.99),
}
"""Figures by which runs are compared; higher is better for throughput, lower for the others."""


def shown(figure: FigureName, value: float) -> str:
    """Return a figure's value with its unit."""
    return f"{value:.6g} req/s" if figure == "throughput" else f"{value / 1000:.1f} usec"


Finding = Literal["same", "better", "worse"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One figure at one load in both runs: requests per second, or latency in ns.

    `low` and `high` bound the relative difference at the requested confidence; `p_value` is corrected
    for the number of comparisons.
    """

    load: str
    figure: FigureName
    before: float
    after: float
    low: float
    high: float
    p_value: float
    finding: Finding = "same"

    @property
    def relative(self) -> float:
        return self.after / self.before - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Strictness:
    """Thresholds for a difference to count: the significance level, and the smallest relative difference."""

    alpha: float = 0.05
    min_effect: float = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Differences at all loads that both runs have, and the names of the loads that were not compared."""

    differences: tuple[Difference, ...]
    only_before: tuple[str, ...] = ()
    only_after: tuple[str, ...] = ()
    too_few: tuple[str, ...] = ()
    """Loads of both runs with too few requests in one of them."""

    @property
    def left_out(self) -> tuple[str, ...]:
        """Loads that were not compared, as text."""
        named = (
            ("only in the first run", self.only_before),
            ("only in the second run", self.only_after),
            (f"fewer than {FEWEST_REQUESTS} requests in one of the runs", self.too_few),
        )
        return tuple(f"{why}: {', '.join(loads)}" for why, loads in named if loads)


Levels = Mapping[str, Batches]
"""Batches of a run by the name of their load."""


def read_levels(document: object, source: str) -> Levels:
    """Read the levels of a run's JSON. Raises UsageError naming `source` if it is something else."""
    if not isinstance(document, dict) or document.get("schema") != SCHEMA or "levels" not in document:
        raise UsageError(f"{source} is not a result of tpx perf --json (schema {SCHEMA})")
    levels: dict[str, Batches] = {}
    try:
        for level in document["levels"]:
            if level["batches"] is not None:
                name = f"{level['mode']} {level['value']:g}"
                # repeated loads are numbered, so that they are compared in order
                names = chain([name], (f"{name} ({number})" for number in count(2)))
                levels[next(each for each in names if each not in levels)] = _read_batches(level["batches"])
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


def compare(before: Levels, after: Levels, strictness: Strictness) -> Comparison:
    """Compare all figures at all loads that both runs have.

    A difference counts if it is significant in both tests (resampled batches, and Mann-Whitney ranks of
    batches) after Holm's correction for the number of comparisons, its interval excludes zero, and it
    exceeds the minimum effect.
    """
    rng = np.random.default_rng(SEED)
    both = [load for load in before if load in after]
    common = [
        load for load in both if _has_enough_requests(before[load]) and _has_enough_requests(after[load])
    ]
    raw = [
        _compare_figure(load, name, before[load], after[load], strictness, rng)
        for load in common
        for name in FIGURES
    ]
    return Comparison(
        differences=settled(raw, strictness),
        only_before=tuple(load for load in before if load not in after),
        only_after=tuple(load for load in after if load not in before),
        too_few=tuple(load for load in both if load not in common),
    )


def _has_enough_requests(batches: Batches) -> bool:
    return int(batches.requests.sum()) >= FEWEST_REQUESTS


def _compare_figure(
    load: str,
    name: FigureName,
    before: Batches,
    after: Batches,
    strictness: Strictness,
    rng: np.random.Generator,
) -> Difference:
    figure = FIGURES[name]
    found = change(before, after, figure, confidence=1 - strictness.alpha, rng=rng)
    ranks = mann_whitney(by_batch(before, figure), by_batch(after, figure))
    return Difference(
        load=load,
        figure=name,
        before=found.before,
        after=found.after,
        low=found.low,
        high=found.high,
        p_value=max(found.p_value, ranks),
    )


def settled(differences: Sequence[Difference], strictness: Strictness) -> tuple[Difference, ...]:
    """Return the differences of one comparison with Holm-corrected p-values and their findings."""
    out = []
    for difference, p_value in zip(differences, holm([d.p_value for d in differences]), strict=True):
        found = replace(difference, p_value=p_value)
        sure = p_value <= strictness.alpha and not found.low <= 0 <= found.high
        if sure and abs(found.relative) > strictness.min_effect:
            more_is_better = found.figure == "throughput"
            better = (found.relative > 0) is more_is_better
            found = replace(found, finding="better" if better else "worse")
        out.append(found)
    return tuple(out)


def difference_json(differences: Sequence[Difference]) -> list[dict[str, object]]:
    """Return the differences as JSON values; latencies are in ns."""
    return [
        {
            "load": d.load,
            "figure": d.figure,
            "before": d.before,
            "after": d.after,
            "relative": d.relative,
            "ci": [d.low, d.high],
            "p_value": d.p_value,
            "finding": d.finding,
        }
        for d in differences
    ]
