"""The plots of a run, laid out."""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from tpx.perf.report.figures import level_name
from tpx.perf.results import Estimates, LevelResult, Window
from tpx.perf.statistics.batches import BINS_PER_OCTAVE, quantiles
from tpx.report.chart import FRAME, Bar, Chart, Frame, Mark
from tpx.report.plot import Dot, Extras, Line, Titles, lay_out
from tpx.report.scales import Axis, Tick, axis_for, linear_axis
from tpx.report.styles import STYLES

LOW_FRAME = Frame(height=300, bottom=242)
CURVE = (50.0, 90.0, 99.0)
SPECTRUM = (0, 10, 25, 50, 75, 90, 95, 97.5, 99, 99.5, 99.75, 99.9, 99.95, 99.99, 99.999)
MARKED = (0, 50, 90, 99, 99.9, 99.99, 99.999)
"""Percentiles that the spectrum's axis names."""
FEWEST_BEYOND = 5
"""A percentile is drawn while so many requests lie beyond it."""
BARS = 56


def curve(levels: Sequence[LevelResult], limit_ms: float) -> Chart | None:
    """Latency over throughput, level by level; None for fewer than two levels with a latency."""
    known = [r for r in levels if r.latency is not None]
    if len(known) < 2:
        return None
    lines = [_curve_line(known, percentile) for percentile in CURVE]
    values = [dot.y for line in lines for dot in line.dots] + ([limit_ms] if limit_ms else [])
    x = linear_axis([dot.x for dot in lines[0].dots], FRAME.left, FRAME.right)
    y = axis_for(values, FRAME.bottom, FRAME.top)
    kind = known[0].level.mode.replace("_", " ")
    titles = Titles(
        title="Latency and throughput under growing load",
        description="; ".join(f"{dot.title}" for dot in lines[-1].dots),
        x="Throughput (infer/s)",
        y="Latency (ms)" + _scale(y),
        labels=kind,
    )
    marks = (Mark(at=y.at(limit_ms), text=f"limit {limit_ms:g} ms"),) if limit_ms else ()
    return lay_out("curve", titles, x, y, lines, Extras(marks=marks))


def _curve_line(levels: Sequence[LevelResult], percentile: float) -> Line:
    dots, spread = [], []
    for result in levels:
        if result.latency is None:
            continue
        value = result.latency.at(percentile) / 1e6
        dots.append(
            Dot(
                x=result.throughput_infer_per_s,
                y=value,
                title=f"{level_name(result.level)}: {result.throughput_infer_per_s:,.1f} infer/s, "
                f"p{percentile:g} {value:.3f} ms",
                label=f"{result.level.value:g}" if percentile == CURVE[-1] else "",
                stable=result.meets_limits,
            )
        )
        spread.append(_interval_ms(result.estimates, percentile, value))
    return Line(name=f"p{percentile:g}", dots=tuple(dots), spread=tuple(spread))


def _interval_ms(estimates: Estimates | None, percentile: float, value: float) -> tuple[float, float]:
    found = None if estimates is None else estimates.at(percentile)
    if found is None:
        return value, value
    high = found.interval.high
    return found.interval.low / 1e6, value if high is None else high / 1e6


def spectrum(levels: Sequence[LevelResult]) -> Chart | None:
    """Latency at every percentile, one line a level; the axis is stretched towards its end."""
    shown = [r for r in levels if r.estimates is not None and r.latency is not None][:STYLES]
    if not shown:
        return None
    lines = [_spectrum_line(result) for result in shown]
    places = [dot.x for line in lines for dot in line.dots]
    end = max(places)
    marks = [p for p in MARKED if _stretched(p) <= end + 1e-9]
    x = Axis(low=0.0, high=end, start=FRAME.left, end=FRAME.right, logarithmic=False, marks=())
    y = axis_for([dot.y for line in lines for dot in line.dots], FRAME.bottom, FRAME.top)
    titles = Titles(
        title="Latency at every percentile",
        description="; ".join(f"{line.name} ends at {line.dots[-1].title}" for line in lines),
        x="Percentile of requests",
        y="Latency (ms)" + _scale(y),
    )
    ticks = tuple(Tick(x.at(_stretched(p)), f"{p:g} %") for p in marks)
    return lay_out("spectrum", titles, x, y, lines, Extras(x_ticks=ticks))


def _stretched(percentile: float) -> float:
    """Where a percentile lies: each further nine as far as the one before."""
    return -math.log10(1 - percentile / 100)


