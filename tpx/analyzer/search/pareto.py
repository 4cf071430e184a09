"""Pareto search: the best trade-offs between several metrics, by local search around those found so
far.

The neighbors of all nondominated configurations are measured until none is left to measure (Pareto
local search: Paquete, Chiarandini, Stuetzle 2004).
"""

from collections.abc import Sequence

from tpx.analyzer.objectives import metric, satisfies
from tpx.analyzer.results.goals import Goals
from tpx.analyzer.results.measurement import Measurement
from tpx.analyzer.search.explorer import Explorer
from tpx.analyzer.search.history import Asking, History, Steps
from tpx.analyzer.search.space import Point
from tpx.analyzer.search.spec import SearchSpec

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
            measured[point] = yield from _look(explorer, point)
        best = front([m for found in measured.values() for m in found], tags, history.goals)
        kept = {id(m) for m in best}
        sources = [p for p, found in measured.items() if any(id(m) in kept for m in found)]
        around = (near for point in sources for near in explorer.grid.neighbours(point))
        fresh = [point for point in dict.fromkeys(around) if point not in measured]
    names = ", ".join(f"{m.variant} at {m.load}" for m in best)
    history.decide(f"{len(best)} measurements are beaten in nothing: {names}")


def _look(explorer: Explorer, point: Point) -> Asking[list[Measurement]]:
    found = []
    for factor in FACTORS:
        measured = yield from explorer.once(point, factor)
        if measured is not None:
            found.append(measured)
    return found


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


def dominates(ours: Figures, theirs: Figures) -> bool:
    """Return True if the first is nowhere worse and somewhere better."""
    return ours != theirs and all(a >= b for a, b in zip(ours, theirs, strict=True))


def front(measurements: Sequence[Measurement], tags: Sequence[str], goals: Goals) -> list[Measurement]:
    """Return the nondominated measurements that satisfy the constraints, in order."""
    known = [(m, figures) for m in measurements if (figures := figures_of(m, tags)) and satisfies(m, goals)]
    return [m for m, own in known if not any(dominates(other, own) for _, other in known)]
