"""The throughput-latency chart: one line a configuration, through its loads in order. Up and to the left is
better."""

from collections.abc import Sequence
from itertools import pairwise

from tpx.analyzer.objectives import NS_PER_MS, RankedVariant
from tpx.analyzer.results.goals import Goals
from tpx.analyzer.results.measurement import Measurement
from tpx.pages.chart import FRAME, Chart, Limit, Point, Series, polyline
from tpx.pages.labels import LabelPlacer, Place
from tpx.pages.scales import Axis, axis_for, linear_axis
from tpx.pages.styles import STYLES, marker


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
    x = axis_for(latencies, FRAME.left, FRAME.right)
    y = linear_axis([m.throughput for m in drawn], FRAME.bottom, FRAME.top)
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
        label_name=kind,
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
    return Limit(
        x=at, text=f"limit {limit_ms:g} ms", anchor="end" if at > (FRAME.left + FRAME.width) / 2 else "start"
    )


class _Layout:
    """Places lines and markers, then as many labels as fit off all lines, markers and labels."""

    def __init__(self, x: Axis, y: Axis) -> None:
        self._x = x
        self._y = y
        self._labels = LabelPlacer()

    def reserve(self, ranked: RankedVariant) -> None:
        """Keep labels off this configuration's line and markers."""
        measurements = _by_load(ranked)
        places = [self._place(m) for m in measurements]
        for place in places:
            self._labels.reserve_point(place)
        for before, after in pairwise(range(len(places))):
            if measurements[before].load.batch_size == measurements[after].load.batch_size:
                self._labels.reserve_line(places[before], places[after])

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
                for place, m in zip(places, measurements, strict=True)
                if m in wanted and (label := self._labels.place(place, str(m.load.value)))
            ),
            legend_marker=marker(style, 14, 7),
        )

    def path(self, ranked: RankedVariant) -> str:
        """One line a batch size."""
        measurements = _by_load(ranked)
        batches = dict.fromkeys(m.load.batch_size for m in measurements)
        return " ".join(
            polyline([self._place(m) for m in measurements if m.load.batch_size == batch])
            for batch in batches
        )

    def _place(self, measurement: Measurement) -> Place:
        return self._x.at(_latency_ms(measurement)), self._y.at(measurement.throughput)


def _by_load(ranked: RankedVariant) -> list[Measurement]:
    known = [m for m in ranked.ordered if _latency_ms(m)]
    return sorted(known, key=lambda m: (m.load.batch_size, m.load.value))


def _title(name: str, measurement: Measurement) -> str:
    unstable = "" if measurement.stable else " (not stable)"
    return (
        f"{name} at {measurement.load}: {measurement.throughput:.1f} infer/s, "
        f"{_latency_ms(measurement):.2f} ms{unstable}"
    )
