"""Charts of a run; one splits the mean latency of each level into parts that add up to it."""

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise

from tpx.perf.objectives import Objective
from tpx.perf.report.model import level_name, load_name
from tpx.perf.results import LevelResult, Verdict
from tpx.perf.statistics.summaries import quantiles
from tpx.report.chart import STYLES, Axis, Bar, BarPart, Chart, Dot, Line, Mark, Scale, linear_scale
from tpx.report.digits import MICROSECONDS, in_unit, latency, rounded

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
    marks += [Mark(value=o.bound / 1e6, text=o.text) for o in slo if o.is_latency and not o.figure]
    return Chart(
        title="Latency and throughput under growing load",
        description="; ".join(dot.title for dot in lines[-1].dots),
        x=Axis(title="Throughput (infer/s)"),
        y=Axis(title="Latency (ms)", auto=True),
        lines=lines,
        marks=tuple(marks),
        label_name=known[0].level.kind.text,
    )


def _build_curve_line(levels: Sequence[LevelResult], percentile: float) -> Line:
    dots = []
    for result in levels:
        if result.latency is None:
            continue
        value = result.latency.at(percentile) / 1e6
        found = None if result.estimates is None else result.estimates.at(percentile)
        interval = None
        if found is not None:
            high_ns = found.interval.high
            interval = (found.interval.low / 1e6, value if high_ns is None else high_ns / 1e6)
        dots.append(
            Dot(
                x=result.throughput_infer_per_s,
                y=value,
                title=f"{level_name(result.level)}: {rounded(result.throughput_infer_per_s)} infer/s, "
                f"p{percentile:g} {latency(value * 1e6)}",
                interval=interval,
                label=f"{result.level.value:g}" if percentile == CURVE[-1] else "",
                stable=result.verdict is not Verdict.UNSTABLE,
            )
        )
    return Line(name=f"p{percentile:g}", dots=tuple(dots))


def speeds(levels: Sequence[LevelResult]) -> Chart | None:
    """Return the output tokens per second of all users over those of one, level by level.

    None for fewer than two levels of a language model.
    """
    known = [
        (result, stream, stream.user_units_per_s)
        for result in levels
        if (stream := result.streaming) is not None and stream.user_units_per_s is not None
    ]
    if len(known) < 2:
        return None
    dots = tuple(
        Dot(
            x=speed,
            y=stream.units_per_s,
            title=f"{level_name(result.level)}: {rounded(stream.units_per_s)} tokens/s, "
            f"{rounded(speed)} for each user",
            label=f"{result.level.value:g}",
            stable=result.verdict is not Verdict.UNSTABLE,
        )
        for result, stream, speed in known
    )
    return Chart(
        title="Tokens of all users, and speed of each",
        description="; ".join(dot.title for dot in dots),
        x=Axis(title="Speed of one user (tokens/s)"),
        y=Axis(title="Output (tokens/s)", auto=True),
        lines=(Line(name="output", dots=dots),),
        label_name=known[0][0].level.kind.text,
    )


def requests_chart(levels: Sequence[LevelResult]) -> Chart | None:
    """Return the last requests of the highest load to a language model in time, from due to the last token.

    A request lies in the lowest row that is free when it is due. None without tokens.
    """
    known = [r for r in levels if r.streaming is not None and len(r.streaming.spans) > 1]
    if not known:
        return None
    result = max(known, key=lambda r: r.level.value)
    spans = result.streaming.spans if result.streaming else ()
    free_ns: list[int] = []
    bars, firsts = [], []
    for span in spans:
        row = next((i for i, until_ns in enumerate(free_ns) if until_ns <= span.due_ns), len(free_ns))
        free_ns[row : row + 1] = [span.end_ns]
        title = f"first token after {latency(span.first_ns - span.due_ns)}, "
        title += f"all after {latency(span.end_ns - span.due_ns)}"
        bars.append(Dot(x=span.due_ns / 1e9, y=row + 1, title=title, apart=True))
        bars.append(Dot(x=span.end_ns / 1e9, y=row + 1, title=title))
        firsts.append(Dot(x=span.first_ns / 1e9, y=row + 1, title=title, radius_px=2.5))
    return Chart(
        title=f"The last {len(spans)} requests at {load_name(result.level)}",
        description="; ".join(dot.title for dot in firsts),
        x=Axis(title="Seconds since the first of them was due"),
        y=Axis(title="Requests at a time"),
        lines=(
            Line(name="request", dots=tuple(bars), marked=False),
            Line(name="first token", dots=tuple(firsts), shape="dots"),
        ),
        size="low",
    )


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
        total = batches.histogram.sum(axis=0, keepdims=True)
        count = int(total.sum())
        for p in SPECTRUM:
            if p > 50 and count * (1 - p / 100) < FEWEST_BEYOND:
                break
            value = float(quantiles(total, batches.bins, p / 100)[0]) / 1e6
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
        title=f"{'Throughput' if what == 'throughput' else 'p99 latency'} of every window",
        description=f"{len(windows)} windows of {len(levels)} levels",
        x=Axis(title="Seconds since the first window began", scale=linear_scale(seconds, count=8)),
        y=Axis(title="Throughput (infer/s)" if what == "throughput" else "p99 latency (ms)"),
        lines=tuple(lines),
        size="low",
    )


