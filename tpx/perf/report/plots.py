"""Charts of a run."""

import math
from collections.abc import Sequence

from tpx.perf.objectives import Objective
from tpx.perf.report.model import level_name
from tpx.perf.results import LevelResult, Verdict
from tpx.perf.statistics.summaries import quantiles
from tpx.report.chart import STYLES, Axis, Chart, Dot, Line, Mark, Scale, linear_scale
from tpx.report.digits import in_unit, latency, rounded

CURVE = (50.0, 90.0, 99.0)
SPECTRUM = (0, 10, 25, 50, 75, 90, 95, 97.5, 99, 99.5, 99.75, 99.9, 99.95, 99.99, 99.999)
MARKED = (0, 50, 90, 99, 99.9, 99.99, 99.999)
"""Percentiles labeled on the spectrum's axis."""
FEWEST_BEYOND = 5
"""Minimum number of requests beyond a percentile for it to be drawn."""


def curve(levels: Sequence[LevelResult], limit_ms: float, slo: Sequence[Objective] = ()) -> Chart | None:
    """Return latency over throughput, level by level; None for fewer than two levels with a latency.

    The latency limit and the objectives on latencies are horizontal lines.
    """
    known = [r for r in levels if r.latency is not None]
    if len(known) < 2:
        return None
    lines = tuple(_build_curve_line(known, percentile) for percentile in CURVE)
    marks = [Mark(value=limit_ms, text=f"limit {limit_ms:g} ms")] if limit_ms else []
    marks += [Mark(value=o.bound / 1e6, text=o.text) for o in slo if o.is_latency]
    return Chart(
        key="curve",
        title="Latency and throughput under growing load",
        description="; ".join(dot.title for dot in lines[-1].dots),
        x=Axis(title="Throughput (infer/s)"),
        y=Axis(title="Latency (ms)", auto=True),
        lines=lines,
        marks=tuple(marks),
        label_name=known[0].level.kind.text,
    )


def _build_curve_line(levels: Sequence[LevelResult], percentile: float) -> Line:
    dots, spread = [], []
    for result in levels:
        if result.latency is None:
            continue
        value = result.latency.at(percentile) / 1e6
        dots.append(
            Dot(
                x=result.throughput_infer_per_s,
                y=value,
                title=f"{level_name(result.level)}: {rounded(result.throughput_infer_per_s)} infer/s, "
                f"p{percentile:g} {latency(value * 1e6)}",
                label=f"{result.level.value:g}" if percentile == CURVE[-1] else "",
                stable=result.verdict is not Verdict.UNSTABLE,
            )
        )
        found = None if result.estimates is None else result.estimates.at(percentile)
        low = value if found is None else found.interval.low / 1e6
        high = None if found is None else found.interval.high
        spread.append((low, value if high is None else high / 1e6))
    return Line(name=f"p{percentile:g}", dots=tuple(dots), spread=tuple(spread))


def spectrum(levels: Sequence[LevelResult]) -> Chart | None:
    """Return latency over percentile, one line per level, on a logarithmic percentile axis."""
    shown = [r for r in levels if r.estimates is not None and r.latency is not None][:STYLES]
    if not shown:
        return None
    lines = tuple(_build_spectrum_line(result) for result in shown)
    end = max(dot.x for line in lines for dot in line.dots)
    marks = [p for p in MARKED if _scale_percentile(p) <= end + 1e-9]
    scale = Scale(
        low=0.0,
        high=end,
        logarithmic=False,
        marks=tuple(map(_scale_percentile, marks)),
        labels=tuple(f"{p:g} %" for p in marks),
    )
    return Chart(
        key="spectrum",
        title="Latency at every percentile",
        description="; ".join(f"{line.name} ends at {line.dots[-1].title}" for line in lines),
        x=Axis(title="Percentile of requests", scale=scale),
        y=Axis(title="Latency (ms)", auto=True),
        lines=lines,
    )


def _scale_percentile(percentile: float) -> float:
    """Return the position of a percentile on a logarithmic percentile axis."""
    return -math.log10(1 - percentile / 100)


def _build_spectrum_line(result: LevelResult) -> Line:
    batches = result.estimates.batches if result.estimates is not None else None
    dots = []
    if batches is not None and result.latency is not None:
        whole = batches.histogram.sum(axis=0, keepdims=True)
        count = int(whole.sum())
        for p in SPECTRUM:
            if p > 50 and count * (1 - p / 100) < FEWEST_BEYOND:
                break
            value = float(quantiles(whole, batches.bins, p / 100)[0]) / 1e6
            dots.append(Dot(x=_scale_percentile(p), y=value, title=f"p{p:g} {value:.3f} ms"))
    return Line(name=level_name(result.level), dots=tuple(dots), marked=False)


def timeline(levels: Sequence[LevelResult], what: str) -> Chart | None:
    """Return every window of the run over time; `what` is throughput or p99."""
    windows = [w for r in levels for w in r.windows]
    if len(windows) < 2:
        return None
    begun = min(w.start_ns for w in windows)
    lines = [_build_timeline_line(result, begun, what) for result in levels[: 4 * STYLES]]
    lines = [line for line in lines if line.dots]
    if not lines:
        return None
    seconds = [(w.end_ns - begun) / 1e9 for w in windows]
    return Chart(
        key=f"timeline-{what}",
        title=f"{'Throughput' if what == 'throughput' else 'p99 latency'} of every window",
        description=f"{len(windows)} windows of {len(levels)} levels",
        x=Axis(title="Seconds since the first window began", scale=linear_scale(seconds, count=8)),
        y=Axis(title="Throughput (infer/s)" if what == "throughput" else "p99 latency (ms)"),
        lines=tuple(lines),
        size="low",
    )


def _build_timeline_line(result: LevelResult, begun: int, what: str) -> Line:
    dots = []
    first_kept = len(result.windows) - result.kept_windows
    for i, window in enumerate(result.windows):
        value = window.throughput_infer_per_s
        if what != "throughput":
            value = math.nan if window.latency is None else window.latency.at(99.0) / 1e6
        if not math.isnan(value):
            unit = "infer/s" if what == "throughput" else "ms"
            title = f"{level_name(result.level)}, window {i + 1}: {in_unit(value, unit)}"
            x = ((window.start_ns + window.end_ns) / 2 - begun) / 1e9
            dots.append(Dot(x=x, y=value, title=title, stable=i >= first_kept))
    return Line(name=level_name(result.level), dots=tuple(dots))
