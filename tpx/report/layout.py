"""Layout of a chart within a frame: all positions in pixels, for `chart.svg.j2` to draw."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from tpx.report.chart import STYLES, Bar, BarPart, Chart, Dot, Line, Mark, marker

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


@dataclass(frozen=True, slots=True)
class Tick:
    """A tick mark: its position and its text."""

    at: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A dot with the path of its marker."""

    dot: Dot
    x: float
    y: float
    marker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A line with its own color and marker."""

    line: Line
    style: int
    """Index of its color and marker."""
    path: str
    points: tuple[Point, ...]
    labels: tuple[PlacedLabel, ...]
    dashed: bool
    round: bool
    """True if markers are circles whose size has a meaning."""
    whiskers: str
    """Path of the vertical lines that show the points' intervals."""

    @property
    def context(self) -> bool:
        """True if some points are in the background, and so is the line between them."""
        return any(point.dot.context for point in self.points)


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkLine:
    """The position of a mark's dashed line, and the anchor of its text."""

    mark: Mark
    at: float
    anchor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """The position of a bar's part."""

    part: BarPart
    x: float
    width: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedBar:
    """The position of a bar, whose height is `BAR_PX`."""

    bar: Bar
    y: float
    segments: tuple[Segment, ...]
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A chart within its frame."""

    chart: Chart
    key: str
    frame: ChartFrame
    x_title: str
    y_title: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    series: tuple[Series, ...]
    background: tuple[str, ...]
    rules: tuple[MarkLine, ...]
    bars: tuple[PlacedBar, ...]


def lay_out(chart: Chart, *, compact: bool = False) -> Drawing:
    """Lay out a chart for wide or narrow (`compact`) screens; labels without room are omitted."""
    return _Layout(chart, (COMPACT if compact else FRAMES)[chart.size].holding(len(chart.bars))).drawing()


class _Layout:
    """Positions of values within a frame, and the space left for labels."""

    def __init__(self, chart: Chart, frame: ChartFrame) -> None:
        self._chart, self._frame = chart, frame
        self._labels = LabelPlacer(left=frame.left, top=0, right=frame.width, bottom=frame.bottom)

    def drawing(self) -> Drawing:
        chart, frame = self._chart, self._frame
        across, up = chart.scales
        for line in chart.lines:
            self._reserve_line(line)
        return Drawing(
            chart=chart,
            key=f"{chart.key}-compact" if frame.compact else chart.key,
            frame=frame,
            x_title=chart.x.title + (", logarithmic scale" if across.logarithmic else ""),
            y_title=chart.y.title + (", logarithmic scale" if up.logarithmic else ""),
            x_ticks=_thin_labels([Tick(self._scale_x(value), text) for value, text in across.named_marks()]),
            y_ticks=tuple(
                Tick(self._scale_y(value), text) for value, text in up.named_marks() if not chart.bars
            ),
            series=tuple(self._build_series(number, line) for number, line in enumerate(chart.lines)),
            background=tuple(self._build_path(line) for line in chart.background),
            rules=tuple(
                MarkLine(
                    mark=mark,
                    at=(at := self._scale_x(mark.value) if mark.upright else self._scale_y(mark.value)),
                    anchor="end" if mark.upright and at > (frame.left + frame.right) / 2 else "start",
                )
                for mark in chart.marks
            ),
            bars=tuple(self._place_bar(number, bar) for number, bar in enumerate(chart.bars)),
        )

    def _place_bar(self, number: int, bar: Bar) -> PlacedBar:
        row, above = (COMPACT_ROW_PX, 20) if self._frame.compact else (ROW_PX, 4)
        ends = [self._scale_x(length) for length in accumulate((p.length for p in bar.parts), initial=0.0)]
        segments = (
            Segment(part=part, x=start, width=round(end - start, 1))
            for part, (start, end) in zip(bar.parts, pairwise(ends), strict=True)
        )
        y = self._frame.top + number * row + above
        return PlacedBar(bar=bar, y=y, segments=tuple(segments), end=ends[-1])

    def _scale_x(self, value: float) -> float:
        left, right = self._frame.left, self._frame.right
        return round(left + self._chart.scales[0].share(value) * (right - left), 1)

    def _scale_y(self, value: float) -> float:
        bottom, top = self._frame.bottom, self._frame.top
        return round(bottom + self._chart.scales[1].share(value) * (top - bottom), 1)

    def _place_spread(self, line: Line) -> list[tuple[float, float, float]]:
        """Return x and the lower and upper end of each interval, within the axes."""
        least, most = self._chart.scales[1].low, self._chart.scales[1].high
        return [
            (self._scale_x(dot.x), self._scale_y(max(low, least)), self._scale_y(min(high, most)))
            for dot, (low, high) in zip(line.dots, line.spread, strict=False)
        ]

    def _place_dot(self, dot: Dot) -> Place:
        return self._scale_x(dot.x), self._scale_y(dot.y)

    def _reserve_line(self, line: Line) -> None:
        for dot in line.dots:
            self._labels.reserve(self._place_dot(dot), self._place_dot(dot), dot.radius_px or 6)
        for x, low, high in self._place_spread(line):
            self._labels.reserve((x, low), (x, high))
        for before, after in pairwise(line.dots):
            start, end = self._place_dot(before), self._place_dot(after)
            if line.shape == "steps":
                self._labels.reserve(start, (end[0], start[1]))
                self._labels.reserve((end[0], start[1]), end)
            elif line.shape == "joined" and not after.apart:
                self._labels.reserve(start, end)

    def _build_series(self, number: int, line: Line) -> Series:
        style = STYLES - 1 if line.faint else number % STYLES
        points = []
        for dot in line.dots if line.marked else ():
            x, y = self._place_dot(dot)
            radius = CONTEXT_RADIUS_PX if dot.context else dot.radius_px
            path = _draw_circle(x, y, radius) if radius else marker(style, x, y)
            points.append(Point(dot=dot, x=x, y=y, marker=path))
        return Series(
            line=line,
            style=style,
            path=self._build_path(line),
            points=tuple(points),
            labels=tuple(
                label
                for dot in line.dots
                if dot.label and (label := self._labels.place(self._place_dot(dot), dot.label))
            ),
            dashed=number >= STYLES,
            round=any(dot.radius_px for dot in line.dots),
            # intervals that are taller than a pixel
            whiskers=" ".join(
                f"M{x:g},{low:g} V{high:g}"
                for x, low, high in self._place_spread(line)
                if abs(low - high) > 1
            ),
        )

    def _build_path(self, line: Line) -> str:
        if line.shape == "dots":
            return ""
        if line.shape == "steps":
            first, *others = line.dots
            path = f"M{self._scale_x(first.x):g},{self._scale_y(first.y):g}"
            path += "".join(f" H{self._scale_x(dot.x):g} V{self._scale_y(dot.y):g}" for dot in others)
            return f"{path} H{self._frame.right:g}"
        joined: list[list[Place]] = []
        for dot in line.dots:
            if dot.apart or not joined:
                joined.append([])
            joined[-1].append(self._place_dot(dot))
        return " ".join("M" + " L".join(f"{x:g},{y:g}" for x, y in places) for places in joined)


def _thin_labels(ticks: Sequence[Tick]) -> tuple[Tick, ...]:
    """Remove labels that would touch the previous one."""
    kept: list[Tick] = []
    end = float("-inf")
    for tick in ticks:
        half = len(tick.label) * CHAR_WIDTH_PX / 2
        text = tick.label if tick.at - half > end + 4 else ""
        end = tick.at + half if text else end
        kept.append(Tick(tick.at, text))
    return tuple(kept)


def _draw_circle(x: float, y: float, radius: float) -> str:
    return (
        f"M{x - radius:g},{y:g} a{radius:g},{radius:g} 0 1,0 {2 * radius:g},0 "
        f"a{radius:g},{radius:g} 0 1,0 {-2 * radius:g},0 Z"
    )
