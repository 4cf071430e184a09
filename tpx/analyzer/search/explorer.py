"""What the strategies that jump have in common: a grid, loads where they are expected, and what is known."""

from collections.abc import Collection, Sequence

from tpx.analyzer.results.measurement import Decision, Measurement, Variant
from tpx.analyzer.search.axes import open_grid
from tpx.analyzer.search.climb import climb, measure
from tpx.analyzer.search.known import Asking, Known, Merit
from tpx.analyzer.search.ladder import Ladder
from tpx.analyzer.search.question import Question
from tpx.analyzer.search.refine import refine_best
from tpx.analyzer.search.space import Grid, Point


class Explorer:
    """Measures points of a grid and remembers how good they are."""

    def __init__(self, question: Question, known: Known, *, every_listed: bool = False) -> None:
        """With `every_listed` each configuration is measured under all loads that the user listed."""
        self.grid: Grid = open_grid(question)
        self.loads = question.space.loads
        self.known = known
        self.decisions: list[Decision] = []
        self._question = question
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

    def decide(self, text: str, variant: str = "") -> None:
        """A line of the search trace."""
        self.decisions.append(Decision(variant=variant, text=text))

    def default(self) -> Asking[None]:
        """The default configuration, its load climbed with every batch size that it takes."""
        expected = 1 if self.loads.kind == "request_rate" else self.default_in_flight
        for sizes in self.grid.client_batches:
            fault = self._unfitting(sizes)
            if fault:
                self.decide(fault, self.grid.default.name)
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
        best = [self.known.best(variant.name) for variant in self.known.variants]
        return max((m.throughput / m.load.batch_size for m in best if m is not None), default=1.0)

    def climbed(self, point: Point) -> Asking[Measurement | None]:
        """A point at its best load: from the best that is known of it, or from where it is expected."""
        variant, ladder = self._variant(point), self.grid.ladder(self.loads, point)
        known = self._best(point)
        wanted = known.load.value if known else self.expected(point)
        return (yield from self._best_of(variant, ladder, ladder.nearest(wanted)))

    def refined(self) -> Asking[None]:
        """The greatest loads that keep the constraints, of the best configurations."""
        yield from refine_best(self.loads, self.known, self._question.limits, self.decisions)

    def merit(self, point: Point) -> Merit:
        """How good a point is by its best measurement."""
        return self.known.merit(self._best(point))

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
            self.decide(self.grid.describe(point), variant.name)
        return self._points[point]

    def _best(self, point: Point) -> Measurement | None:
        """The best measurement of a point's variant with the point's batch sizes."""
        if point not in self._points:
            return None
        sizes = self.grid.batch_sizes(point)
        measured = self.known.of(self._points[point].name)
        fitting = (each for each in measured if each.load.batch_sizes == sizes)
        return max(fitting, key=self.known.merit, default=None)

    def _best_of(self, variant: Variant, ladder: Ladder, step: int) -> Asking[Measurement | None]:
        """The best of all loads, where each is to be measured, or the load climbed from this step."""

        def decide(text: str) -> None:
            self.decide(text, variant.name)

        if not self._every:
            return (yield from climb(variant, ladder, self.known, step, decide))
        found: list[Measurement] = []
        for each in range(len(ladder)):
            measured = yield from measure(variant, ladder, each)
            found += [] if measured is None else [measured]
        return max(found, key=self.known.merit, default=None)

    @property
    def _default_needs(self) -> list[int]:
        facts = [member.facts for member in self._question.members] or [self._question.facts]
        return [2 * each.instances * max(1, each.max_batch_size) for each in facts]

    def _unfitting(self, batch_sizes: Sequence[int]) -> str:
        """Why the default cannot be asked with these batch sizes."""
        question = self._question
        facts = [m.facts for m in question.members] if self.grid.together else [question.facts]
        for each, size in zip(facts, batch_sizes, strict=True):
            if size > max(1, each.max_batch_size):
                return f"batch size {size} left out: max_batch_size of {each.model} is {each.max_batch_size}"
        return ""
