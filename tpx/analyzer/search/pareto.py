"""Pareto search: the best compromises between several metrics, by local search around those found so far.

Whatever is not dominated has its neighbours measured, until every neighbour of every compromise is known
(Pareto local search: Paquete, Chiarandini, Stuetzle 2004).
"""

from collections.abc import Sequence

from tpx.analyzer.results.measurement import Decision, Measurement
from tpx.analyzer.search.explorer import Explorer
from tpx.analyzer.search.front import front
from tpx.analyzer.search.known import Asking, Known
from tpx.analyzer.search.question import Question
from tpx.analyzer.search.space import Point
from tpx.analyzer.search.walk import Steps

FACTORS = (1.0, 0.5, 0.25)
"""Of the expected load: compromises with latency lie below it."""


class ParetoSearch:
    """Finds the compromises between the metrics of the question; throughput and p99 by default."""

    def __init__(self, question: Question, known: Known) -> None:
        self._known = known
        self._tags = question.pareto or ("perf_throughput", "perf_latency_p99")
        self._explorer = Explorer(question, known)
        self._measured: dict[Point, list[Measurement]] = {}

    @property
    def decisions(self) -> Sequence[Decision]:
        return self._explorer.decisions

    @property
    def configurations_at_most(self) -> int:
        return 1 + self._explorer.grid.size

    @property
    def loads_at_most(self) -> int:
        return len(FACTORS)

    def steps(self) -> Steps:
        explorer = self._explorer
        yield from explorer.default()
        points = list(explorer.grid.points())
        for point in dict.fromkeys((*points[:1], *points[-1:], *points[len(points) // 2 :][:1])):
            yield from self._look(point)
        while fresh := self._unknown_neighbours():
            for point in fresh:
                yield from self._look(point)
        best = self._front()
        names = ", ".join(f"{m.variant} at {m.load}" for m in best)
        explorer.decide(f"{len(best)} measurements are beaten in nothing: {names}")
        return "every neighbour of every best compromise was measured"

    def _look(self, point: Point) -> Asking[None]:
        found = self._measured.setdefault(point, [])
        for factor in FACTORS:
            measured = yield from self._explorer.once(point, factor)
            if measured is not None:
                found.append(measured)

    def _front(self) -> list[Measurement]:
        everything = [m for found in self._measured.values() for m in found]
        return front(everything, self._tags, self._known.goals)

    def _unknown_neighbours(self) -> list[Point]:
        best = {id(m) for m in self._front()}
        sources = [p for p, found in self._measured.items() if any(id(m) in best for m in found)]
        around = (near for point in sources for near in self._explorer.grid.neighbours(point))
        return [point for point in dict.fromkeys(around) if point not in self._measured]
