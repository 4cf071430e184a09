"""Positions in pixels of a chart's values within a frame, for `chart.svg.j2` to draw."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from tpx.report.chart import STYLES, Chart, Dot, Line, marker

HEIGHT_PX, CHAR_WIDTH_PX = 12, 6.5

Place = tuple[float, float]
_Box = tuple[float, float, float, float]

_LABEL_PLACES = (
    ("middle", 0.0, -10.0),
    ("middle", 0.0, 19.0),
    ("start", 10.0, 4.0),
    ("end", -10.0, 4.0),
    ("start", 7.0, -7.0),
    ("end", -7.0, -7.0),
    ("start", 7.0, 16.0),
    ("end", -7.0, 16.0),
)
"""Anchor and offset of a label relative to its point, best position first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedLabel:
    """A placed label of a point."""

    x: float
    y: float
    anchor: str
    text: str


class LabelPlacer:
    """Places labels within the edges of a chart without overlaps."""

    def __init__(self, *, left: float, top: float, right: float, bottom: float) -> None:
        self._edges = (left, top, right, bottom)
        self._taken: list[_Box] = []

    def reserve(self, start: Place, end: Place, radius: float = 1) -> None:
        """Keep labels off a line, or off a marker if both ends are the same."""
        (x0, y0), (x1, y1) = start, end
        # small boxes, too close to each other for a label to fit between
        steps = max(1, int(max(abs(x1 - x0), abs(y1 - y0)) / 5))
        middles = [(x0 + (x1 - x0) * i / steps, y0 + (y1 - y0) * i / steps) for i in range(steps + 1)]
        self._taken += [(x - radius, y - radius, x + radius, y + radius) for x, y in middles]

    def place(self, point: Place, text: str) -> PlacedLabel | None:
        """Place a label above, below, right, left or at a corner of a point; return None without room."""
        x, y = point
        width = len(text) * CHAR_WIDTH_PX
        for anchor, dx, dy in _LABEL_PLACES:
            left = x + dx - {"start": 0, "middle": width / 2, "end": width}[anchor]
            box = (left, y + dy - HEIGHT_PX + 2, left + width, y + dy + 1)
            if self._is_within(box) and not any(
                box[0] < other[2] and other[0] < box[2] and box[1] < other[3] and other[1] < box[3]
                for other in self._taken
            ):
                self._taken.append(box)
                return PlacedLabel(x=round(x + dx, 1), y=round(y + dy, 1), anchor=anchor, text=text)
        return None

    def _is_within(self, box: _Box) -> bool:
        left, top, right, bottom = self._edges
        return box[0] >= left and box[1] >= top and box[2] <= right and box[3] <= bottom


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartFrame:
    """The size of a drawing in pixels, and the position of its axes."""

    width: int = 960
    height: int = 470
    left: int = 74
    right: int = 934
    top: int = 20
    bottom: int = 412
    compact: bool = False
    """True for narrow screens, which have the title of the y axis and the names of bars above them."""

    def holding(self, bars: int) -> "ChartFrame":
        """Return the frame, as high as this many bars; of none, as it is."""
        if not bars:
            return self
        bottom = self.top + bars * (COMPACT_ROW_PX if self.compact else ROW_PX)
        return replace(self, bottom=bottom, height=bottom + self.height - self.bottom)


BAR_PX, ROW_PX, COMPACT_ROW_PX = 20, 34, 44
CONTEXT_RADIUS_PX = 2.6

