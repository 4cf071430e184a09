"""The charts of a model: throughput over latency, Pareto front, latency breakdown, and plots of one
figure over another, those of Model Analyzer's modes and the user's own.

Points confirmed by the final rounds have markers and intervals; if there were such rounds, points that
the search measured once are faint.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tpx.analyzer.metrics import METRICS, NS_PER_MS, MeasuredMetric, gpu_mb, ram_mb
from tpx.analyzer.objectives import RankedVariant
from tpx.analyzer.results.goals import Goals
from tpx.analyzer.results.measurement import Measurement
from tpx.analyzer.results.pooled import Mean, repeated
from tpx.errors import UsageError
from tpx.options import nearest
from tpx.perf.report import plots
from tpx.report.chart import Axis, Chart, Dot, Line, Mark
from tpx.report.digits import in_unit, latency, rounded

LEAST_RADIUS, MOST_RADIUS = 3.0, 8.5
_LONGEST_NAME = 26
ONCE = "faint: measured once, by the search"


def load_chart(shown: Sequence[RankedVariant], others: Sequence[RankedVariant], goals: Goals) -> Chart | None:
    """Return throughput over latency, one line per configuration through its loads; None without latencies.

    `shown` have a color, a marker and a legend entry, in this order; `others` are thin lines behind.
    """
    drawn = [m for ranked in (*shown, *others) for m in ranked.ordered if _latency_ns(m)]
    if not drawn:
        return None
    kind = drawn[0].load.kind.replace("_", " ")
    bests = "; ".join(
        f"{r.name}: {_describe_point(r.figures)}, at {kind} {r.figures.load.value}"
        for r in shown
        if r.ordered
    )
    settled = any(r.settled for r in (*shown, *others))
    texts = {
        "perf_latency_p99": "limit {:g} ms".format,
        "perf_throughput": lambda n: f"limit {rounded(n)} infer/s",
    }
    marks = [
        Mark(value=c.limit, text=texts[c.tag](c.limit), upright=c.tag == "perf_latency_p99")
        for c in goals.constraints
        if c.tag in texts
    ]
    return Chart(
        title="Throughput and latency of each configuration under growing load",
        description=f"Each line joins the points of one configuration in the order of their {kind}. {bests}.",
        x=Axis(title="p99 latency (ms)", auto=True),
        y=Axis(title="Throughput (infer/s)"),
        lines=tuple(
            _build_line(ranked, labelled=place == 0 or ranked.run.variant.is_default, settled=settled)
            for place, ranked in enumerate(shown)
        ),
        background=tuple(_build_line(ranked, labelled=False, settled=settled) for ranked in others),
        marks=tuple(marks),
        label_name=kind,
        context_name=ONCE,
    )


def _build_line(ranked: RankedVariant, *, labelled: bool, settled: bool) -> Line:
    """Return the line through a configuration's loads, interrupted between batch sizes.

    On a labelled line every point shows its load, otherwise only the one that represents it.
    """
    points = [m for m in ranked.by_load if _latency_ns(m)]
    before = [None, *(m.load.batch_size for m in points)]

    def interval(m: Measurement) -> tuple[float, float] | None:
        found = METRICS["perf_throughput"].interval(m) if isinstance(m, Mean) else None
        return None if found is None else (found.low, found.high or m.throughput)

    return Line(
        name=ranked.name,
        dots=tuple(
            Dot(
                x=_latency_ns(m) / NS_PER_MS,
                y=m.throughput,
                title=f"{ranked.name} at {m.load}: {_describe_point(m)}{'' if m.stable else ' (not stable)'}",
                interval=interval(m),
                label=str(m.load.value) if labelled or m is ranked.figures else "",
                stable=m.stable,
                apart=m.load.batch_size != batch,
                context=settled and not repeated(m),
            )
            for m, batch in zip(points, before, strict=False)
        ),
    )


def _latency_ns(measurement: Measurement) -> float:
    """Return the p99, or else the mean; 0 if unknown."""
    return measurement.p99_ns or measurement.mean_ns or 0


def _describe_point(measurement: Measurement) -> str:
    return f"{rounded(measurement.throughput)} infer/s, {latency(_latency_ns(measurement))}"


Spot = tuple[RankedVariant, Measurement]
"""A configuration and its figures under a load, as a point of the Pareto chart."""


def front_of(ranking: Sequence[RankedVariant]) -> tuple[Spot, ...]:
    """Return the Pareto front of throughput and p99 by latency, up to the confirmed throughput."""
    ceiling = max((r.figures.throughput for r in ranking if r.settled), default=math.inf)
    front: list[Spot] = []
    for ranked, m in sorted(_list_spots(ranking), key=lambda s: (s[1].p99_ns, -s[1].throughput)):
        if m.throughput <= ceiling and (not front or m.throughput > front[-1][1].throughput):
            front.append((ranked, m))
    return tuple(front)


def _list_spots(ranking: Sequence[RankedVariant]) -> list[Spot]:
    return [(ranked, m) for ranked in ranking for m in ranked.ordered if m.p99_ns]


def pareto_chart(ranking: Sequence[RankedVariant], *, gpus: bool, most: int) -> Chart | None:
    """Return the Pareto front and `most` other measurements by memory; None for fewer than three."""
    spots, front = _list_spots(ranking), front_of(ranking)
    if len(spots) < 3 or not front:
        return None
    memory_mb = {id(m): (gpu_mb(m) if gpus else None) or ram_mb(m.memory) for _, m in spots}
    largest = max(filter(None, memory_mb.values()), default=0.0)

    def title(spot: Spot) -> str:
        ranked, m = spot
        held = memory_mb[id(m)]
        return f"{ranked.name} at {m.load}: {_describe_point(m)}" + (
            "" if held is None else f", {in_unit(held, 'MB')}"
        )

    def dot(spot: Spot, label: str = "") -> Dot:
        m = spot[1]
        # the area shows the memory; without a reading it is the smallest
        share = math.sqrt((memory_mb[id(m)] or 0.0) / largest) if largest else 0.0
        radius = round(LEAST_RADIUS + (MOST_RADIUS - LEAST_RADIUS) * share, 1) if largest else 5.0
        return Dot(
            x=_latency_ns(m) / NS_PER_MS, y=m.throughput, title=title(spot), label=label, radius_px=radius
        )

    on_front = {id(m) for _, m in front}
    others = [spot for spot in spots if id(spot[1]) not in on_front]
    rest = sorted(others, key=lambda spot: -spot[1].throughput)[:most]
    left_out = f" (the {len(rest)} of {len(others)} with the most throughput)"
    return Chart(
        title="Configurations and loads that no other beats in throughput and latency at once",
        description="The front, from the lowest latency: " + "; ".join(map(title, front)) + ".",
        x=Axis(title="p99 latency (ms)", auto=True),
        y=Axis(title="Throughput (infer/s)"),
        lines=(
            Line(
                name="Pareto front",
                dots=tuple(dot(s, f"{short_name(s[0].name)} @ {s[1].load.value:g}") for s in front),
                shape="steps",
            ),
            Line(
                name=f"the others{left_out if len(rest) < len(others) else ''}",
                dots=tuple(map(dot, rest)),
                shape="dots",
                faint=True,
            ),
        ),
        label_name="configuration and load",
    )


def short_name(variant: str) -> str:
    """Return `config_4` for `alexnet_config_4`; on a model's page the prefix is redundant."""
    _, found, number = variant.rpartition("_config_")
    name = f"config_{number}" if found else variant
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}\u2026"


