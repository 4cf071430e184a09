"""Local search from measured configurations to their neighbors: quick (hill climbing) and pareto.

Quick climbs from the smallest configuration in the direction in which its neighbors improve:
Model Analyzer's hill climbing (its neighborhood.py and quick_run_config_generator.py) on the indices of
a grid, with every dimension bounded and the default treated separately. Each configuration has one
load: twice what keeps its instances busy.
"""

import math
from collections.abc import Sequence

from tpx.analyzer.metrics import metric
from tpx.analyzer.objectives import satisfies
from tpx.analyzer.results.goals import Goals
from tpx.analyzer.results.measurement import Measurement
from tpx.analyzer.search.explorer import Explorer
from tpx.analyzer.search.history import Asking, History, Steps
from tpx.analyzer.search.space import Point
from tpx.analyzer.search.spec import SearchSpec
from tpx.analyzer.search.sweep import refine_best

RADIUS = 3
FEWEST_NEIGHBOURS = 3
_STRIDES = ((0.09, 0), (0.3, 1), (1.0, 2), (math.inf, 3))
"""Grid steps by strength of a direction: (upper bound of the strength, steps)."""


def quick(spec: SearchSpec, history: History) -> Steps:
    """Climb until no neighbor is better; this terminates, because a home is visited at most twice."""
    explorer = Explorer(spec, history, every_listed=True)
    history.space_size = 1 + explorer.grid.size
    yield from explorer.default()
    home = next(explorer.grid.points(), None)
    if home is None:
        return
    yield from explorer.once(home)
    visits: dict[Point, int] = {}
    while visits.get(home, 0) < 2:
        visits[home] = visits.get(home, 0) + 1
        reached = yield from _take_fast_step(explorer, home)
        if reached == home or explorer.merit(reached) <= explorer.merit(home):
            # the best immediate neighbor, if it is better than home
            reached = home
            for point in explorer.grid.neighbours(home):
                if point not in explorer.tried:
                    yield from explorer.once(point)
                if explorer.merit(point) > explorer.merit(reached):
                    reached = point
        if reached == home:
            break
        history.decide(f"home moves to {explorer.grid.describe(reached)}", explorer.name(reached))
        home = reached
    if not spec.space.strategy.concurrency_sweep_disable:
        for point in sorted(explorer.tried, key=explorer.merit, reverse=True)[: spec.limits.finalists]:
            yield from explorer.climbed(point)
        yield from refine_best(spec, history)


def _take_fast_step(explorer: Explorer, home: Point) -> Asking[Point]:
    """Jump in the direction in which the measured neighbors improve, and return the point reached."""
    around = explorer.grid.around(home, RADIUS)
    measured = [p for p in around if p in explorer.tried]
    while len(measured) < min(FEWEST_NEIGHBOURS, len(around)):
        fresh = _pick_most_informative([p for p in around if p not in measured], [home, *measured])
        yield from explorer.once(fresh)
        measured.append(fresh)
    moved = []
    dimensions = explorer.grid.dimensions
    strengths = _estimate_direction(explorer, home, measured)
    for place, strength, dimension in zip(home, strengths, dimensions, strict=True):
        stride = (
            next(steps for limit, steps in _STRIDES if abs(strength) <= limit) if dimension.ordered else 0
        )
        moved.append(min(max(place + (stride if strength > 0 else -stride), 0), len(dimension.choices) - 1))
    target = tuple(moved)
    if explorer.grid.refusal(target):
        return home
    if target != home and target not in explorer.tried:
        yield from explorer.once(target)
    return target


def _estimate_direction(explorer: Explorer, home: Point, measured: Sequence[Point]) -> list[float]:
    """Return the neighbors' mean gain per step in each dimension."""
    kept, here = explorer.merit(home)
    strengths = []
    for axis in range(len(home)):
        total, far = 0.0, 0
        for point in measured:
            offset = point[axis] - home[axis]
            satisfied, there = explorer.merit(point)
            if offset and math.isfinite(there) and math.isfinite(here):
                gain = there - here if satisfied == kept else (1.0 if satisfied else -1.0)
                total += gain * (1 if offset > 0 else -1)
                far += abs(offset)
        strengths.append(total / far if far else 0.0)
    return strengths


def _pick_most_informative(candidates: Sequence[Point], seen: Sequence[Point]) -> Point:
    """Return the point with the most unseen values; the one closest to the first seen point breaks ties."""
    values = [set(axis) for axis in zip(*seen, strict=True)]
    novelty = {p: sum(x not in known for x, known in zip(p, values, strict=True)) for p in candidates}
    return min(candidates, key=lambda p: (-novelty[p], math.dist(p, seen[0]), p))


FACTORS = (1.0, 0.5, 0.25)
"""Multiples of the expected load to measure; trade-offs with latency lie below it."""
Figures = tuple[float, ...]


def pareto(spec: SearchSpec, history: History) -> Steps:
    """Find the trade-offs between the metrics of the spec; throughput and p99 by default."""
    explorer = Explorer(spec, history)
    history.space_size = 1 + explorer.grid.size
    tags = spec.limits.pareto or ("perf_throughput", "perf_latency_p99")
    measured: dict[Point, list[Measurement]] = {}
    best: list[Measurement] = []
    yield from explorer.default()
    points = list(explorer.grid.points())
    fresh = list(dict.fromkeys((*points[:1], *points[-1:], *points[len(points) // 2 :][:1])))
    while fresh:
        for point in fresh:
            measured[point] = []
            for factor in FACTORS:
                outcome = yield from explorer.once(point, factor)
                measured[point] += [] if outcome is None else [outcome]
        best = front([m for found in measured.values() for m in found], tags, history.goals)
        kept = {id(m) for m in best}
        sources = [p for p, found in measured.items() if any(id(m) in kept for m in found)]
        around = (near for point in sources for near in explorer.grid.neighbours(point))
        fresh = [point for point in dict.fromkeys(around) if point not in measured]
    names = ", ".join(f"{m.variant} at {m.load}" for m in best)
    history.decide(f"{len(best)} measurements are beaten in nothing: {names}")


def figures_of(measurement: Measurement, tags: Sequence[str]) -> Figures | None:
    """Return the figures of these metrics with signs such that higher is better; None if one is missing."""
    found = []
    for tag in tags:
        measured = metric(tag)
        value = measured.value(measurement)
        if value is None:
            return None
        found.append(value if measured.better == "higher" else -value)
    return tuple(found)


def dominates(first: Figures, second: Figures) -> bool:
    """Return True if the first is nowhere worse and somewhere better."""
    return first != second and all(a >= b for a, b in zip(first, second, strict=True))


def front(measurements: Sequence[Measurement], tags: Sequence[str], goals: Goals) -> list[Measurement]:
    """Return the nondominated measurements that satisfy the constraints, in order."""
    known = [(m, figures) for m in measurements if (figures := figures_of(m, tags)) and satisfies(m, goals)]
    # whatever dominates comes earlier in this order, and is itself in the front or dominated by one in it
    undominated: list[Figures] = []
    for figures in sorted({own for _, own in known}, reverse=True):
        if not any(dominates(other, figures) for other in undominated):
            undominated.append(figures)
    return [m for m, own in known if own in undominated]
