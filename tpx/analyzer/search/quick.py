"""Quick search: from the smallest configuration uphill, in the direction in which its neighbours improve.

Model Analyzer's hill climbing on the places of a grid (neighborhood.py, quick_run_config_generator.py of
Model Analyzer), with bounds on every dimension, the default apart from it, and one load for each
configuration: twice what keeps its instances busy.
"""

import math
from collections.abc import Sequence

from tpx.analyzer.results.measurement import Decision
from tpx.analyzer.search.explorer import Explorer
from tpx.analyzer.search.known import Asking, Known
from tpx.analyzer.search.question import Question
from tpx.analyzer.search.space import Point
from tpx.analyzer.search.walk import Steps

RADIUS = 3
FEWEST_NEIGHBOURS = 3
_STRIDES = ((0.09, 0), (0.3, 1), (1.0, 2), (math.inf, 3))
"""Strength of a direction, up to so much: steps of the grid."""


class QuickSearch:
    """Climbs until no neighbour is better; ends for certain, for a home is entered twice at most."""

    def __init__(self, question: Question, known: Known) -> None:
        self._explorer = Explorer(question, known, every_listed=True)
        self._limits = question.limits
        self._visits: dict[Point, int] = {}

    @property
    def decisions(self) -> Sequence[Decision]:
        return self._explorer.decisions

    @property
    def configurations_at_most(self) -> int:
        return 1 + self._explorer.grid.size

    @property
    def loads_at_most(self) -> int:
        return len(self._explorer.loads.values)

    def steps(self) -> Steps:
        explorer = self._explorer
        yield from explorer.default()
        home = next(explorer.grid.points(), None)
        if home is None:
            return "no configuration of the space may be tried"
        yield from explorer.once(home)
        while self._visits.get(home, 0) < 2:
            self._visits[home] = self._visits.get(home, 0) + 1
            there = yield from self._fast(home)
            if there == home or explorer.merit(there) <= explorer.merit(home):
                there = yield from self._slow(home)
            if there == home:
                break
            explorer.decide(f"home moves to {explorer.grid.describe(there)}", explorer.name(there))
            home = there
        if self._limits.sweep_best:
            for point in sorted(explorer.tried, key=explorer.merit, reverse=True)[: self._limits.finalists]:
                yield from explorer.climbed(point)
            yield from explorer.refined()
        return "no neighbour of the best configuration is better"

    def _fast(self, home: Point) -> Asking[Point]:
        """A jump in the direction in which the neighbours that are measured improve."""
        explorer = self._explorer
        around = explorer.grid.around(home, RADIUS)
        measured = [p for p in around if p in explorer.tried]
        while len(measured) < min(FEWEST_NEIGHBOURS, len(around)):
            fresh = _most_informative([p for p in around if p not in measured], [home, *measured])
            yield from explorer.once(fresh)
            measured.append(fresh)
        there = self._clamped(home, self._direction(home, measured))
        if there != home and there not in explorer.tried:
            yield from explorer.once(there)
        return there

    def _slow(self, home: Point) -> Asking[Point]:
        """The best of the immediate neighbours, where it is better than home."""
        explorer = self._explorer
        best = home
        for point in explorer.grid.neighbours(home):
            if point not in explorer.tried:
                yield from explorer.once(point)
            if explorer.merit(point) > explorer.merit(best):
                best = point
        return best

    def _direction(self, home: Point, measured: Sequence[Point]) -> list[float]:
        """The mean gain of the neighbours in each dimension, by how far they are."""
        explorer = self._explorer
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

    def _clamped(self, home: Point, strengths: Sequence[float]) -> Point:
        """Home moved by whole steps, within the grid; home where that is not allowed."""
        dimensions = self._explorer.grid.dimensions
        moved = []
        for place, strength, dimension in zip(home, strengths, dimensions, strict=True):
            stride = next(steps for limit, steps in _STRIDES if abs(strength) <= limit)
            step = stride if strength > 0 else -stride
            if not dimension.ordered:
                step = 0
            moved.append(min(max(place + step, 0), len(dimension.choices) - 1))
        there = tuple(moved)
        return home if self._explorer.grid.refusal(there) else there


def _most_informative(candidates: Sequence[Point], seen: Sequence[Point]) -> Point:
    """The point with the most values that no seen point has; of equals the nearest to the first seen."""

    def novelty(point: Point) -> int:
        return sum(all(point[axis] != other[axis] for other in seen) for axis in range(len(point)))

    return min(candidates, key=lambda p: (-novelty(p), math.dist(p, seen[0]), p))
