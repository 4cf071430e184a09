"""Budgeted search: as good an answer as a number of measurements, or an amount of time, can give.

Pilots find the knee by Little's law, a coarse grid is measured once, the better third of it again and again
(successive halving), the neighbourhood of the best is climbed, and the final repetitions decide.
"""

import math
from collections.abc import Sequence

from tpx.analyzer.results.measurement import Decision, Measurement
from tpx.analyzer.search.climb import is_step, measure
from tpx.analyzer.search.explorer import Explorer
from tpx.analyzer.search.known import Asking, Known
from tpx.analyzer.search.question import Question
from tpx.analyzer.search.space import Point
from tpx.analyzer.search.walk import Steps

PILOT_LOAD = 64
"""Of the second pilot at most; more than saturates the default would only wait, of a slow model for long."""
SATURATING = 4
"""So many times the load at which the default is expected to be best."""
KEPT_SHARE = 3
"""One of so many goes on to the next rung."""
COARSE_SHARE = 0.4
"""Of the budget, for the first look at the grid."""
COARSE_AT_MOST = 24
CLIMBED = 3


class BudgetedSearch:
    """Bounded by the limits of the run; without any it ends when no neighbour is better."""

    def __init__(self, question: Question, known: Known) -> None:
        self._known = known
        self._explorer = Explorer(question, known)
        self._loads = question.space.loads

    @property
    def decisions(self) -> Sequence[Decision]:
        return self._explorer.decisions

    @property
    def configurations_at_most(self) -> int:
        size, left = 1 + self._explorer.grid.size, self._known.left
        return int(min(size, len(self._known.variants) + left)) if math.isfinite(left) else size

    @property
    def loads_at_most(self) -> int:
        return len(self._loads.values)

    def steps(self) -> Steps:
        explorer = self._explorer
        knee = yield from self._pilots()
        yield from explorer.default()
        rung = yield from self._halved(knee)
        for point in rung[:CLIMBED]:
            yield from explorer.climbed(point)
        yield from self._neighbourhood()
        yield from explorer.refined()
        return "no neighbour of the best configuration is better"

    def _pilots(self) -> Asking[float]:
        """The knee of the default: its latency alone times its throughput under load (Little 1961)."""
        ladder = self._explorer.default_ladder
        if self._explorer.grid.together or self._loads.kind != "concurrency" or len(ladder) < 2:
            return 0.0
        default = self._explorer.grid.default
        alone = yield from measure(default, ladder, 0)
        saturating = min(PILOT_LOAD, SATURATING * self._explorer.default_in_flight)
        loaded = yield from measure(default, ladder, ladder.nearest(saturating))
        knee = _knee(alone, loaded)
        if knee:
            self._explorer.decide(
                f"pilots: the knee is at {knee:.1f} requests in flight; loads below half of it are not "
                "measured",
                default.name,
            )
        return knee

    def _halved(self, knee: float) -> Asking[list[Point]]:
        """The points that stay after each rung, the best first; each rung is under another load."""
        explorer = self._explorer
        points = self._coarse()
        explorer.decide(f"first rung: {len(points)} of {explorer.grid.size} configurations, once each")
        factor = 1.0
        while True:
            for point in points:
                wanted = explorer.expected(point)
                yield from explorer.once(point, max(factor, knee / 2 / wanted))
            points = sorted(points, key=explorer.merit, reverse=True)
            if len(points) <= CLIMBED:
                return points
            kept = max(CLIMBED, math.ceil(len(points) / KEPT_SHARE))
            names = ", ".join(explorer.name(point) for point in points[:kept])
            explorer.decide(f"{kept} of {len(points)} stay: {names}")
            points, factor = points[:kept], factor * 2

    def _coarse(self) -> list[Point]:
        """Evenly spread points; all of a small grid."""
        points = list(self._explorer.grid.points())
        wanted = int(max(CLIMBED, min(COARSE_AT_MOST, self._known.left * COARSE_SHARE)))
        if len(points) <= wanted:
            return points
        for counts in _coarser([len(d.choices) for d in self._explorer.grid.dimensions]):
            kept = [_spread(n, count) for n, count in counts]
            chosen = [p for p in points if all(i in k for i, k in zip(p, kept, strict=True))]
            if len(chosen) <= wanted:
                return chosen
        return points[:wanted]

    def _neighbourhood(self) -> Asking[None]:
        """Climb from the best point to the best of its neighbours, until none is better."""
        explorer = self._explorer
        while True:
            here = explorer.best()
            if here is None:
                return
            before = explorer.merit(here)
            for point in explorer.grid.neighbours(here):
                if point not in explorer.tried:
                    measured = yield from explorer.once(point, self._factor(here))
                    if measured is not None and explorer.merit(point) > before:
                        yield from explorer.climbed(point)
            if explorer.best() == here or not is_step(before, explorer.merit(explorer.best() or here)):
                return

    def _factor(self, point: Point) -> float:
        """The best load of a point over its expected one."""
        best = self._known.best(self._explorer.name(point))
        return best.load.value / self._explorer.expected(point) if best else 1.0


def _knee(alone: Measurement | None, loaded: Measurement | None) -> float:
    if alone is None or loaded is None or alone.latency.avg_ns is None:
        return 0.0
    return alone.latency.avg_ns / 1e9 * loaded.throughput / loaded.load.batch_size


def _coarser(lengths: Sequence[int]) -> list[list[tuple[int, int]]]:
    """Ever fewer choices of each dimension: (all, kept) of each."""
    kept = list(lengths)
    found = []
    while max(kept) > 1:
        widest = kept.index(max(kept))
        kept[widest] -= 1
        found.append(list(zip(lengths, kept, strict=True)))
    return found


def _spread(count: int, kept: int) -> set[int]:
    """`kept` of the places 0 to count - 1, evenly, the ends among them; the middle alone of one."""
    if kept == 1:
        return {(count - 1) // 2}
    return {round(i * (count - 1) / (kept - 1)) for i in range(kept)}
