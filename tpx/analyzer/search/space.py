"""The search space of the strategies that move through a grid: dimensions with choices, points, and
their variants.
"""

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tpx.analyzer.results.measurement import LoadPoint, Models, Variant, group_name, together
from tpx.analyzer.search.ranges import LoadSpace
from tpx.analyzer.search.spec import PARALLEL, SearchSpec
from tpx.analyzer.variants import merge
from tpx.errors import UsageError

CLIENT_BATCH = "client batch size"
"""Dimension of the client's batch size, which changes no configuration."""
Point = tuple[int, ...]
"""Index of the choice in each dimension."""
Ladder = Sequence[LoadPoint]
"""Ascending loads, including the one that the formula gives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One value of a dimension and its change to the model's configuration."""

    label: str
    delta: Mapping[str, Any] = field(default_factory=dict)
    amount: float = 1.0
    """Numeric value, if there is one: instances, batch size, threads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimension:
    """One aspect that varies; adjacent choices of an ordered dimension perform similarly."""

    name: str
    """Name such as `instances`, `max_batch_size` or `threads`."""
    choices: tuple[Choice, ...]
    model: str = ""
    """Model whose configuration it changes, if the search has members; otherwise empty."""
    ordered: bool = True


def loads_of(spec: SearchSpec) -> dict[str, LoadSpace]:
    """Return the loads of each model measured together; otherwise one model's loads by an empty name."""
    own = {member.facts.model: member.loads for member in spec.members if member.loads is not None}
    return own or {"": spec.space.loads}


