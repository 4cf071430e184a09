"""Metrics defined by models: families and series, on the event loop.

Families and series are reference-counted and leave the metrics page with the last reference.
"""

import math
import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Final, Literal, get_args

import msgspec

from tpx.errors import AlreadyExists, InvalidRequest

Kind = Literal["counter", "gauge", "histogram"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)

_LABEL = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")

Labels = tuple[tuple[str, str], ...]


class CustomSeries:
    """The value of one label set, or its distribution over `bounds`."""

    __slots__ = ("bounds", "counts", "references", "sum", "value")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.references = 0
        self.value = 0.0
        self.bounds = tuple(map(float, bounds))
        self.counts = [0] * (len(self.bounds) + 1)
        """Observations per bucket; the last one is above all bounds."""
        self.sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Add a number of equal observations."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.sum += value * count


class CustomFamily(msgspec.Struct, eq=False):
    """Series with one name and kind."""

    name: str
    help: str
    kind: Kind
    references: int = 0
    series: dict[Labels, CustomSeries] = msgspec.field(default_factory=dict)


class CustomMetrics:
    """All custom metrics, by name."""

    def __init__(self) -> None:
        self.families: dict[str, CustomFamily] = {}

    def hold_family(self, name: str, description: str, kind: Kind) -> CustomFamily:
        """Return a new family, or the existing one of this name and kind with its description.

        Raises InvalidRequest for an invalid name, AlreadyExists if the name has another kind.
        """
        family = self.families.get(name)
        if family is None:
            proper = name.isascii() and name.replace(":", "_").isidentifier()
            if not proper or name.startswith("nv_"):
                raise InvalidRequest(
                    f"Invalid metric name: '{name}' must be letters, digits, _ and :, begin with no digit "
                    "and not with nv_, which the server's own have"
                )
            family = self.families[name] = CustomFamily(name, description, kind)
        elif family.kind != kind:
            raise AlreadyExists(f"metric family '{name}' exists already, with kind {family.kind}")
        family.references += 1
        return family

    def drop_family(self, family: CustomFamily) -> None:
        """Release one reference."""
        family.references -= 1
        if not family.references:
            self.families.pop(family.name, None)

    def hold_series(
        self, family: CustomFamily, labels: Mapping[str, str], bounds: Sequence[float]
    ) -> tuple[Labels, CustomSeries]:
        """Return the series of these labels; a histogram has an implicit last bound of infinity.

        Raises InvalidRequest for invalid labels or bounds.
        """
        for name in labels:
            if not _LABEL.fullmatch(name):
                raise InvalidRequest(
                    f"Invalid label name: '{name}' must be letters, digits and _, begin with no digit and "
                    "not with __"
                )
        if family.kind == "histogram":
            bounds = bounds[:-1] if bounds and bounds[-1] == math.inf else bounds
            if list(bounds) != sorted(set(bounds)) or not all(map(math.isfinite, bounds)):
                raise InvalidRequest(
                    f"Bucket Boundaries must be strictly sorted: those of '{family.name}' are {list(bounds)}"
                )
        elif bounds:
            raise InvalidRequest(f"only a histogram has buckets; '{family.name}' is a {family.kind}")
        key = tuple(sorted(labels.items()))
        series = family.series.setdefault(key, CustomSeries(bounds))
        series.references += 1
        family.references += 1
        return key, series

    def drop_series(self, family: CustomFamily, key: Labels) -> None:
        """Release one reference."""
        series = family.series[key]
        series.references -= 1
        if not series.references:
            del family.series[key]
        self.drop_family(family)
