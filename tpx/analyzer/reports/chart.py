"""The throughput-latency chart, laid out: every position in pixels, for a template to draw.

One line a configuration, through its loads in order. Up and to the left is better. Configurations differ by
colour (Okabe and Ito's palette, made for colour-blind readers) and by marker.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tpx.analyzer.objectives import NS_PER_MS, RankedVariant
from tpx.analyzer.reports.scales import Axis, Tick, axis_for, linear_axis
from tpx.analyzer.results.goals import Goals
from tpx.analyzer.results.measurement import Measurement

WIDTH, HEIGHT = 960, 470
LEFT, RIGHT, TOP, BOTTOM = 74, 26, 20, 412
LABEL_HEIGHT, LABEL_CHAR_WIDTH = 12, 6.5
STYLES = 7

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
    series = tuple(layout.series(ranked, index) for index, ranked in enumerate(shown))
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
    """Places lines, markers, and as many labels as fit without touching each other or a marker."""

    def __init__(self, x: Axis, y: Axis) -> None:
        self._x = x
        self._y = y
        self._taken: list[tuple[float, float, float, float]] = []

    def series(self, ranked: RankedVariant, index: int) -> Series:
        style = index % STYLES
        measurements = _by_load(ranked)
        places = [self._place(m) for m in measurements]
        self._taken += [(x - 5, y - 5, x + 5, y + 5) for x, y in places]
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
                if (label := self._label(x, y, str(m.load.value)))
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
        width = len(text) * LABEL_CHAR_WIDTH
        for left, top, anchor, at_x, at_y in (
            (x - width / 2, y - 9 - LABEL_HEIGHT, "middle", x, y - 11),
            (x - width / 2, y + 8, "middle", x, y + 18),
            (x + 9, y - LABEL_HEIGHT / 2, "start", x + 9, y + 4),
            (x - 9 - width, y - LABEL_HEIGHT / 2, "end", x - 9, y + 4),
        ):
            box = (left, top, left + width, top + LABEL_HEIGHT)
            if top >= 0 and not any(_overlap(box, other) for other in self._taken):
                self._taken.append(box)
                return Label(x=round(at_x, 1), y=round(at_y, 1), anchor=anchor, text=text)
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


def _overlap(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> bool:
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
