"""Comparison of two runs, by level and figure, with tests of significance."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, count, product
from operator import itemgetter
from typing import Literal

import numpy as np

from tpx.errors import UsageError
from tpx.perf.options.measuring import Strictness
from tpx.perf.statistics.differences import (
    Change,
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
from tpx.report.digits import latency, rounded

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
    return f"{rounded(value)} infer/s" if figure == "throughput" else latency(value)


Finding = Literal["same", "better", "worse"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference(Change):
    """The change of one figure at one load: inferences per second, or latency in ns.

    `low` and `high` bound the relative difference at the requested confidence; `p_value` is corrected
    for the number of comparisons.
    """

    load: str
    figure: FigureName
    finding: Finding = "same"

    @property
    def relative(self) -> float:
        return self.after / self.before - 1


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


def compare(before: Levels, after: Levels, strictness: Strictness) -> Comparison:
    """Compare all figures at all loads that both runs have.

    A difference counts if it is significant in both tests (resampled batches, and Mann-Whitney ranks of
    batches) after Holm's correction for the number of comparisons, its interval excludes zero, and it
    exceeds the minimum effect.
    """
    rng = np.random.default_rng(SEED)
    both = [load for load in before if load in after]
    common = [
        load
        for load in both
        if min(int(run[load].batches.requests.sum()) for run in (before, after)) >= FEWEST_REQUESTS
    ]
    raw = []
    for load, (name, figure) in product(common, FIGURES.items()):
        first, second = before[load], after[load]
        values = first.value(name), second.value(name)
        found = change(
            first.batches, second.batches, figure, values=values, confidence=1 - strictness.alpha, rng=rng
        )
        ranks = mann_whitney(*(by_batch(each.batches, figure) * each.scale(name) for each in (first, second)))
        members = asdict(replace(found, p_value=max(found.p_value, ranks)))
        raw.append(Difference(load=load, figure=name, **members))
    return Comparison(
        differences=settled(raw, strictness),
        only_before=tuple(load for load in before if load not in after),
        only_after=tuple(load for load in after if load not in before),
        too_few=tuple(load for load in both if load not in common),
    )


def settled(differences: Sequence[Difference], strictness: Strictness) -> tuple[Difference, ...]:
    """Return the differences of one comparison with Holm-corrected p-values and their findings."""
    out = []
    for difference, p_value in zip(differences, holm([d.p_value for d in differences]), strict=True):
        found = replace(difference, p_value=p_value)
        sure = p_value <= strictness.alpha and not found.low <= 0 <= found.high
        if sure and abs(found.relative) > strictness.min_effect:
            better = (found.relative > 0) is (found.figure == "throughput")
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