def _spectrum_line(result: LevelResult) -> Line:
    batches = result.estimates.batches if result.estimates is not None else None
    dots = []
    if batches is not None and result.latency is not None:
        whole = batches.histogram.sum(axis=0, keepdims=True)
        count = int(whole.sum())
        for p in SPECTRUM:
            if p > 50 and count * (1 - p / 100) < FEWEST_BEYOND:
                break
            value = float(quantiles(whole, batches.bins, p / 100)[0]) / 1e6
            dots.append(Dot(x=_stretched(p), y=value, title=f"p{p:g} {value:.3f} ms"))
    return Line(name=level_name(result.level), dots=tuple(dots), marked=False)


def timeline(levels: Sequence[LevelResult], what: str) -> Chart | None:
    """Every window of the run in its time; `what` is throughput or p99."""
    windows = [w for r in levels for w in r.windows]
    if len(windows) < 2:
        return None
    begun = min(w.start_ns for w in windows)
    frame = LOW_FRAME
    lines = [_timeline_line(result, begun, what) for result in levels[: 4 * STYLES]]
    lines = [line for line in lines if line.dots]
    if not lines:
        return None
    seconds = [(w.end_ns - begun) / 1e9 for w in windows]
    x = linear_axis(seconds, frame.left, frame.right, count=8)
    y = linear_axis([dot.y for line in lines for dot in line.dots], frame.bottom, frame.top)
    titles = Titles(
        title=f"{'Throughput' if what == 'throughput' else 'p99 latency'} of every window",
        description=f"{len(windows)} windows of {len(levels)} levels",
        x="Seconds since the first window began",
        y="Throughput (infer/s)" if what == "throughput" else "p99 latency (ms)",
        hollow="left out of the figures, before the load was steady",
    )
    return lay_out(f"timeline-{what}", titles, x, y, lines, Extras(frame=frame))


def _timeline_line(result: LevelResult, begun: int, what: str) -> Line:
    dots = []
    first_kept = len(result.windows) - result.kept_windows
    for i, window in enumerate(result.windows):
        value = _of_window(window, what)
        if value is not None:
            unit = "infer/s" if what == "throughput" else "ms"
            title = f"{level_name(result.level)}, window {i + 1}: {value:,.3f} {unit}"
            x = ((window.start_ns + window.end_ns) / 2 - begun) / 1e9
            dots.append(Dot(x=x, y=value, title=title, stable=i >= first_kept))
    return Line(name=level_name(result.level), dots=tuple(dots))


def _of_window(window: Window, what: str) -> float | None:
    if what == "throughput":
        return window.throughput_infer_per_s
    return None if window.latency is None else window.latency.at(99.0) / 1e6


def histogram(result: LevelResult) -> Chart | None:
    """How many requests took how long at one level."""
    if result.estimates is None or result.latency is None:
        return None
    batches = result.estimates.batches
    counts, bins = batches.histogram.sum(axis=0), batches.bins
    edges_log2 = np.linspace(bins[0] / BINS_PER_OCTAVE, (bins[-1] + 1) / BINS_PER_OCTAVE, BARS + 1)
    place = np.clip(np.searchsorted(edges_log2, (bins + 0.5) / BINS_PER_OCTAVE) - 1, 0, BARS - 1)
    totals = np.bincount(place, weights=counts, minlength=BARS)
    edges = [float(2.0**e / 1e6) for e in edges_log2]
    frame = LOW_FRAME
    x = _between(edges[0], edges[-1], frame)
    y = linear_axis(totals.tolist(), frame.bottom, frame.top)
    bars = tuple(
        Bar(
            x=x.at(low),
            y=y.at(float(total)),
            width=round(max(0.5, x.at(high) - x.at(low) - 1), 1),
            height=round(frame.bottom - y.at(float(total)), 1),
            title=f"{low:.3g} to {high:.3g} ms: {int(total):,} requests",
        )
        for (low, high), total in zip(pairwise(edges), totals, strict=True)
        if total
    )
    titles = Titles(
        title="How many requests took how long",
        description=f"{int(counts.sum())} requests at {level_name(result.level)}",
        x="Latency (ms" + (", logarithmic scale)" if x.logarithmic else ")"),
        y="Requests",
    )
    marks = tuple(
        Mark(at=x.at(result.latency.at(p) / 1e6), text=f"p{p:g}", upright=True) for p in (50.0, 99.0)
    )
    return lay_out("histogram", titles, x, y, (), Extras(bars=bars, marks=marks, frame=frame))


def _between(low: float, high: float, frame: Frame) -> Axis:
    """A logarithmic axis over exactly these values, with whatever round marks lie inside."""
    high = max(high, low * 1.01)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if high / low > 4 else (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9)
    marks = tuple(s * 10.0**d for d in decades for s in steps if low <= s * 10.0**d <= high)
    return Axis(low=low, high=high, start=frame.left, end=frame.right, logarithmic=True, marks=marks)


def _scale(axis: Axis) -> str:
    return ", logarithmic scale" if axis.logarithmic else ""
