"""Splits the mean latency of a level into parts that add up to it, and draws them."""

from collections.abc import Sequence
from dataclasses import dataclass

from tpx.perf.report.model import level_name
from tpx.perf.results import LevelResult, ServerBreakdown
from tpx.report.chart import format_mark, linear_scale
from tpx.report.digits import latency
from tpx.report.document import Picture
from tpx.report.html import part_entry, render_svg
from tpx.report.layout import Tick


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of the mean latency, in ns."""

    kind: str
    duration_ns: int


KINDS = {
    "late": ("waiting to be sent", "#b3261e"),
    "client": ("client sends and reads", "#8a949f"),
    "network": ("between client and server", "#c3cad3"),
    "overhead": ("server, around the model", "#9a6b00"),
    "queue": ("queue", "#d55e00"),
    "cache": ("response cache", "#009e73"),
    "input": ("compute input", "#2b8fcf"),
    "infer": ("compute", "#0072b2"),
    "output": ("compute output", "#b8578f"),
}
"""Name of each part, and its color without a style sheet."""


def parts_of(result: LevelResult) -> tuple[Part, ...]:
    """Return the parts of the mean latency; they add up to it.

    The means come from slightly different sets of requests, so each part is limited to the time that is
    left.
    """
    if result.latency is None or result.client is None:
        return ()
    total = result.latency.mean_ns
    late = 0
    if result.open_loop is not None:
        late = max(0, total - result.open_loop.service_latency.mean_ns)
    client = result.client.send_ns + result.client.receive_ns
    wanted = [("late", late), ("client", client)]
    if result.server is not None and result.server.success_count:
        wanted += _list_server_times(result.server)
    left = total
    parts = []
    for kind, duration in wanted:
        taken = min(max(0, duration), left)
        parts.append(Part(kind=kind, duration_ns=taken))
        left -= taken
    parts.append(Part(kind="network", duration_ns=left))
    order = list(KINDS)
    return tuple(sorted((p for p in parts if p.duration_ns), key=lambda part: order.index(part.kind)))


def _list_server_times(server: ServerBreakdown) -> list[tuple[str, int]]:
    """Return server times averaged over all requests, including those without a given stage."""
    requests = server.success_count
    cache_ns = (server.cache_hit_ns + server.cache_miss_ns) // requests
    parts = [
        ("queue", server.queue_ns // requests),
        ("infer", server.compute_infer_ns // requests),
        ("input", server.compute_input_ns // requests),
        ("output", server.compute_output_ns // requests),
        ("cache", cache_ns),
    ]
    rest = server.success_ns // requests - sum(ns for _, ns in parts)
    return [*parts, ("overhead", rest)]


@dataclass(frozen=True, slots=True, kw_only=True)
class BarFrame:
    """Size of a drawing of stacked bars in pixels, and the positions of bar and name in a row."""

    width: int = 960
    left: int = 190
    right: int = 890
    row: int = 34
    bar_top: int = 4
    bar: int = 20
    name_x: int = 180
    name_y: int = 18
    name_anchor: str = "end"


WIDE = BarFrame()
COMPACT = BarFrame(
    width=440, left=10, right=370, row=44, bar_top=20, bar=18, name_x=10, name_y=14, name_anchor="start"
)
TOP, BELOW = 8, 46


@dataclass(frozen=True, slots=True, kw_only=True)
class BarSegment:
    """A part in its row."""

    kind: str
    color: str
    x: float
    width: float
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BarRow:
    """The row of one level or configuration."""

    y: float
    name: str
    total: str
    segments: tuple[BarSegment, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """Stacked bars in their frame."""

    key: str
    frame: BarFrame
    x_title: str
    rows: tuple[BarRow, ...]
    ticks: tuple[Tick, ...]
    description: str
    """Total of each bar, as text."""
    bottom: int
    """Lower end of the grid, which begins at `top`."""
    height: int
    top: int = TOP


def breakdown_picture(key: str, named: Sequence[tuple[str, Sequence[Part]]]) -> Picture | None:
    """Draw one bar per name, as long as its parts together; None if there are no parts."""
    drawing, compact = lay_out(key, named, WIDE), lay_out(f"{key}-compact", named, COMPACT)
    if not drawing.rows:
        return None
    shown = {segment.kind for row in drawing.rows for segment in row.segments}
    return Picture(
        svg=render_svg("breakdown.svg.j2", drawing=drawing),
        compact_svg=render_svg("breakdown.svg.j2", drawing=compact),
        description=f"Where the mean latency goes. {drawing.description}",
        width_px=drawing.frame.width,
        legend=tuple(part_entry(kind, name, color) for kind, (name, color) in KINDS.items() if kind in shown),
    )


def lay_out(key: str, named: Sequence[tuple[str, Sequence[Part]]], frame: BarFrame) -> Breakdown:
    """Lay the bars out, in microseconds below a millisecond, else in milliseconds."""
    known = [(name, parts) for name, parts in named if parts]
    totals = [sum(part.duration_ns for part in parts) for _, parts in known]
    unit, unit_ns = ("us", 1e3) if max(totals, default=0) < 1e6 else ("ms", 1e6)
    scale = linear_scale([total / unit_ns for total in totals])

    def x(duration_ns: float) -> float:
        return round(frame.left + scale.share(duration_ns / unit_ns) * (frame.right - frame.left), 1)

    rows = []
    for number, ((name, parts), total) in enumerate(zip(known, totals, strict=True)):
        at, segments = 0, []
        for part in parts:
            kind, color = KINDS[part.kind]
            title = f"{kind}: {latency(part.duration_ns)}"
            width = round(x(at + part.duration_ns) - x(at), 1)
            segments.append(BarSegment(kind=part.kind, color=color, x=x(at), width=width, title=title))
            at += part.duration_ns
        rows.append(
            BarRow(y=TOP + number * frame.row, name=name, total=latency(total), segments=tuple(segments))
        )
    return Breakdown(
        key=key,
        frame=frame,
        x_title=f"Mean latency ({unit})",
        rows=tuple(rows),
        description="; ".join(f"{row.name}: {row.total}" for row in rows),
        bottom=TOP + len(rows) * frame.row,
        height=TOP + len(rows) * frame.row + BELOW,
        ticks=tuple(Tick(x(mark * unit_ns), format_mark(mark)) for mark in scale.marks),
    )


def breakdown_of_levels(levels: Sequence[LevelResult]) -> Picture | None:
    """Draw one bar per level; None if no level has a latency."""
    return breakdown_picture("breakdown", [(level_name(r.level), parts_of(r)) for r in levels])