class SearchGrid:
    """All points of some dimensions, those that may be tried, and their variants.

    Variants are named in the order of requests, as in Model Analyzer; no change is the default.
    """

    def __init__(self, spec: SearchSpec, dimensions: Sequence[Dimension]) -> None:
        """Raises UsageError if a dimension has no choices."""
        self.model = spec.facts.model
        for dimension in dimensions:
            if not dimension.choices:
                raise UsageError(f"nothing to choose for {dimension.name} of model '{self.model}'")
        extras = spec.space.extras
        self.dimensions = tuple(dimensions)
        self._axes = {
            (dimension.name, dimension.model): i for i, dimension in reversed([*enumerate(dimensions)])
        }
        self._refusals: dict[Point, str] = {}
        self.members = tuple(member.facts.model for member in spec.members)
        """Models that are varied instead of the model itself."""
        has_threads = any(dimension.name == "threads" for dimension in dimensions)
        self._cores = extras.processors if has_threads else None
        self._space, self._loads = spec.space.loads, loads_of(spec)
        self._defaults = spec.defaults
        self._names = {
            model: Names(spec.models if model == self.model else (model,), spec.named, default)
            for model, default in self._defaults.items()
        }

    @property
    def size(self) -> int:
        """Number of points, including those that may not be tried."""
        return math.prod(len(dimension.choices) for dimension in self.dimensions)

    def points(self) -> Iterator[Point]:
        """Return every point that may be tried; the last dimension varies fastest."""
        ranges = (range(len(dimension.choices)) for dimension in self.dimensions)
        return (point for point in itertools.product(*ranges) if not self.refusal(point))

    def around(self, home: Point, radius: int) -> list[Point]:
        """Return the other points within the radius that may be tried, in the order of all points."""
        near: list[tuple[Point, int]] = [((), 0)]
        for place, dimension in zip(home, self.dimensions, strict=True):
            steps = [(other, (other - place) ** 2) for other in range(len(dimension.choices))]
            near = [
                ((*point, other), far + further)
                for point, far in near
                for other, further in steps
                if far + further <= radius**2
            ]
        return [point for point, far in near if far and not self.refusal(point)]

    def refusal(self, point: Point) -> str:
        """Return why a point is not worth measuring; empty if it is."""
        if point not in self._refusals:
            self._refusals[point] = self._refuse(point)
        return self._refusals[point]

    def _refuse(self, point: Point) -> str:
        for model, sent in zip(self._loads, self.batch_sizes(point), strict=True):
            taken = self.amount(point, "max_batch_size", model, absent=sent)
            if sent > taken:
                return f"requests of {sent} inferences do not fit max_batch_size {taken:g}"
        for model in self.members or ("",):
            instances = self.amount(point, "instances", model)
            threads = self.amount(point, "threads", model)
            # instances of one thread each may outnumber the cores, unless they are engines, which fill them
            several = instances > 1 if self._engine_sequences(point, model) else threads > 1
            if self._cores and several and instances * threads > self._cores:
                each = f"{instances:g} instances with {threads:g} threads each"
                return f"{each} are more than the {self._cores} cores"
            # the first choice leaves the batcher unchanged
            batches = self.amount(point, "batching", model)
            plain = self.amount((0,) * len(point), "batching", model)
            if batches != plain and self.amount(point, "max_batch_size", model) <= 1:
                return "batches of one gain nothing from a queue delay, nor from having no batcher"
        return ""

    def amount(self, point: Point, name: str, model: str = "", absent: float = 1.0) -> float:
        """Return the amount chosen in a dimension, or `absent` if the grid lacks it."""
        axis = self._axes.get((name, model))
        return absent if axis is None else self.dimensions[axis].choices[point[axis]].amount

    def _engine_sequences(self, point: Point, model: str) -> float:
        return max(self.amount(point, name, model, absent=0.0) for name in PARALLEL)

    def batch_sizes(self, point: Point) -> tuple[int, ...]:
        """Return the client batch size of each model under load."""
        return tuple(
            int(self.amount(point, CLIENT_BATCH, model, absent=loads.batch_sizes[0]))
            for model, loads in self._loads.items()
        )

    @property
    def client_batches(self) -> list[tuple[int, ...]]:
        """All possible values of `batch_sizes`."""
        return list(itertools.product(*(loads.batch_sizes for loads in self._loads.values())))

    def in_flight(self, point: Point) -> tuple[int, ...]:
        """Return the requests in flight that fill two batches per instance of each member, or the model.

        An engine of a language model is filled by the sequences that it computes together.
        """
        return tuple(
            int(
                self.amount(point, "instances", model)
                * (self._engine_sequences(point, model) or 2 * self.amount(point, "max_batch_size", model))
            )
            for model in self.members or ("",)
        )

    def ladder(self, point: Point) -> Ladder:
        """Return the loads of a point's variant."""
        return self.shared(self.in_flight(point), self.batch_sizes(point))

    def shared(self, needed: Sequence[int], batch_sizes: Sequence[int]) -> Ladder:
        """Return the loads, shared by need among models measured together; all combinations of listed loads.

        `needed` are the requests in flight that keep each model's instances busy, by the formula.
        """
        space, spaces = self._space, list(self._loads.values())
        combined: list[tuple[int, ...]]
        if len(spaces) == 1:
            combined = [(value,) for value in space.around(self.whole(needed))]
        elif all(each.listed for each in spaces):
            combined = list(itertools.product(*(each.values for each in spaces)))
        else:
            parts, total = list(zip(spaces, needed, strict=True)), sum(needed)
            combined = [tuple(own.closest(v * need / total) for own, need in parts) for v in space.values]
            if space.kind == "concurrency":
                combined.append(tuple(own.closest(own.within(need)) for own, need in parts))
        loads = [
            together(
                [
                    LoadPoint(kind=own.kind, value=value, batch_size=size)
                    for own, value, size in zip(spaces, values, batch_sizes, strict=True)
                ]
            )
            for values in dict.fromkeys(combined)
        ]
        return sorted(loads, key=lambda load: load.value)

    def whole(self, needed: Sequence[int]) -> int:
        """Return the total load; members of a single model are limited by the smallest need."""
        return sum(needed) if self.together else min(needed)

    def expected(self, point: Point) -> int:
        """Return the load at which the variant is expected to perform best."""
        return self.whole(self.in_flight(point))

    @property
    def together(self) -> bool:
        """True if the members are models with their own loads, not parts of one model."""
        return "" not in self._loads

    @property
    def default(self) -> Variant:
        """The variant without changes."""
        others = [self._names[m].variant({}) for m in self.members if m != self.model]
        return self._names[self.model].variant({}, others)

    def neighbours(self, point: Point) -> list[Point]:
        """Return the allowed points that differ in one dimension: by one step, by any if unordered."""
        found = []
        for axis, dimension in enumerate(self.dimensions):
            index = point[axis]
            count = len(dimension.choices)
            others = (index + 1, index - 1) if dimension.ordered else range(count)
            for other in others:
                neighbor = (*point[:axis], other, *point[axis + 1 :])
                if 0 <= other < count and other != index and not self.refusal(neighbor):
                    found.append(neighbor)
        return found

    def variant(self, point: Point) -> Variant:
        """Return the variant of a point."""
        others = [
            self._names[m].variant(self._combine_delta(point, m)) for m in self.members if m != self.model
        ]
        own = self._combine_delta(point, self.model if self.members else "")
        default = self._defaults[self.model]
        if others and default.get("ensemble_scheduling") and default.get("max_batch_size"):
            # an ensemble's max_batch_size must not exceed its steps'
            merged = (merge(self._defaults[member.model], member.delta) for member in others)
            own = {"max_batch_size": min(int(each.get("max_batch_size", 0)) for each in merged)} | own
        return self._names[self.model].variant(own, others)

    def describe(self, point: Point) -> str:
        """Return `instances 2, max_batch_size 8`."""
        return ", ".join(
            f"{d.model + ' ' if d.model else ''}{d.name} {d.choices[place].label}"
            for place, d in zip(point, self.dimensions, strict=True)
        )

    def _combine_delta(self, point: Point, model: str) -> dict[str, Any]:
        delta: Any = {}
        for place, dimension in zip(point, self.dimensions, strict=True):
            if dimension.model == model:
                delta = combine(delta, dimension.choices[place].delta)
        return dict(delta)


