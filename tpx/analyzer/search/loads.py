"""The loads that configurations are measured under: their space, and the ladder of one configuration's
loads.
"""

import itertools
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from tpx.analyzer.results.measurement import LoadKind, LoadPoint, together
from tpx.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSpace:
    """Loads that each configuration is measured under, deduplicated and ascending."""

    values: tuple[int, ...]
    batch_sizes: tuple[int, ...] = (1,)
    kind: LoadKind = "concurrency"
    until_plateau: bool = True
    """Stop when more load brings no gain; off for loads that the user listed."""
    listed: bool = False
    """True if the user listed the loads, in which case no others are tried."""
    at_most: int | None = None
    """Upper bound of the range that `values` double through; None is the last value."""

    def __post_init__(self) -> None:
        for name, field in ((self.kind, "values"), ("batch size", "batch_sizes")):
            values = sorted(set(getattr(self, field)))
            if not values or values[0] < 1:
                raise UsageError(f"every {name.replace('_', ' ')} must be at least 1: {values}")
            object.__setattr__(self, field, tuple(values))

    def within(self, load: int) -> int:
        """Return the load, clamped to the range."""
        return min(max(load, self.values[0]), self.at_most or self.values[-1])

    def around(self, load: int) -> tuple[int, ...]:
        """Return the values plus the given concurrency; listed values are not extended."""
        if self.listed or self.kind != "concurrency":
            return self.values
        return tuple(sorted({*self.values, self.within(load)}))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadShare:
    """One model's share of a load; the whole load unless several models are measured together."""

    space: LoadSpace
    needed: int
    """Requests in flight that keep its instances busy, by the formula."""
    batch_size: int = 1

    def at(self, wanted: float) -> int:
        """Return the load closest to this one; among listed loads, the least above it, or the last."""
        load = max(1, round(wanted))
        if not self.space.listed:
            return load
        return self.space.values[min(bisect_left(self.space.values, load), len(self.space.values) - 1)]

    def load(self, value: int) -> LoadPoint:
        """Return the load with this value."""
        return LoadPoint(kind=self.space.kind, value=value, batch_size=self.batch_size)


class Ladder:
    """Ascending loads, including the one that the formula gives."""

    def __init__(self, space: LoadSpace, parts: Sequence[LoadShare]) -> None:
        """`space` holds the combined loads of all parts."""
        if len(parts) == 1:
            self._loads = [parts[0].load(value) for value in space.around(parts[0].needed)]
        else:
            self._loads = _combine_loads(space, parts)
        self._values = [load.value for load in self._loads]

    def __len__(self) -> int:
        return len(self._loads)

    def nearest(self, wanted: float) -> int:
        """Return the step of the least load that is at least `wanted`, or else the last step."""
        return min(bisect_left(self._values, wanted), len(self._values) - 1)

    def at(self, step: int) -> LoadPoint:
        """Return the load of a step."""
        return self._loads[step]


def _combine_loads(space: LoadSpace, parts: Sequence[LoadShare]) -> list[LoadPoint]:
    """Return the distinct combined loads; if every model lists its loads, all combinations of them."""
    combined: list[tuple[int, ...]]
    if all(part.space.listed for part in parts):
        combined = list(itertools.product(*(part.space.values for part in parts)))
    else:
        total = sum(part.needed for part in parts)
        combined = [tuple(part.at(value * part.needed / total) for part in parts) for value in space.values]
        if space.kind == "concurrency":
            combined.append(tuple(part.at(part.space.within(part.needed)) for part in parts))
    loads = [
        together([part.load(value) for part, value in zip(parts, values, strict=True)])
        for values in dict.fromkeys(combined)
    ]
    return sorted(loads, key=lambda load: load.value)
