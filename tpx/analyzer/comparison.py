"""Compare runs of a search: how each configuration changed under the same load, and how certain that is.

Configurations match by their text, not by the number that a search gave them. A run is one value of each
figure: how runs of the same thing differ, only several of them show.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal

from tpx.analyzer.metrics import METRICS, NS_PER_MS
from tpx.analyzer.results.measurement import LoadPoint, Measurement
from tpx.analyzer.results.run import ModelRun, Run
from tpx.analyzer.verdict import Finding, judge
from tpx.perf.compare import Difference, FigureName, difference, settled
from tpx.perf.options.measuring import Strictness

Role = Literal["recommended", "best", ""]
_FIGURES: tuple[tuple[FigureName, str, float], ...] = (
    ("throughput", "perf_throughput", 1.0),
    ("p99", "perf_latency_p99", NS_PER_MS),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One figure of one configuration under one load, before and after."""

    model: str
    before: str
    """Name of the configuration in the runs before."""
    after: str
    role: Role
    """Role in all runs: what each recommends, what each found best, not necessarily the same; or none."""
    difference: Difference


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysisComparison:
    """All pairs present in all runs, and the names that are only in the first or only in the last."""

    pairs: tuple[Pair, ...]
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]


_Named = tuple[str, Measurement]
"""The name of a configuration, and its figures under one load."""
_Side = Sequence[_Named]
"""The same in each run of one side."""


def compare_runs(before: Sequence[Run], after: Sequence[Run], strictness: Strictness) -> AnalysisComparison:
    """Compare what all runs have, first what they recommend; tests are corrected for their number.

    Without three runs before, how runs differ is unknown, and every figure is undecided.
    """
    runs = (*before, *after)
    repeat_s = sum(run.elapsed_ns for run in runs) / 1e9 / len(runs)
    models = [{model.model: model for model in run.models} for run in runs]
    pairs: list[Pair] = []
    only: tuple[list[str], list[str]] = ([], [])
    for name in dict.fromkeys(name for found in models for name in found):
        if any(name not in found for found in models):
            only[0 if name in models[0] else 1].append(name)
            continue
        own = [found[name] for found in models]
        verdicts = [judge(model, run.started.goals) for model, run in zip(own, runs, strict=True)]
        found_best = (verdict.candidate or verdict.best for verdict in verdicts)
        best = [(r.name, r.figures) for r in found_best if r is not None and r.satisfies]
        if len(best) == len(runs):
            sure = all(verdict.finding is not Finding.UNDECIDED for verdict in verdicts)
            role: Role = "recommended" if sure else "best"
            pairs += _pair_figures(name, best[: len(before)], best[len(before) :], repeat_s, role)
        points = [_index_points(model) for model in own]
        for key in points[0]:
            if all(key in found for found in points):
                each = [found[key] for found in points]
                pairs += _pair_figures(name, each[: len(before)], each[len(before) :], repeat_s)
        texts = [{text: found[text, load][0] for text, load in found} for found in points]
        only[0].extend(texts[0][text] for text in texts[0] if text not in texts[-1])
        only[1].extend(texts[-1][text] for text in texts[-1] if text not in texts[0])
    settled_pairs: list[Pair] = []
    # what the runs recommend is one comparison, and everything else another, with many more figures
    for _, family in groupby(sorted(pairs, key=lambda pair: not pair.role), key=lambda pair: not pair.role):
        own_pairs = list(family)
        found = settled([pair.difference for pair in own_pairs], strictness)
        settled_pairs += (replace(p, difference=d) for p, d in zip(own_pairs, found, strict=True))
    return AnalysisComparison(
        pairs=tuple(settled_pairs),
        only_before=tuple(only[0]),
        only_after=tuple(only[1]),
    )


def _index_points(model: ModelRun) -> Mapping[tuple[str, LoadPoint], _Named]:
    """Return the figures of each configuration, by its text, under each load."""
    return {
        ("\0".join(each.text for each in variant.configuration.files), point.load): (
            variant.variant.name,
            point,
        )
        for variant in model.measured
        for point in variant.points
    }


def _pair_figures(
    model: str, before: _Side, after: _Side, repeat_s: float, role: Role = ""
) -> Iterator[Pair]:
    both = (*before, *after)
    load = " -> ".join(dict.fromkeys(str(point.load) for _, point in both))
    for figure, tag, unit in _FIGURES:
        values = [unit * (METRICS[tag].value(point) or 0.0) for _, point in both]
        if min(values) <= 0:
            continue
        yield Pair(
            model=model,
            before=" or ".join(dict.fromkeys(name for name, _ in before)),
            after=" or ".join(dict.fromkeys(name for name, _ in after)),
            role=role,
            difference=difference(
                load, figure, values[: len(before)], values[len(before) :], repeat_s=repeat_s
            ),
        )
