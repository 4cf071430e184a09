"""Quick search: hill climbing from the smallest configuration, in the direction in which its neighbors
improve.

Model Analyzer's hill climbing (its neighborhood.py and quick_run_config_generator.py) on the indices of
a grid, with every dimension bounded and the default treated separately. Each configuration has one
load: twice what keeps its instances busy.
"""

import math
from collections.abc import Sequence

from tpx.analyzer.search.explorer import Explorer
from tpx.analyzer.search.history import Asking, History, Steps
from tpx.analyzer.search.space import Point
from tpx.analyzer.search.spec import SearchSpec

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
        there = yield from _fast(explorer, home)
        if there == home or explorer.merit(there) <= explorer.merit(home):
            there = yield from _slow(explorer, home)
        if there == home:
            break
        history.decide(f"home moves to {explorer.grid.describe(there)}", explorer.name(there))
        home = there
    if spec.sweep_best:
        for point in sorted(explorer.tried, key=explorer.merit, reverse=True)[: spec.limits.finalists]:
            yield from explorer.climbed(point)
        yield from explorer.refined()


def _fast(explorer: Explorer, home: Point) -> Asking[Point]:
    """Jump in the direction in which the measured neighbors improve, and return the point reached."""
    around = explorer.grid.around(home, RADIUS)
    measured = [p for p in around if p in explorer.tried]
    while len(measured) < min(FEWEST_NEIGHBOURS, len(around)):
        fresh = _most_informative([p for p in around if p not in measured], [home, *measured])
        yield from explorer.once(fresh)
        measured.append(fresh)
    there = _clamped(explorer, home, _direction(explorer, home, measured))
    if there != home and there not in explorer.tried:
        yield from explorer.once(there)
    return there


def _slow(explorer: Explorer, home: Point) -> Asking[Point]:
    """Return the best immediate neighbor, or home if none is better."""
    best = home
    for point in explorer.grid.neighbours(home):
        if point not in explorer.tried:
            yield from explorer.once(point)
        if explorer.merit(point) > explorer.merit(best):
            best = point
    return best


def _direction(explorer: Explorer, home: Point, measured: Sequence[Point]) -> list[float]:
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


def _clamped(explorer: Explorer, home: Point, strengths: Sequence[float]) -> Point:
    """Return home moved by whole steps within the grid; home itself if that point is not allowed."""
    dimensions = explorer.grid.dimensions
    moved = []
    for place, strength, dimension in zip(home, strengths, dimensions, strict=True):
        stride = next(steps for limit, steps in _STRIDES if abs(strength) <= limit)
        step = stride if strength > 0 else -stride
        if not dimension.ordered:
            step = 0
        moved.append(min(max(place + step, 0), len(dimension.choices) - 1))
    there = tuple(moved)
    return home if explorer.grid.refusal(there) else there


def _most_informative(candidates: Sequence[Point], seen: Sequence[Point]) -> Point:
    """Return the point with the most values not seen before; break ties by distance to the first seen
    point.
    """

    def novelty(point: Point) -> int:
        return sum(all(point[axis] != other[axis] for other in seen) for axis in range(len(point)))

    return min(candidates, key=lambda p: (-novelty(p), math.dist(p, seen[0]), p))