FRAMES = {
    "tall": ChartFrame(),
    "low": ChartFrame(height=300, bottom=242),
    "half": ChartFrame(width=560, height=340, right=534, bottom=282),
    "bars": ChartFrame(left=190, right=890, top=8),
}
COMPACT = {
    "tall": ChartFrame(width=440, height=400, left=70, right=414, top=30, bottom=346, compact=True),
    "low": ChartFrame(width=440, height=280, left=70, right=414, top=30, bottom=226, compact=True),
    "half": ChartFrame(width=440, height=320, left=70, right=414, top=30, bottom=266, compact=True),
    "bars": ChartFrame(width=440, left=10, right=370, top=8, compact=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A line with its own style, and the labels that there is room for."""

    line: Line
    style: int
    """Index of its color and marker."""
    dashed: bool
    labels: tuple[PlacedLabel, ...]


class Drawing:
    """A chart within its frame, for wide or narrow (`compact`) screens; labels without room are omitted."""

    def __init__(self, chart: Chart, *, compact: bool = False) -> None:
        self.chart = chart
        self.frame = frame = (COMPACT if compact else FRAMES)[chart.size].holding(len(chart.bars))
        self._labels = LabelPlacer(left=frame.left, top=0, right=frame.width, bottom=frame.bottom)
        for line in chart.lines:
            self._reserve_line(line)
        self.series = tuple(
            Series(
                line=line,
                style=STYLES - 1 if line.faint else number % STYLES,
                dashed=number >= STYLES,
                labels=tuple(self._place_labels(line)),
            )
            for number, line in enumerate(chart.lines)
        )

    def x(self, value: float) -> float:
        """Return the position of a value of the x axis."""
        left, right = self.frame.left, self.frame.right
        return round(left + self.chart.scales[0].share(value) * (right - left), 1)

    def y(self, value: float) -> float:
        """Return the position of a value of the y axis."""
        bottom, top = self.frame.bottom, self.frame.top
        return round(bottom + self.chart.scales[1].share(value) * (top - bottom), 1)

    def x_ticks(self) -> Iterator[tuple[float, str]]:
        """Yield the position and text of each tick mark; no text where it would touch the previous one."""
        end = float("-inf")
        for value, text in self.chart.scales[0].named_marks():
            at, half = self.x(value), len(text) * CHAR_WIDTH_PX / 2
            shown = at - half > end + 4
            end = at + half if shown else end
            yield at, text if shown else ""

    def y_ticks(self) -> Iterator[tuple[float, str]]:
        """Yield the position and the text of each tick mark; none beside bars."""
        marks = () if self.chart.bars else self.chart.scales[1].named_marks()
        return ((self.y(value), text) for value, text in marks)

    def bar_top(self, number: int) -> int:
        """Return the upper edge of a bar, whose height is `BAR_PX`."""
        row, above = (COMPACT_ROW_PX, 20) if self.frame.compact else (ROW_PX, 4)
        return self.frame.top + number * row + above

    def marker(self, dot: Dot, style: int) -> str:
        """Return the path of a dot's marker."""
        return marker(style, *self._place_dot(dot), CONTEXT_RADIUS_PX if dot.context else dot.radius_px)

    def path(self, line: Line) -> str:
        """Return the path that connects the dots of a line; empty for none."""
        pieces = self._connect_dots(line)
        return " ".join("M" + " L".join(f"{x:g},{y:g}" for x, y in corners) for corners in pieces)

    def whiskers(self, line: Line) -> str:
        """Return the path of the vertical lines that show the intervals taller than a pixel."""
        ends = self._place_intervals(line)
        return " ".join(f"M{x:g},{low:g} V{high:g}" for (x, low), (_, high) in ends if abs(low - high) > 1)

    def _place_dot(self, dot: Dot) -> Place:
        return self.x(dot.x), self.y(dot.y)

    def _connect_dots(self, line: Line) -> list[list[Place]]:
        """Return the corners of each unbroken piece of a line."""
        pieces: list[list[Place]] = []
        for dot in line.dots if line.shape != "dots" else ():
            x, y = self._place_dot(dot)
            if dot.apart or not pieces:
                pieces.append([])
            elif line.shape == "steps":
                pieces[-1].append((x, pieces[-1][-1][1]))
            pieces[-1].append((x, y))
        if line.shape == "steps" and pieces:
            pieces[-1].append((self.frame.right, pieces[-1][-1][1]))
        return pieces

    def _place_intervals(self, line: Line) -> Iterator[tuple[Place, Place]]:
        """Yield the lower and upper end of each interval, within the axes."""
        scale = self.chart.scales[1]
        for dot in line.dots:
            if dot.interval is not None:
                low, high = dot.interval
                x = self.x(dot.x)
                yield (x, self.y(max(low, scale.low))), (x, self.y(min(high, scale.high)))

    def _place_labels(self, line: Line) -> Iterator[PlacedLabel]:
        for dot in line.dots:
            if dot.label and (label := self._labels.place(self._place_dot(dot), dot.label)):
                yield label

    def _reserve_line(self, line: Line) -> None:
        for dot in line.dots:
            self._labels.reserve(self._place_dot(dot), self._place_dot(dot), dot.radius_px or 6)
        for low, high in self._place_intervals(line):
            self._labels.reserve(low, high)
        for corners in self._connect_dots(line):
            for start, end in pairwise(corners):
                self._labels.reserve(start, end)
