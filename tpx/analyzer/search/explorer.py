"""Exploring, as all strategies that jump do: a grid, loads where they are expected, and the history.

The load of a configuration is climbed from where it is expected, instead of from the least load upwards.
"""

import math
from collections.abc import Collection, Sequence

from tpx.analyzer.results.measurement import Measurement, Trial, Variant
from tpx.analyzer.search.axes import open_grid
from tpx.analyzer.search.history import Asking, History, Merit
from tpx.analyzer.search.loads import Ladder
from tpx.analyzer.search.space import Point, SearchGrid
from tpx.analyzer.search.spec import SearchSpec
from tpx.analyzer.search.sweep import refine_best
from tpx.report.digits import rounded

WORTH_A_STEP = math.log(1.02)
"""More load is tried as long as it brings more than two percent."""


class Explorer:
    """Measures points of a grid and remembers how good they are."""

    def __init__(self, spec: SearchSpec, history: History, *, every_listed: bool = False) -> None:
        """With `every_listed` each configuration is measured under all loads that the user listed."""
        self.grid: SearchGrid = open_grid(spec)
        self.loads = spec.space.loads
        self.history = history
        self._spec = spec
        self._every = every_listed and self.loads.listed
        self._points: dict[Point, Variant] = {}

    @property
    def default_in_flight(self) -> int:
        """Requests that keep every instance of the default busy with full batches, twice."""
        return self.grid.whole(self._default_needs)

    @property
    def default_ladder(self) -> Ladder:
        """The loads of the default, in the least batches."""
        return self.grid.shared(self.loads, self._default_needs, self.grid.client_batches[0])

    def default(self) -> Asking[None]:
        """The default configuration, its load climbed with every batch size that it takes."""
        expected = 1 if self.loads.kind == "request_rate" else self.default_in_flight
        for sizes in self.grid.client_batches:
            fault = self._unfitting(sizes)
            if fault:
                self.history.decide(fault, self.grid.default.name)
                continue
            ladder = self.grid.shared(self.loads, self._default_needs, sizes)
            yield from self._best_of(self.grid.default, ladder, ladder.nearest(expected))

    def once(self, point: Point, factor: float = 1.0) -> Asking[Measurement | None]:
        """One measurement of a point, at its expected load times a factor."""
        variant, ladder = self._variant(point), self.grid.ladder(self.loads, point)
        if self._every:
            return (yield from self._best_of(variant, ladder, 0))
        return (yield from measure(variant, ladder, ladder.nearest(self.expected(point) * factor)))

    def expected(self, point: Point) -> float:
        """The load at which a point is expected to be best; of rates, the greatest that was reached yet."""
        if self.loads.kind == "concurrency":
            return self.grid.expected(point)
        best = [self.history.best(variant.name) for variant in self.history.variants]
        return max((m.throughput / m.load.batch_size for m in best if m is not None), default=1.0)

    def climbed(self, point: Point) -> Asking[Measurement | None]:
        """A point at its best load: from the best that is known of it, or from where it is expected."""
        variant, ladder = self._variant(point), self.grid.ladder(self.loads, point)
        known = self._best(point)
        wanted = known.load.value if known else self.expected(point)
        return (yield from self._best_of(variant, ladder, ladder.nearest(wanted)))

    def refined(self) -> Asking[None]:
        """The greatest loads that keep the constraints, of the best configurations."""
        yield from refine_best(self._spec, self.history)

    def merit(self, point: Point) -> Merit:
        """How good a point is by its best measurement."""
        return self.history.merit(self._best(point))

    def best(self) -> Point | None:
        """The best point measured, None without one."""
        measured = [point for point in self._points if self._best(point) is not None]
        return max(measured, key=self.merit, default=None)

    @property
    def tried(self) -> Collection[Point]:
        """The points that were measured, in their order."""
        return self._points.keys()

    def name(self, point: Point) -> str:
        """The name of a point's variant."""
        return self._variant(point).name

    def _variant(self, point: Point) -> Variant:
        if point not in self._points:
            self._points[point] = variant = self.grid.variant(point)
            self.history.decide(self.grid.describe(point), variant.name)
        return self._points[point]

    def _best(self, point: Point) -> Measurement | None:
        """The best measurement of a point's variant with the point's batch sizes."""
        if point not in self._points:
            return None
        sizes = self.grid.batch_sizes(point)
        measured = self.history.of(self._points[point].name)
        fitting = (each for each in measured if each.load.batch_sizes == sizes)
        return max(fitting, key=self.history.merit, default=None)

    def _best_of(self, variant: Variant, ladder: Ladder, step: int) -> Asking[Measurement | None]:
        """The best of all loads, where each is to be measured, or the load climbed from this step."""
        if not self._every:
            return (yield from climb(variant, ladder, self.history, step))
        found: list[Measurement] = []
        for each in range(len(ladder)):
            measured = yield from measure(variant, ladder, each)
            found += [] if measured is None else [measured]
        return max(found, key=self.history.merit, default=None)

    @property
    def _default_needs(self) -> list[int]:
        facts = [member.facts for member in self._spec.members] or [self._spec.facts]
        return [2 * each.instances * max(1, each.max_batch_size) for each in facts]

    def _unfitting(self, batch_sizes: Sequence[int]) -> str:
        """Why the default cannot be asked with these batch sizes."""
        spec = self._spec
        facts = [m.facts for m in spec.members] if self.grid.together else [spec.facts]
        for each, size in zip(facts, batch_sizes, strict=True):
            if size > max(1, each.max_batch_size):
                return f"batch size {size} left out: max_batch_size of {each.model} is {each.max_batch_size}"
        return ""


def measure(variant: Variant, ladder: Ladder, step: int) -> Asking[Measurement | None]:
    """The measurement at a step of the ladder, None where it failed."""
    outcome = yield Trial(variant=variant, load=ladder.at(step))
    if isinstance(outcome, Measurement) and outcome.throughput > 0:
        return outcome
    return None


def climb(variant: Variant, ladder: Ladder, history: History, step: int) -> Asking[Measurement | None]:
    """Measure at this step of the ladder, then above and below it while that is better.

    Returns the best measurement of the configuration, None where nothing could be measured.
    """
    start = yield from measure(variant, ladder, step)
    if start is None:
        history.decide(f"stopped: {ladder.at(step)} could not be measured", variant.name)
        return None
    best = start
    if history.merit(start)[0]:
        best = yield from _on(variant, ladder, history, range(step + 1, len(ladder)), start)
    if best is start and _may_be_better_below(history, start):
        best = yield from _on(variant, ladder, history, range(step - 1, -1, -1), start)
    history.decide(f"best at {best.load}: {rounded(best.throughput)} infer/s", variant.name)
    return best


def _on(
    variant: Variant, ladder: Ladder, history: History, steps: range, best: Measurement
) -> Asking[Measurement]:
    for step in steps:
        there = yield from measure(variant, ladder, step)
        if there is None:
            break
        better = is_step(history.merit(best), history.merit(there))
        best = max(best, there, key=history.merit)
        if not better:
            break
    return best


def is_step(before: Merit, after: Merit) -> bool:
    """Return whether the second is better by enough to go on in its direction."""
    if before[0] != after[0]:
        return after[0]
    if not before[0]:
        return after[1] > before[1]
    return after[1] - before[1] > WORTH_A_STEP


def _may_be_better_below(history: History, start: Measurement) -> bool:
    """Less load gives no more throughput, unless the server chokes; it helps latency and constraints."""
    tags = {objective.tag for objective in history.goals.all_objectives}
    return tags != {"perf_throughput"} or not history.merit(start)[0]
