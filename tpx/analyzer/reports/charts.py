"""The smaller charts of a model: what cannot be bettered, and how the final rounds went."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from tpx.analyzer.objectives import NS_PER_MS, RankedVariant, ram_mb
from tpx.analyzer.reports.names import short_name
from tpx.analyzer.results.measurement import Measurement
from tpx.report.chart import FRAME, Chart, Frame, Point, Series
from tpx.report.labels import LabelPlacer
from tpx.report.plot import Dot, Extras, Line, Titles, lay_out
from tpx.report.scales import Axis, axis_for, linear_axis
from tpx.report.styles import marker

LEAST_RADIUS, MOST_RADIUS = 3.0, 8.5
LOW_FRAME = Frame(height=300, bottom=242)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """A configuration under a load, as a point of the Pareto chart."""

    ranked: RankedVariant
    measurement: Measurement
    latency_ms: float
    memory_mb: float | None

    @property
    def throughput(self) -> float:
        return self.measurement.throughput


def front_of(ranking: Sequence[RankedVariant], *, gpus: bool = True) -> tuple[Spot, ...]:
    """What no other measurement beats in throughput and p99 at once, from the lowest latency on."""
    front: list[Spot] = []
    for spot in sorted(_spots(ranking, gpus=gpus), key=lambda s: (s.latency_ms, -s.throughput)):
        if not front or spot.throughput > front[-1].throughput:
            front.append(spot)
    return tuple(front)


def pareto_chart(key: str, ranking: Sequence[RankedVariant], *, gpus: bool, most: int) -> Chart | None:
    """The front and `most` of the other measurements by latency and throughput, their area by memory (of
    GPUs, where these count); None of fewer than three."""
    spots = _spots(ranking, gpus=gpus)
    front = front_of(ranking, gpus=gpus)
    if len(spots) < 3 or not front:
        return None
    x = axis_for([s.latency_ms for s in spots], FRAME.left, FRAME.right)
    y = linear_axis([s.throughput for s in spots], FRAME.bottom, FRAME.top)
    largest = max((s.memory_mb for s in spots if s.memory_mb), default=0.0)
    labels = LabelPlacer()
    for spot in front:
        labels.reserve_point((x.at(spot.latency_ms), y.at(spot.throughput)))
    on_front = {id(s.measurement) for s in front}
    others = [s for s in spots if id(s.measurement) not in on_front]
    rest = sorted(others, key=lambda s: -s.throughput)[:most]
    left_out = f" (the {len(rest)} of {len(others)} with the most throughput)"
    texts = [
        label for s in front if (label := labels.place((x.at(s.latency_ms), y.at(s.throughput)), _label(s)))
    ]
    return Chart(
        key=key,
        title="Configurations and loads that no other beats in throughput and latency at once",
        description="The front, from the lowest latency: " + "; ".join(_title(s) for s in front) + ".",
        x_title=f"p99 latency (ms{', logarithmic scale' if x.logarithmic else ''})",
        y_title="Throughput (infer/s)",
        x_ticks=x.ticks,
        y_ticks=y.ticks,
        series=(
            Series(
                name="Pareto front",
                style=0,
                path=_steps(front, x, y),
                points=tuple(_point(s, x, y, _radius(s.memory_mb, largest)) for s in front),
                labels=tuple(texts),
                legend_marker=marker(0, 14, 7),
            ),
            Series(
                name=f"bettered by one of them{left_out if len(rest) < len(others) else ''}",
                style=6,
                path="",
                points=tuple(_point(s, x, y, _radius(s.memory_mb, largest)) for s in rest),
                legend_marker=marker(0, 14, 7),
                faint=True,
            ),
        ),
        label_name="configuration and load",
    )


def drift_chart(key: str, ranking: Sequence[RankedVariant]) -> Chart | None:
    """Throughput of every final round against the configuration's own mean; None without two rounds."""
    finalists = [r for r in ranking if len(r.run.repetitions) > 1]
    if not finalists:
        return None
    lines = tuple(_rounds_of(ranked) for ranked in finalists)
    values = [dot.y for line in lines for dot in line.dots]
    rounds = max(dot.x for line in lines for dot in line.dots)
    reach = max(5.0, *(abs(value - 100) for value in values))
    y = _percent_axis(reach)
    x = linear_axis([rounds], FRAME.left, FRAME.right, count=min(10, int(rounds)))
    whole = tuple(tick for tick, mark in zip(x.ticks, x.marks, strict=True) if mark == int(mark) > 0)
    titles = Titles(
        title="The final rounds: each measurement against the mean of its configuration",
        description=(
            "Lines that rise and fall together are the machine's doing; a line of its own is the "
            f"configuration's. The values lie between {min(values):.1f} and {max(values):.1f} %."
        ),
        x="Round of the final repetitions",
        y="Throughput (% of its mean)",
    )
    return lay_out(key, titles, x, y, lines, Extras(frame=LOW_FRAME, x_ticks=whole))