def breakdown(shown: Iterable[tuple[str, Measurement]]) -> Chart | None:
    """Return one bar per named measurement of a single model."""
    return plots.breakdown([(name, m.result) for name, m in shown if not m.members])


Mode = Literal["online", "offline"]


def _read_load(kind: str) -> Callable[[Measurement], float | None]:
    """Return a reader of a load; None for a measurement under another kind of load."""
    return lambda m: m.load.value if m.load.kind == kind else None


LOADS: Mapping[str, MeasuredMetric] = {
    "batch_size": MeasuredMetric("batch_size", "Batch size", "lower", lambda m: m.load.batch_size),
    "concurrency": MeasuredMetric("concurrency", "Concurrency", "lower", _read_load("concurrency")),
    "request_rate": MeasuredMetric("request_rate", "Request rate", "lower", _read_load("request_rate")),
}
"""Axes besides the metrics; no objective, so which end is better does not matter."""
AXES: Mapping[str, MeasuredMetric] = {**LOADS, **METRICS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """Axes of a plot, by tags of metrics or of loads."""

    title: str
    x_axis: str
    y_axis: str
    monotonic: bool = False
    """Omit points that are not above all points before them."""

    def __post_init__(self) -> None:
        for tag in (self.x_axis, self.y_axis):
            if tag not in AXES:
                raise UsageError(f"plot '{self.title}': unknown axis '{tag}'{nearest(tag, AXES)}")


_BATCHES = Plot(title="Throughput over batch size", x_axis="batch_size", y_axis="perf_throughput")
_TAILS = Plot(title="p99 latency over batch size", x_axis="batch_size", y_axis="perf_latency_p99")
_RESOURCES = {
    "gpu_used_memory": "GPU memory",
    "gpu_utilization": "GPU utilization",
    "cpu_used_ram": "Server memory",
    "gpu_power_usage": "GPU power",
}
_OVER_LATENCY = {
    tag: Plot(title=f"{name} over p99 latency", x_axis="perf_latency_p99", y_axis=tag)
    for tag, name in _RESOURCES.items()
}
DETAILED: Mapping[Mode, tuple[Plot, ...]] = {
    "online": tuple(_OVER_LATENCY.values()),
    "offline": (_BATCHES, _TAILS),
}
"""Plots of a single configuration."""
SUMMARY: Mapping[Mode, tuple[Plot, ...]] = {
    "online": (_OVER_LATENCY["gpu_used_memory"], _OVER_LATENCY["cpu_used_ram"]),
    "offline": (_BATCHES,),
}
"""Plots of a model's best configurations, in addition to throughput over latency."""


def draw_plots(plots: Sequence[Plot], shown: Sequence[RankedVariant], *, gpus: bool) -> tuple[Chart, ...]:
    """Return the plots that have figures, with a line per configuration; `gpus` includes GPU plots."""
    wanted = [plot for plot in plots if gpus or "gpu_" not in plot.x_axis + plot.y_axis]
    drawn = (_draw(plot, shown) for plot in wanted)
    return tuple(chart for chart in drawn if chart is not None)


def _draw(plot: Plot, shown: Sequence[RankedVariant]) -> Chart | None:
    """Return the plot, or None with fewer than two distinct x values."""
    lines = [line for ranked in shown if (line := _build_plot_line(plot, ranked)).dots]
    dots = [dot for line in lines for dot in line.dots]
    if len({dot.x for dot in dots}) < 2:
        return None
    names = ", ".join(line.name for line in lines)
    least, most = (rounded(end(d.y for d in dots)) for end in (min, max))
    return Chart(
        title=plot.title,
        description=f"Of {names}: from {least} to {most}.",
        x=Axis(title=AXES[plot.x_axis].header, auto=True),
        y=Axis(title=AXES[plot.y_axis].header),
        lines=tuple(lines),
        size="half",
    )


def _build_plot_line(plot: Plot, ranked: RankedVariant) -> Line:
    points: list[tuple[float, float, Measurement]] = []
    for measurement in ranked.ordered:
        x, y = (AXES[tag].value(measurement) for tag in (plot.x_axis, plot.y_axis))
        if x is not None and y is not None:
            points.append((x, y, measurement))
    if plot.x_axis in LOADS:
        # only the measurement with the highest throughput per load
        points.sort(key=lambda point: -point[2].throughput)
        points = list({point[0]: point for point in reversed(points)}.values())
    points.sort(key=lambda point: point[:2])
    if plot.monotonic:
        points = [p for i, p in enumerate(points) if all(p[1] > before[1] for before in points[:i])]
    return Line(
        name=ranked.name,
        dots=tuple(
            Dot(
                x=x,
                y=y,
                title=f"{ranked.name} at {m.load}: {in_unit(y, AXES[plot.y_axis].unit)}",
                stable=m.stable,
            )
            for x, y, m in points
        ),
    )
