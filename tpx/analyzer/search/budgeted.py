"""Budgeted search: the best answer within a number of measurements or an amount of time.

Pilots find the knee by Little's law, a coarse grid is measured once, its best third repeatedly
(successive halving), the neighborhood of the best is climbed, and the final rounds decide.
"""

import math
from collections.abc import Sequence
from typing import TypeVar

from tpx.analyzer.search.explorer import Explorer, is_step, measure, nearest_step
from tpx.analyzer.search.history import Asking, History, Steps
from tpx.analyzer.search.space import Point
from tpx.analyzer.search.spec import SearchSpec
from tpx.analyzer.search.sweep import refine_best

T = TypeVar("T")

PILOT_LOAD = 64
"""Maximum load of the second pilot; beyond saturation it only adds queueing, slow with a slow model."""
SATURATING = 4
"""Load of the second pilot as a multiple of the load at which the default is expected to be best."""
KEPT_SHARE = 3
"""One in this many configurations advances to the next rung."""
COARSE_SHARE = 0.4
"""Share of the budget for the coarse grid."""
COARSE_AT_MOST = 24
CLIMBED = 3


def budgeted(spec: SearchSpec, history: History) -> Steps:
    """Search within the limits of the run; without limits, stop when no neighbor is better."""
    explorer = Explorer(spec, history)
    history.space_size = 1 + explorer.grid.size
    knee = yield from _measure_knee(explorer)
    yield from explorer.default()
    rung = yield from _halve_points(explorer, knee)
    for point in rung[:CLIMBED]:
        yield from explorer.climbed(point)
    yield from _climb_neighbors(explorer)
    yield from refine_best(spec, history)


def _measure_knee(explorer: Explorer) -> Asking[float]:
    """Return the default's knee, its unloaded latency times its throughput (Little 1961); 0 if unknown."""
    ladder = explorer.default_ladder
    if explorer.grid.together or explorer.loads.kind != "concurrency" or len(ladder) < 2:
        return 0.0
    default = explorer.grid.default
    alone = yield from measure(default, ladder, 0)
    saturating = min(PILOT_LOAD, SATURATING * explorer.default_in_flight)
    loaded = yield from measure(default, ladder, nearest_step(ladder, saturating))
    if alone is None or loaded is None or alone.mean_ns is None:
        return 0.0
    knee = alone.mean_ns / 1e9 * loaded.throughput / loaded.load.batch_size
    if knee:
        explorer.history.decide(
            f"pilots: the knee is at {knee:.1f} requests in flight; loads below half of it are not measured",
            default.name,
        )
    return knee


def _halve_points(explorer: Explorer, knee: float) -> Asking[list[Point]]:
    """Return the points that survive all rungs, best first; each rung uses a different load."""
    points = _select_coarse_points(explorer)
    explorer.history.decide(f"first rung: {len(points)} of {explorer.grid.size} configurations, once each")
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
        explorer.history.decide(f"{kept} of {len(points)} stay: {names}")
        points, factor = points[:kept], factor * 2


def _select_coarse_points(explorer: Explorer) -> list[Point]:
    """Return evenly spaced points of those that may be tried, or all of a few."""
    points = list(explorer.grid.points())
    wanted = int(max(CLIMBED, min(COARSE_AT_MOST, explorer.history.left * COARSE_SHARE)))
    if len(points) <= wanted:
        return points
    # of each dimension, what occurs at all: of five instances perhaps two fit the cores
    places = [sorted(set(indices)) for indices in zip(*points, strict=True)]
    counts = [len(each) for each in places]
    while max(counts) > 1:
        counts[counts.index(max(counts))] -= 1
        kept = [_evenly(own, count) for own, count in zip(places, counts, strict=True)]
        chosen = [p for p in points if all(i in k for i, k in zip(p, kept, strict=True))]
        if 0 < len(chosen) <= wanted:
            return chosen
    return _evenly(points, wanted)


def _evenly(items: Sequence[T], count: int) -> list[T]:
    """Return evenly spaced items from end to end; the middle one for a count of one."""
    if count == 1:
        return [items[(len(items) - 1) // 2]]
    return [items[round(i * (len(items) - 1) / (count - 1))] for i in range(count)]


def _climb_neighbors(explorer: Explorer) -> Asking[None]:
    """Move from the best point to its best neighbor until none is better."""
    current = explorer.best()
    while current is not None:
        before = explorer.merit(current)
        for point in explorer.grid.neighbours(current):
            if point not in explorer.tried:
                best = explorer.history.best(explorer.name(current))
                factor = best.load.value / explorer.expected(current) if best else 1.0
                measured = yield from explorer.once(point, factor)
                if measured is not None and explorer.merit(point) > before:
                    yield from explorer.climbed(point)
        reached = explorer.best()
        if reached is None or reached == current or not is_step(before, explorer.merit(reached)):
            return
        current = reached