def _rounds_of(ranked: RankedVariant) -> Line:
    mean = fmean(m.throughput for m in ranked.run.repetitions) or 1.0
    repetitions = sorted(ranked.run.repetitions, key=lambda m: m.round)
    return Line(
        name=ranked.name,
        dots=tuple(
            Dot(
                x=m.round,
                y=m.throughput / mean * 100,
                title=f"{ranked.name}, round {m.round}: {m.throughput:,.1f} infer/s",
                stable=m.stable,
            )
            for m in repetitions
        ),
    )


def _percent_axis(reach: float) -> Axis:
    """Around 100, in about five round steps."""
    step = next(s for s in (1.0, 2.0, 2.5, 5.0, 10.0, 20.0, 25.0, 50.0, 100.0, 1e9) if s * 3 >= reach)
    steps = math.ceil(reach / step)
    marks = tuple(100 + step * i for i in range(-steps, steps + 1))
    return Axis(
        low=marks[0],
        high=marks[-1],
        start=LOW_FRAME.bottom,
        end=LOW_FRAME.top,
        logarithmic=False,
        marks=marks,
    )


def _spots(ranking: Sequence[RankedVariant], *, gpus: bool) -> list[Spot]:
    return [
        Spot(
            ranked=ranked,
            measurement=m,
            latency_ms=p99_ns / NS_PER_MS,
            memory_mb=_memory_mb(m, gpus=gpus),
        )
        for ranked in ranking
        for m in ranked.ordered
        if (p99_ns := m.latency.p99_ns)
    ]


def _steps(front: Sequence[Spot], x: Axis, y: Axis) -> str:
    """Across at the throughput that is reached, then up: nothing measured lies above this line."""
    first, *others = front
    path = f"M{x.at(first.latency_ms):g},{y.at(first.throughput):g}"
    for spot in others:
        path += f" H{x.at(spot.latency_ms):g} V{y.at(spot.throughput):g}"
    return f"{path} H{FRAME.right:g}"


def _point(spot: Spot, x: Axis, y: Axis, radius: float) -> Point:
    px, py = x.at(spot.latency_ms), y.at(spot.throughput)
    circle = f"M{px - radius:g},{py:g} a{radius:g},{radius:g} 0 1,0 {2 * radius:g},0 "
    circle += f"a{radius:g},{radius:g} 0 1,0 {-2 * radius:g},0 Z"
    return Point(x=px, y=py, marker=circle, title=_title(spot))


def _radius(memory_mb: float | None, most: float) -> float:
    """By area; without a reading the least."""
    if not memory_mb or not most:
        return 5.0 if not most else LEAST_RADIUS
    return round(LEAST_RADIUS + (MOST_RADIUS - LEAST_RADIUS) * math.sqrt(memory_mb / most), 1)


def _memory_mb(measurement: Measurement, *, gpus: bool) -> float | None:
    """GPU memory where there is a GPU, else the server's RAM."""
    if measurement.gpus and gpus:
        return sum(gpu.used_bytes for gpu in measurement.gpus) / 1e6
    return ram_mb(measurement.memory)


def _label(spot: Spot) -> str:
    return f"{short_name(spot.ranked.name)} @ {spot.measurement.load.value:g}"


def _title(spot: Spot) -> str:
    memory = spot.memory_mb
    held = "" if memory is None else f", {memory:,.0f} MB"
    return (
        f"{spot.ranked.name} at {spot.measurement.load}: {spot.throughput:,.1f} infer/s, "
        f"{spot.latency_ms:.2f} ms{held}"
    )
