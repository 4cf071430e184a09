"""A chart described by its values, without positions: axes, lines of dots, bars and marks."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from tpx.report.scales import Scale, linear_scale, scale_for

FLAT_SHARE = 0.02
"""Lines whose values differ by less than this share of the maximum are flat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """A measurement as a point of a line."""

    x: float
    y: float
    title: str
    """Tooltip."""
    label: str = ""
    """Text next to the dot, omitted if there is no room."""
    stable: bool = True
    """False for measurements that did not become stable; their markers are hollow."""
    apart: bool = False
    """True if not joined to the previous dot."""
    context: bool = False
    """True for background dots, drawn small and faint."""
    radius_px: float = 0.0
    """Radius of a round marker; 0 uses the line's marker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A series of dots with a name in the legend."""

    name: str
    dots: tuple[Dot, ...]
    marked: bool = True
    """Draw markers at the dots."""
    spread: tuple[tuple[float, float], ...] = ()
    """Confidence intervals of the dots, if known."""
    shape: Literal["joined", "steps", "dots"] = "joined"
    """Connection of the dots: straight lines, steps that continue to the right edge, or none."""
    faint: bool = False
    """Draw lighter, behind the other lines."""

    def heights(self) -> Iterator[float]:
        """Yield every value that the y axis must cover."""
        for dot in self.dots:
            yield dot.y
        for ends in self.spread:
            yield from ends


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A vertical bar over the x values from `low` to `high`."""

    low: float
    high: float
    value: float
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A dashed line with a text at a value of the y axis, or of the x axis if `upright`."""

    value: float
    text: str
    upright: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """Title and scale of an axis; without a `scale` it fits the values."""

    title: str
    scale: Scale | None = None
    auto: bool = False
    """Use a logarithmic scale if the values span more than a factor of eight; otherwise start at zero."""

    def fitted(self, values: list[float]) -> Scale:
        """Return the scale of the axis for these values."""
        if self.scale is not None:
            return self.scale
        return scale_for(values) if self.auto else linear_scale(values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Lines, bars and marks between two axes."""

    key: str
    """Key that makes ids unique within a page."""
    title: str
    description: str
    x: Axis
    y: Axis
    lines: tuple[Line, ...] = ()
    background: tuple[Line, ...] = ()
    """Thin lines behind the others, without markers or names."""
    bars: tuple[Bar, ...] = ()
    marks: tuple[Mark, ...] = ()
    label_name: str = ""
    """Quantity shown by the labels next to dots."""
    context_name: str = ""
    """Legend text for background dots."""
    size: Literal["tall", "low", "half"] = "tall"
    scales: tuple[Scale, Scale] = field(init=False)
    """Scales of the x and the y axis."""

    @property
    def is_flat(self) -> bool:
        """True if the lines are practically constant, so that a sentence says as much as the chart."""
        heights = [dot.y for line in self.lines for dot in line.dots]
        return not self.bars and max(heights) - min(heights) <= FLAT_SHARE * abs(max(heights))

    def __post_init__(self) -> None:
        every = (*self.lines, *self.background)
        across = [dot.x for line in every for dot in line.dots]
        across += [end for bar in self.bars for end in (bar.low, bar.high)]
        up = [value for line in every for value in line.heights()] + [bar.value for bar in self.bars]
        across += [mark.value for mark in self.marks if mark.upright]
        up += [mark.value for mark in self.marks if not mark.upright]
        object.__setattr__(self, "scales", (self.x.fitted(across), self.y.fitted(up)))
