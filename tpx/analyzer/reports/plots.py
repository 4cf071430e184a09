"""Plots of one figure over another: those of Model Analyzer's modes, and the user's own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tpx.analyzer.objectives import METRICS, RankedVariant, metric
from tpx.analyzer.results.measurement import Measurement
from tpx.errors import UsageError
from tpx.options import nearest
from tpx.report.chart import Axis, Chart, Dot, Line
from tpx.report.digits import in_unit, rounded

Mode = Literal["online", "offline"]
LOADS: Mapping[str, str] = {
    "batch_size": "Batch size",
    "concurrency": "Concurrency",
    "request_rate": "Request rate",
}
"""Axes that are not metrics -> axis titles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """Axes of a plot, by tags of metrics or of loads."""

    name: str
    title: str
    x_axis: str
    y_axis: str
    monotonic: bool = False
    """Omit points that are not above all points before them."""

    def __post_init__(self) -> None:
        for tag in (self.x_axis, self.y_axis):
            if tag not in LOADS and tag not in METRICS:
                raise UsageError(f"plot '{self.name}': there is no axis '{tag}'{nearest(tag, _AXES)}")

    @property
    def of_gpus(self) -> bool:
        return any(tag.startswith("gpu_") for tag in (self.x_axis, self.y_axis))


_AXES = (*LOADS, *METRICS)
_BATCHES = Plot(
    name="throughput_v_batch_size",
    title="Throughput over batch size",
    x_axis="batch_size",
    y_axis="perf_throughput",
)
_RESOURCES = (
    ("gpu_mem", "GPU memory", "gpu_used_memory"),
    ("gpu_util", "GPU utilization", "gpu_utilization"),
    ("cpu_mem", "Server memory", "cpu_used_ram"),
    ("gpu_power", "GPU power", "gpu_power_usage"),
)
_OVER_LATENCY = tuple(
    Plot(name=f"{name}_v_latency", title=f"{title} over p99 latency", x_axis="perf_latency_p99", y_axis=tag)
    for name, title, tag in _RESOURCES
)
DETAILED: Mapping[Mode, tuple[Plot, ...]] = {
    "online": _OVER_LATENCY,
    "offline": (
        _BATCHES,
        Plot(
            name="latency_v_batch_size",
            title="p99 latency over batch size",
            x_axis="batch_size",
            y_axis="perf_latency_p99",
        ),
    ),
}
"""Plots of a single configuration."""
SUMMARY: Mapping[Mode, tuple[Plot, ...]] = {
    "online": tuple(plot for plot in _OVER_LATENCY if plot.y_axis in ("gpu_used_memory", "cpu_used_ram")),
    "offline": (_BATCHES,),
}
"""Plots of a model's best configurations, in addition to throughput over latency."""


def draw_plots(
    key: str, plots: Sequence[Plot], shown: Sequence[RankedVariant], *, gpus: bool
) -> tuple[Chart, ...]:
    """Return the plots that have figures, with a line per configuration; `gpus` includes GPU plots."""
    wanted = [plot for plot in plots if gpus or not plot.of_gpus]
    drawn = (_draw(f"{key}-{plot.name}", plot, shown) for plot in wanted)
    return tuple(chart for chart in drawn if chart is not None)


def _draw(key: str, plot: Plot, shown: Sequence[RankedVariant]) -> Chart | None:
    """Return the plot, or None with fewer than two distinct x values."""
    lines = [line for ranked in shown if (line := _build_line(plot, ranked)).dots]
    dots = [dot for line in lines for dot in line.dots]
    if len({dot.x for dot in dots}) < 2:
        return None
    names = ", ".join(line.name for line in lines)
    least, most = (rounded(end(d.y for d in dots)) for end in (min, max))
    return Chart(
        key=key,
        title=plot.title,
        description=f"Of {names}: from {least} to {most}.",
        x=Axis(title=_find_header(plot.x_axis), auto=True),
        y=Axis(title=_find_header(plot.y_axis)),
        lines=tuple(lines),
        size="half",
    )


def _build_line(plot: Plot, ranked: RankedVariant) -> Line:
    points: list[tuple[float, float, Measurement]] = []
    for measurement in _select_measurements(plot, ranked):
        x, y = (_read_value(tag, measurement) for tag in (plot.x_axis, plot.y_axis))
        if x is not None and y is not None:
            points.append((x, y, measurement))
    points.sort(key=lambda point: point[:2])
    if plot.monotonic:
        points = [p for i, p in enumerate(points) if all(p[1] > before[1] for before in points[:i])]
    return Line(
        name=ranked.name,
        dots=tuple(
            Dot(
                x=x,
                y=y,
                title=f"{ranked.name} at {m.load}: {_format_figure(plot.y_axis, y)}",
                stable=m.stable,
            )
            for x, y, m in points
        ),
    )


def _select_measurements(plot: Plot, ranked: RankedVariant) -> Sequence[Measurement]:
    """Return all measurements, or over a load axis only the one with the highest throughput per load."""
    if plot.x_axis not in LOADS:
        return ranked.ordered
    best: dict[float | None, Measurement] = {}
    for measurement in ranked.ordered:
        place = _read_value(plot.x_axis, measurement)
        if place not in best or measurement.throughput > best[place].throughput:
            best[place] = measurement
    return tuple(best.values())


def _read_value(tag: str, measurement: Measurement) -> float | None:
    load = measurement.load
    if tag == "batch_size":
        return load.batch_size
    if tag in LOADS:
        return load.value if load.kind == tag else None
    return metric(tag).value(measurement)


def _find_header(tag: str) -> str:
    return LOADS.get(tag) or metric(tag).header


def _format_figure(tag: str, value: float) -> str:
    return in_unit(value, "" if tag in LOADS else metric(tag).unit)
