"""The throughput-latency chart, laid out: every position in pixels, for a template to draw.

One line a configuration, through its loads in order. Up and to the left is better. Configurations differ by
colour (Okabe and Ito's palette, made for colour-blind readers) and by marker.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tpx.analyzer.objectives import NS_PER_MS, RankedVariant
from tpx.analyzer.reports.scales import Axis, Tick, axis_for, linear_axis
from tpx.analyzer.results.goals import Goals
from tpx.analyzer.results.measurement import Measurement

WIDTH, HEIGHT = 960, 470
LEFT, RIGHT, TOP, BOTTOM = 74, 26, 20, 412
LABEL_HEIGHT, LABEL_CHAR_WIDTH = 12, 6.5
STYLES = 7

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
"""Anchor and offset of a label from its point, the most readable first."""

_PLUS: tuple[tuple[float, float], ...] = (
    (-1.5, -5), (1.5, -5), (1.5, -1.5), (5, -1.5), (5, 1.5), (1.5, 1.5),
    (1.5, 5), (-1.5, 5), (-1.5, 1.5), (-5, 1.5), (-5, -1.5), (-1.5, -1.5),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One measurement."""

    x: float
    y: float
    marker: str
    """Path of its marker."""
    title: str
    stable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """The load beside a point, where there is room."""

    x: float
    y: float
    anchor: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One configuration."""

    name: str
    style: int
    """Which of the colours and markers."""
    dashed: bool
    path: str
    points: tuple[Point, ...]
    labels: tuple[Label, ...]
    legend_marker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The latency constraint, a vertical line."""

    x: float
    text: str
    anchor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Everything that the template draws."""

    key: str
    """Makes the ids in the page unique."""
    title: str
    description: str
    x_title: str
    y_title: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    series: tuple[Series, ...]
    background: tuple[str, ...]
    """Paths of the configurations that are not among those shown in detail."""
    limit: Limit | None
    load_name: str
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    top: int = TOP
    bottom: int = BOTTOM

    @property
    def has_unstable(self) -> bool:
        """Whether some markers are hollow."""
        return any(not point.stable for series in self.series for point in series.points)


def draw(
    key: str, shown: Sequence[RankedVariant], others: Sequence[RankedVariant], goals: Goals
) -> Chart | None:
    """The chart of one model; None where no measurement has a latency.

    `shown` get a colour, a marker and a legend, in this order; `others` are thin lines behind them.
    """
    drawn = [m for ranked in (*shown, *others) for m in ranked.ordered if _latency_ms(m)]
    if not drawn:
        return None
    limit_ms = next((c.limit for c in goals.constraints if c.tag == "perf_latency_p99"), None)
    latencies = [_latency_ms(m) for m in drawn] + ([limit_ms] if limit_ms else [])
    x = axis_for(latencies, LEFT, WIDTH - RIGHT)
    y = linear_axis([m.throughput for m in drawn], BOTTOM, TOP)
    layout = _Layout(x, y)
    for ranked in shown:
        layout.reserve(ranked)
    series = tuple(
        layout.series(ranked, index, labelled=index == 0 or ranked.run.variant.is_default)
        for index, ranked in enumerate(shown)
    )
    kind = drawn[0].load.kind.replace("_", " ")
    scale = ", logarithmic scale" if x.logarithmic else ""
    return Chart(
        key=key,
        title="Throughput and latency of each configuration under growing load",
        description=_description(shown, kind),
        x_title=f"p99 latency (ms{scale})",
        y_title="Throughput (infer/s)",
        x_ticks=x.ticks,
        y_ticks=y.ticks,
        series=series,
        background=tuple(layout.path(ranked) for ranked in others),
        limit=_limit(x, limit_ms),
        load_name=kind,
    )


def _latency_ms(measurement: Measurement) -> float:
    """p99, or the mean where that is all there is; 0 is unknown."""
    latency = measurement.latency
    return (latency.p99_ns or latency.avg_ns or 0) / NS_PER_MS


def _description(shown: Sequence[RankedVariant], kind: str) -> str:
    bests = "; ".join(
        f"{r.name}: at best {r.best.throughput:.0f} infer/s, p99 {_latency_ms(r.best):.1f} ms, "
        f"at {kind} {r.best.load.value}"
        for r in shown
    )
    return f"Each line joins the measurements of one configuration in the order of their {kind}. {bests}."


def _limit(x: Axis, limit_ms: float | None) -> Limit | None:
    if limit_ms is None:
        return None
    at = x.at(limit_ms)
    return Limit(x=at, text=f"limit {limit_ms:g} ms", anchor="end" if at > (LEFT + WIDTH) / 2 else "start")


class _Layout:
    """Places lines and markers, then as many labels as fit off all lines, markers and labels."""

    def __init__(self, x: Axis, y: Axis) -> None:
        self._x = x
        self._y = y
        self._taken: list[_Box] = []

    def reserve(self, ranked: RankedVariant) -> None:
        """Keep labels off this configuration's line and markers."""
        measurements = _by_load(ranked)
        places = [self._place(m) for m in measurements]
        self._taken += [(x - 6, y - 6, x + 6, y + 6) for x, y in places]
        for before, after in pairwise(range(len(places))):
            if measurements[before].load.batch_size == measurements[after].load.batch_size:
                self._taken += _along(places[before], places[after])

    def series(self, ranked: RankedVariant, index: int, *, labelled: bool) -> Series:
        style = index % STYLES
        measurements = _by_load(ranked)
        places = [self._place(m) for m in measurements]
        wanted = measurements if labelled else [m for m in measurements if m is ranked.best]
        return Series(
            name=ranked.name,
            style=style,
            dashed=index >= STYLES,
            path=self.path(ranked),
            points=tuple(
                Point(x=x, y=y, marker=marker(style, x, y), title=_title(ranked.name, m), stable=m.stable)
                for (x, y), m in zip(places, measurements, strict=True)
            ),
            labels=tuple(
                label
                for (x, y), m in zip(places, measurements, strict=True)
                if m in wanted and (label := self._label(x, y, str(m.load.value)))
            ),
            legend_marker=marker(style, 14, 7),
        )

    def path(self, ranked: RankedVariant) -> str:
        """One line a batch size."""
        measurements = _by_load(ranked)
        batches = dict.fromkeys(m.load.batch_size for m in measurements)
        return " ".join(
            _polyline([self._place(m) for m in measurements if m.load.batch_size == batch])
            for batch in batches
        )

    def _place(self, measurement: Measurement) -> tuple[float, float]:
        return self._x.at(_latency_ms(measurement)), self._y.at(measurement.throughput)

    def _label(self, x: float, y: float, text: str) -> Label | None:
        """Beside its point where there is room: above, below, right, left, then the corners."""
        width = len(text) * LABEL_CHAR_WIDTH
        for anchor, dx, dy in _LABEL_PLACES:
            left = x + dx - {"start": 0, "middle": width / 2, "end": width}[anchor]
            box = (left, y + dy - LABEL_HEIGHT + 2, left + width, y + dy + 1)
            if box[1] >= 0 and not any(_overlap(box, other) for other in self._taken):
                self._taken.append(box)
                return Label(x=round(x + dx, 1), y=round(y + dy, 1), anchor=anchor, text=text)
        return None


