"""What the strategies that jump have in common: a grid, loads where they are expected, and what is known."""

from collections.abc import Collection

from tpx.analyzer.results.measurement import Decision, Measurement, Variant
from tpx.analyzer.search.axes import open_grid
from tpx.analyzer.search.climb import climb, measure
from tpx.analyzer.search.known import Asking, Known, Merit
from tpx.analyzer.search.question import Question
from tpx.analyzer.search.refine import refine_best
from tpx.analyzer.search.space import Grid, Point


class Explorer:
    """Measures points of a grid and remembers how good they are."""

    def __init__(self, question: Question, known: Known) -> None:
        self.grid: Grid = open_grid(question)
        self.loads = question.space.loads
        self.known = known
        self.decisions: list[Decision] = []
        self._question = question
        self._points: dict[Point, Variant] = {}

    @property
    def default_in_flight(self) -> int:
        """Requests that keep every instance of the default busy with full batches, twice."""
        facts = [member.facts for member in self._question.members] or [self._question.facts]
        return sum(2 * each.instances * max(1, each.max_batch_size) for each in facts)

    def decide(self, text: str, variant: str = "") -> None:
        """A line of the search trace."""
        self.decisions.append(Decision(variant=variant, text=text))

    def default(self) -> Asking[Measurement | None]:
        """The default configuration, its load climbed."""
        expected = 1 if self.loads.kind == "request_rate" else self.default_in_flight
        ladder = self.grid.shared(self.loads, [1.0] * max(1, len(self._question.members)))
        default = self.grid.default
        return (
            yield from climb(
                default, ladder, self.known, ladder.nearest(expected), self._saying(default.name)
            )
        )

    def once(self, point: Point, factor: float = 1.0) -> Asking[Measurement | None]:
        """One measurement of a point, at its expected load times a factor."""
        ladder = self.grid.ladder(self.loads, point)
        step = ladder.nearest(self.expected(point) * factor)
        return (yield from measure(self._variant(point), ladder, step))

    def expected(self, point: Point) -> float:
        """The load at which a point is expected to be best; of rates, the greatest that was reached yet."""
        if self.loads.kind == "concurrency":
            return self.grid.expected(point)
        best = [self.known.best(variant.name) for variant in self.known.variants]
        return max((m.throughput / m.load.batch_size for m in best if m is not None), default=1.0)

    def climbed(self, point: Point) -> Asking[Measurement | None]:
        """A point at its best load: from the best that is known of it, or from where it is expected."""
        variant, ladder = self._variant(point), self.grid.ladder(self.loads, point)
        known = self.known.best(variant.name)
        wanted = known.load.value if known else self.expected(point)
        return (
            yield from climb(variant, ladder, self.known, ladder.nearest(wanted), self._saying(variant.name))
        )

    def refined(self) -> Asking[None]:
        """The greatest loads that keep the constraints, of the best configurations."""
        yield from refine_best(self.loads, self.known, self._question.limits, self.decisions)

    def merit(self, point: Point) -> Merit:
        """How good a point is by its best measurement."""
        variant = self._points.get(point)
        return self.known.merit(self.known.best(variant.name) if variant else None)

    def best(self) -> Point | None:
        """The best point measured, None without one."""
        measured = [p for p in self._points if self.known.of(self._points[p].name)]
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

    def _saying(self, variant: str) -> "_Saying":
        return _Saying(self, variant)


class _Saying:
    def __init__(self, explorer: Explorer, variant: str) -> None:
        self._explorer = explorer
        self._variant = variant

    def __call__(self, text: str) -> None:
        self._explorer.decide(text, self._variant)
