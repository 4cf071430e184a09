"""A chart described by its values, without positions: scales, styles, axes, lines of dots, marks and bars."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Values from `low` to `high`, linear or logarithmic, with tick marks."""

    low: float
    high: float
    logarithmic: bool
    marks: tuple[float, ...]
    labels: tuple[str, ...] = ()
    """Texts of the marks; if empty, the formatted marks."""

    def share(self, value: float) -> float:
        """Return the position of a value, 0 at the low end and 1 at the high end."""
        if self.logarithmic:
            return math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def named_marks(self) -> Iterator[tuple[float, str]]:
        """Yield each mark with its text."""
        return zip(self.marks, self.labels or map(format_mark, self.marks), strict=True)


def linear_scale(values: Sequence[float], *, count: int = 5) -> Scale:
    """Return a scale from zero to a round value above the maximum, with about `count` round steps."""
    rough = (max(values, default=1.0) or 1.0) / count
    magnitude = 10.0 ** math.floor(math.log10(rough))
    step = next(each * magnitude for each in (1, 2, 2.5, 5, 10) if each * magnitude >= rough * (1 - 1e-9))
    steps = max(1, math.ceil(max(values, default=1.0) / step - 1e-9))
    marks = tuple(step * i for i in range(steps + 1))
    return Scale(low=0.0, high=marks[-1], logarithmic=False, marks=marks)


def log_scale(values: Sequence[float]) -> Scale:
    """Return a logarithmic scale that covers the values, with ends and marks at 1, 2, 5, 10 ..."""
    low, high = min(values), max(values)
    decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    candidates = [factor * 10.0**decade for decade in decades for factor in (1, 2, 5)]
    first = max(c for c in candidates if c <= low * (1 + 1e-9))
    last = min((c for c in candidates if c >= high * (1 - 1e-9)), default=candidates[-1])
    marks = tuple(c for c in candidates if first <= c <= last)
    if len(marks) < 2:
        return linear_scale(values)
    return Scale(low=first, high=last, logarithmic=True, marks=marks)


def scale_for(values: Sequence[float]) -> Scale:
    """Return a logarithmic scale for values that span more than a factor of eight, otherwise a linear one."""
    if values and min(values) > 0 and max(values) / min(values) > 8:
        return log_scale(values)
    return linear_scale(values)


def format_mark(value: float) -> str:
    """Return `0`, `0.5`, `20`, `1,500`, without superfluous digits."""
    return f"{value:,.0f}" if value == round(value) else f"{value:.6f}".rstrip("0")


STYLES = 7
"""Number of styles of lines: colors with their markers."""

COLORS = (
    *("#0072b2", "#d55e00", "#009e73", "#b8578f", "#9a6b00", "#2b8fcf", "#4d4d4d"),
    *("#b3261e", "#8a949f", "#c3cad3"),
)
"""Colors on white, those of lines first, then those that only bars have; report.css has the dark ones."""

TEXT_COLORS = ("#00619a", "#b24e00", "#00795a", "#a3457b", "#855c00", "#1f79b3", "#4d4d4d")
"""Darker variants, because small text needs more contrast than a line."""

_PLUS: tuple[tuple[float, float], ...] = (
    (-1.5, -5), (1.5, -5), (1.5, -1.5), (5, -1.5), (5, 1.5), (1.5, 1.5),
    (1.5, 5), (-1.5, 5), (-1.5, 1.5), (-5, 1.5), (-5, -1.5), (-1.5, -1.5),
)  # fmt: skip