def _build_timeline_line(result: LevelResult, begun: int, what: str) -> Line:
    dots = []
    steady = result.verdict is not Verdict.UNSTABLE
    first_kept = len(result.windows) - result.kept_windows
    for i, window in enumerate(result.windows):
        value = window.throughput_infer_per_s
        if what != "throughput":
            value = math.nan if window.latency is None else window.latency.at(99.0) / 1e6
        if not math.isnan(value):
            unit = "infer/s" if what == "throughput" else "ms"
            title = f"{level_name(result.level)}, window {i + 1}: {in_unit(value, unit)}"
            x = ((window.start_ns + window.end_ns) / 2 - begun) / 1e9
            dots.append(Dot(x=x, y=value, title=title, stable=steady and i >= first_kept))
    return Line(name=level_name(result.level), dots=tuple(dots))


PARTS = {
    "late": ("waiting to be sent", 7),
    "client": ("client sends and reads", 8),
    "network": ("between client and server", 9),
    "overhead": ("server, around the model", 4),
    "queue": ("queue", 1),
    "cache": ("response cache", 2),
    "input": ("compute input", 5),
    "infer": ("compute", 0),
    "output": ("compute output", 3),
}
"""Name and color of each part of the mean latency, in the order of time."""


def parts_of(result: LevelResult) -> dict[str, int]:
    """Return the parts of the mean latency in ns, which add up to it; the network is the rest."""
    if result.latency is None or result.client is None:
        return {}
    mean_ns = left = result.latency.mean_ns
    late = 0 if result.open_loop is None else mean_ns - result.open_loop.service_latency.mean_ns
    wanted = [("late", late), ("client", result.client.send_ns + result.client.receive_ns)]
    if result.server is not None and result.server.success_count:
        # over all requests, including those without a given stage
        server, requests = result.server, result.server.success_count
        stages = [
            ("queue", server.queue_ns // requests),
            ("infer", server.compute_infer_ns // requests),
            ("input", server.compute_input_ns // requests),
            ("output", server.compute_output_ns // requests),
            ("cache", (server.cache_hit_ns + server.cache_miss_ns) // requests),
        ]
        wanted += [*stages, ("overhead", server.success_ns // requests - sum(ns for _, ns in stages))]
    found = {}
    for part, duration_ns in wanted:
        # the means come from slightly different sets of requests: none takes more than what is left
        found[part] = min(max(0, duration_ns), left)
        left -= found[part]
    found["network"] = left
    return {part: found[part] for part in PARTS if found.get(part)}


def breakdown(named: Sequence[tuple[str, LevelResult]]) -> Chart | None:
    """Return one bar per level, as long as the parts of its mean latency; None if none has a latency."""
    known = [(name, parts) for name, result in named if (parts := parts_of(result))]
    if not known:
        return None
    longest_ns = max(sum(parts.values()) for _, parts in known)
    unit, unit_ns = (MICROSECONDS, 1e3) if longest_ns < 1e6 else ("ms", 1e6)
    bars = tuple(
        Bar(
            name=name,
            total=latency(sum(parts.values())),
            parts=tuple(
                BarPart(
                    color=PARTS[part][1],
                    start=start_ns / unit_ns,
                    end=end_ns / unit_ns,
                    title=f"{name}, {PARTS[part][0]}: {latency(end_ns - start_ns)}",
                )
                for part, (start_ns, end_ns) in zip(
                    parts, pairwise(accumulate(parts.values(), initial=0)), strict=True
                )
            ),
        )
        for name, parts in known
    )
    return Chart(
        title="Where the mean latency goes",
        description="; ".join(f"{bar.name}: {bar.total}" for bar in bars),
        x=Axis(title=f"Mean latency ({unit})"),
        bars=bars,
        part_names={color: name for name, color in PARTS.values()},
        size="bars",
    )
