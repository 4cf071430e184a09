"""A chart in the values that it shows, without positions: axes, lines of dots, bars and marks."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from tpx.report.scales import Scale, linear_scale, scale_for

FLAT_SHARE = 0.02
"""Lines whose values differ by less than this share of the greatest are flat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """A measurement as a point of a line."""

    x: float
    y: float
    title: str
    """Shown where a pointer rests on it."""
    label: str = ""
    """Written beside it where there is room."""
    stable: bool = True
    """Markers of measurements that did not become stable are hollow."""
    apart: bool = False
    """Not joined with the dot before."""
    context: bool = False
    """Drawn small and faint, because others are what the chart is about."""
    radius_px: float = 0.0
    """Radius of a round marker; 0 for the marker of the line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Dots with a name in the legend."""

    name: str
    dots: tuple[Dot, ...]
    marked: bool = True
    """The dots have markers."""
    spread: tuple[tuple[float, float], ...] = ()
    """Ends of the dots' intervals, where they are known."""
    shape: Literal["joined", "steps", "dots"] = "joined"
    """How the dots are joined: by straight lines, by steps that go on to the right end, or not at all."""
    faint: bool = False
    """Context: drawn behind the others, and lighter."""

    def heights(self) -> Iterator[float]:
        """Yield every value that the y axis must reach."""
        for dot in self.dots:
            yield dot.y
        for ends in self.spread:
            yield from ends


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """An upright bar over the x values from `low` to `high`."""

    low: float
    high: float
    value: float
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A dashed line at a value of the y axis, or with `upright` of the x axis, and its text."""

    value: float
    text: str
    upright: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """Title and scale of an axis; without a `scale` it fits the values drawn along it."""

    title: str
    scale: Scale | None = None
    auto: bool = False
    """Logarithmic where the values span more than a factor of eight; else from zero."""

    def fitted(self, values: list[float]) -> Scale:
        """Return the scale of the axis."""
        if self.scale is not None:
            return self.scale
        return scale_for(values) if self.auto else linear_scale(values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Lines, bars and marks between two axes."""

    key: str
    """Makes the ids in a page unique."""
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
    """Quantity that the labels beside dots give."""
    context_name: str = ""
    """The legend's words for dots that are context."""
    size: Literal["tall", "low", "half"] = "tall"
    scales: tuple[Scale, Scale] = field(init=False)
    """Scales of the x and the y axis."""

    @property
    def is_flat(self) -> bool:
        """True where the lines stay at one height, so that a sentence says as much as the chart."""
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