def _by_load(ranked: RankedVariant) -> list[Measurement]:
    known = [m for m in ranked.ordered if _latency_ms(m)]
    return sorted(known, key=lambda m: (m.load.batch_size, m.load.value))


def _title(name: str, measurement: Measurement) -> str:
    unstable = "" if measurement.stable else " (not stable)"
    return (
        f"{name} at {measurement.load}: {measurement.throughput:.1f} infer/s, "
        f"{_latency_ms(measurement):.2f} ms{unstable}"
    )


def _polyline(places: Sequence[tuple[float, float]]) -> str:
    return "M" + " L".join(f"{x:g},{y:g}" for x, y in places) if places else ""


def _along(start: tuple[float, float], end: tuple[float, float]) -> list[_Box]:
    """Small boxes along a line, close enough that no label fits between them."""
    (x0, y0), (x1, y1) = start, end
    steps = max(1, int(max(abs(x1 - x0), abs(y1 - y0)) / 5))
    middles = [(x0 + (x1 - x0) * i / steps, y0 + (y1 - y0) * i / steps) for i in range(steps + 1)]
    return [(x - 1, y - 1, x + 1, y + 1) for x, y in middles]


def _overlap(a: _Box, b: _Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def marker(style: int, x: float, y: float) -> str:
    """Path of a marker: circle, square, triangle, diamond, cross, plus, triangle upside down."""
    outlines: tuple[tuple[tuple[float, float], ...], ...] = (
        (),
        ((-3.6, -3.6), (3.6, -3.6), (3.6, 3.6), (-3.6, 3.6)),
        ((0, -4.8), (4.4, 3.4), (-4.4, 3.4)),
        ((0, -5.2), (5.2, 0), (0, 5.2), (-5.2, 0)),
        tuple((px * 0.707 - py * 0.707, px * 0.707 + py * 0.707) for px, py in _PLUS),
        _PLUS,
        ((0, 4.8), (4.4, -3.4), (-4.4, -3.4)),
    )
    outline = outlines[style % STYLES]
    if not outline:
        return f"M{x - 4:g},{y:g} a4,4 0 1,0 8,0 a4,4 0 1,0 -8,0 Z"
    return "M" + " L".join(f"{round(x + dx, 1):g},{round(y + dy, 1):g}" for dx, dy in outline) + " Z"