def marker(style: int, x: float, y: float, radius_px: float = 0) -> str:
    """Return the path of a marker: circle, square, triangle, diamond, cross, plus, inverted triangle.

    With a radius it is a circle in every style.
    """
    outlines: tuple[tuple[tuple[float, float], ...], ...] = (
        (),
        ((-3.6, -3.6), (3.6, -3.6), (3.6, 3.6), (-3.6, 3.6)),
        ((0, -4.8), (4.4, 3.4), (-4.4, 3.4)),
        ((0, -5.2), (5.2, 0), (0, 5.2), (-5.2, 0)),
        tuple((px * 0.707 - py * 0.707, px * 0.707 + py * 0.707) for px, py in _PLUS),
        _PLUS,
        ((0, 4.8), (4.4, -3.4), (-4.4, -3.4)),
    )
    outline = () if radius_px else outlines[style % STYLES]
    if not outline:
        r = radius_px or 4
        return f"M{x - r:g},{y:g} a{r:g},{r:g} 0 1,0 {2 * r:g},0 a{r:g},{r:g} 0 1,0 {-2 * r:g},0 Z"
    return "M" + " L".join(f"{round(x + dx, 1):g},{round(y + dy, 1):g}" for dx, dy in outline) + " Z"


SPREAD_SHOWN = 2
"""Height up to which intervals are drawn, relative to the highest point; higher ones are cut off."""
FLAT_SHARE = 0.02
"""Lines whose values differ by less than this share of the maximum are flat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """A measurement as a point of a line."""

    x: float
    y: float
    title: str
    """Tooltip."""
    interval: tuple[float, float] | None = None
    """Ends of the confidence interval of y, if known."""
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
    shape: Literal["joined", "steps", "dots"] = "joined"
    """Connection of the dots: straight lines, steps that continue to the right edge, or none."""
    faint: bool = False
    """Draw lighter, behind the other lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A dashed line with a text at a value of the y axis, or of the x axis if `upright`."""

    value: float
    text: str
    upright: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BarPart:
    """A part of a bar, from `start` to `end` on the x axis."""

    color: int
    """Index in `COLORS`."""
    start: float
    end: float
    title: str
    """Tooltip."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A horizontal bar of parts that lie end to end."""

    name: str
    parts: tuple[BarPart, ...]
    total: str
    """Text at the bar's end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """Title and scale of an axis; without a `scale` it fits the values."""

    title: str
    scale: Scale | None = None
    auto: bool = False
    """Use a logarithmic scale if the values span more than a factor of eight; otherwise start at zero."""

    def fitted(self, values: list[float]) -> Scale:
        """Return the scale of the axis for these values."""
        return self.scale or (scale_for if self.auto else linear_scale)(values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Lines and marks between two axes, or bars over one."""

    kind: ClassVar[str] = "picture"
    title: str
    description: str
    x: Axis
    y: Axis = Axis(title="")
    lines: tuple[Line, ...] = ()
    background: tuple[Line, ...] = ()
    """Thin lines behind the others, without markers or names."""
    marks: tuple[Mark, ...] = ()
    label_name: str = ""
    """Quantity shown by the labels next to dots."""
    context_name: str = ""
    """Legend text for background dots."""
    bars: tuple[Bar, ...] = ()
    part_names: Mapping[int, str] = field(default_factory=dict)
    """Legend texts of the bars' parts by their colors."""
    size: Literal["tall", "low", "half", "bars"] = "tall"
    scales: tuple[Scale, Scale] = field(init=False)
    """Scales of the x and the y axis."""

    @property
    def is_flat(self) -> bool:
        """True if the lines are practically constant, so that a sentence says as much as the chart."""
        heights = [dot.y for line in self.lines for dot in line.dots]
        return max(heights) - min(heights) <= FLAT_SHARE * abs(max(heights))

    def __post_init__(self) -> None:
        every = (*self.lines, *self.background)
        across = [dot.x for line in every for dot in line.dots]
        across += [part.end for bar in self.bars for part in bar.parts]
        up = [dot.y for line in every for dot in line.dots]
        # an interval that says nothing must not press the points to the bottom
        most = SPREAD_SHOWN * max(up, default=0.0)
        up += [min(end, most) for line in every for dot in line.dots for end in dot.interval or ()]
        for mark in self.marks:
            (across if mark.upright else up).append(mark.value)
        object.__setattr__(self, "scales", (self.x.fitted(across), self.y.fitted(up)))
