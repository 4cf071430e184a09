"""Exploration shared by all strategies that move through a grid: measure points near their expected
load.

The load of a configuration is climbed from its expected optimum, not from the lowest load upward.
"""

import math
from bisect import bisect_left
from collections.abc import Collection

from tpx.analyzer.results.measurement import Measurement, Trial, Variant
from tpx.analyzer.search.axes import open_grid
from tpx.analyzer.search.engines import parallel_of
from tpx.analyzer.search.history import Asking, History, Merit
from tpx.analyzer.search.space import Ladder, Point, SearchGrid
from tpx.analyzer.search.spec import SearchSpec
from tpx.report.digits import rounded

WORTH_A_STEP = math.log(1.02)
"""Minimum gain in score, 2%, for which a further load is tried."""


class Explorer:
    """Measures points of a grid and keeps track of the best."""

    def __init__(self, spec: SearchSpec, history: History, *, every_listed: bool = False) -> None:
        """With `every_listed`, each configuration is measured under every load that the user listed."""
        self.grid: SearchGrid = open_grid(spec)
        self.loads = spec.space.loads
        self.history = history
        self._spec = spec
        self._every = every_listed and self.loads.listed
        self._points: dict[Point, Variant] = {}
        facts = [member.facts for member in spec.members] or [spec.facts]
        self._default_needs = [
            each.instances * (parallel_of(each) or 2 * max(1, each.max_batch_size)) for each in facts
        ]

    @property
    def default_in_flight(self) -> int:
        """Requests in flight that fill two batches per instance of the default."""
        return self.grid.whole(self._default_needs)

    @property
    def default_ladder(self) -> Ladder:
        """The default's ladder of loads, with the smallest client batch."""
        return self.grid.shared(self._default_needs, self.grid.client_batches[0])

    def default(self) -> Asking[None]:
        """Measure the default, climbing its load with every client batch size that it accepts."""
        spec, default = self._spec, self.grid.default
        expected = 1 if self.loads.kind == "request_rate" else self.default_in_flight
        facts = [member.facts for member in spec.members] if self.grid.together else [spec.facts]
        for sizes in self.grid.client_batches:
            models = zip(facts, sizes, strict=True)
            misfit = next(((each, size) for each, size in models if size > max(1, each.max_batch_size)), None)
            if misfit is not None:
                each, size = misfit
                text = f"batch size {size} left out: max_batch_size of {each.model} is {each.max_batch_size}"
                self.history.leave_out(text, default.name)
                continue
            ladder = self.grid.shared(self._default_needs, sizes)
            yield from self._search_ladder(default, ladder, nearest_step(ladder, expected))

    def once(self, point: Point, factor: float = 1.0) -> Asking[Measurement | None]:
        """Measure a point once, at its expected load times a factor."""
        variant, ladder = self._find_variant(point), self.grid.ladder(point)
        if self._every:
            return (yield from self._search_ladder(variant, ladder, 0))
        return (yield from measure(variant, ladder, nearest_step(ladder, self.expected(point) * factor)))

    def expected(self, point: Point) -> float:
        """Return the load at which a point is probably best; for request rates the highest so far."""
        if self.loads.kind == "concurrency":
            return self.grid.expected(point)
        best = [self.history.best(variant.name) for variant in self.history.variants]
        return max((m.throughput / m.load.batch_size for m in best if m is not None), default=1.0)

    def climbed(self, point: Point) -> Asking[Measurement | None]:
        """Climb from the best known load, or the expected one, and return the best measurement."""
        variant, ladder = self._find_variant(point), self.grid.ladder(point)
        known = self._find_best(point)
        wanted = known.load.value if known else self.expected(point)
        return (yield from self._search_ladder(variant, ladder, nearest_step(ladder, wanted)))

    def merit(self, point: Point) -> Merit:
        """Return the merit of a point's best measurement."""
        return self.history.merit(self._find_best(point))

    def best(self) -> Point | None:
        """Return the best point measured, or None."""
        measured = {point: best for point in self._points if (best := self._find_best(point)) is not None}
        return max(measured, key=lambda point: self.history.merit(measured[point]), default=None)

    @property
    def tried(self) -> Collection[Point]:
        """Points measured, in order."""
        return self._points.keys()

    def name(self, point: Point) -> str:
        """Return the name of a point's variant."""
        return self._find_variant(point).name

    def _find_variant(self, point: Point) -> Variant:
        if point not in self._points:
            self._points[point] = variant = self.grid.variant(point)
            self.history.decide(self.grid.describe(point), variant.name)
        return self._points[point]

    def _find_best(self, point: Point) -> Measurement | None:
        """Return the best measurement of a point's variant with the point's client batch sizes, or None."""
        if point not in self._points:
            return None
        return self.history.best(self._points[point].name, self.grid.batch_sizes(point))

    def _search_ladder(self, variant: Variant, ladder: Ladder, step: int) -> Asking[Measurement | None]:
        """Return the best of every load if all were requested, otherwise climb from this step."""
        if not self._every:
            return (yield from climb(variant, ladder, self.history, step))
        found: list[Measurement] = []
        for each in range(len(ladder)):
            measured = yield from measure(variant, ladder, each)
            found += [] if measured is None else [measured]
        return max(found, key=self.history.merit, default=None)


def nearest_step(ladder: Ladder, wanted: float) -> int:
    """Return the step of the least load that is at least `wanted`, or else the last step."""
    return min(bisect_left(ladder, wanted, key=lambda load: load.value), len(ladder) - 1)


def measure(variant: Variant, ladder: Ladder, step: int) -> Asking[Measurement | None]:
    """Measure at a step of the ladder; return None if that failed."""
    outcome = yield Trial(variant=variant, load=ladder[step])
    if isinstance(outcome, Measurement) and outcome.throughput > 0:
        return outcome
    return None


def climb(variant: Variant, ladder: Ladder, history: History, step: int) -> Asking[Measurement | None]:
    """Climb the ladder from this step while that improves, or else down; None if the first one failed."""
    start = yield from measure(variant, ladder, step)
    if start is None:
        history.decide(f"stopped: {ladder[step]} could not be measured", variant.name)
        return None
    best = start
    if history.merit(start)[0]:
        best = yield from _climb_steps(variant, ladder, history, range(step + 1, len(ladder)), start)
    # less load may not increase throughput, but help latency and constraints
    tags = {objective.tag for objective in history.goals.all_objectives}
    if best is start and (tags != {"perf_throughput"} or not history.merit(start)[0]):
        best = yield from _climb_steps(variant, ladder, history, range(step - 1, -1, -1), start)
    history.decide(f"best at {best.load}: {rounded(best.throughput)} infer/s", variant.name)
    return best


def _climb_steps(
    variant: Variant, ladder: Ladder, history: History, steps: range, best: Measurement
) -> Asking[Measurement]:
    for step in steps:
        reached = yield from measure(variant, ladder, step)
        if reached is None:
            break
        better = is_step(history.merit(best), history.merit(reached))
        best = max(best, reached, key=history.merit)
        if not better:
            break
    return best


def is_step(before: Merit, after: Merit) -> bool:
    """Return True if the second is enough better to continue in its direction."""
    if before[0] != after[0]:
        return after[0]
    # neither satisfies the constraints: any approach to them is worth a step
    if not before[0]:
        return after[1] > before[1]
    return after[1] - before[1] > WORTH_A_STEP