class Names:
    """Numbers variants by their changes: the same change gets the same number, regardless of key order."""

    def __init__(
        self, models: Models, named: Sequence[Variant] = (), default: Mapping[str, Any] | None = None
    ) -> None:
        """`named` have names already, with their members; a change that keeps `default` has no number."""
        self._models = models
        self._default = default
        self._prefix = f"{group_name(models)}_config_"
        self._known = {
            _make_key(part.members, part.delta): part.name.removeprefix(self._prefix)
            for variant in named
            for part in (variant, *variant.members)
            if part.models == models and not part.is_default
        }
        self._taken = set(self._known.values())

    def variant(self, delta: Mapping[str, Any], members: Sequence[Variant] = ()) -> Variant:
        """Return the variant with this change; `members` are the variants of its parts."""
        if self._default is not None and merge(self._default, delta) == self._default:
            delta = {}
        name, key = "default", _make_key(members, delta)
        if delta or not all(member.is_default for member in members):
            if key not in self._known:
                free = (str(number) for number in itertools.count(len(self._known)))
                self._known[key] = next(number for number in free if number not in self._taken)
            name = self._known[key]
        return Variant(
            models=self._models, name=f"{self._prefix}{name}", delta=dict(delta), members=tuple(members)
        )


def _make_key(members: Sequence[Variant], delta: Mapping[str, object]) -> str:
    return ",".join(member.name for member in members) + (json.dumps(delta, sort_keys=True) if delta else "")


def combine(first: Any, second: Any) -> Any:
    """Combine two changes: the second takes precedence, and keys that it removes stay as None."""
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        kept = {key: value for key, value in first.items() if key not in second}
        return kept | {
            key: combine(first[key], value) if key in first else value for key, value in second.items()
        }
    return merge(first, second) if isinstance(first, list) else second
