"""Where the mean latency of a level goes, in parts that add up to it."""

from collections.abc import Sequence
from dataclasses import dataclass

from tpx.perf.report.figures import level_name
from tpx.perf.results import LevelResult, ServerBreakdown
from tpx.report.document import Picture
from tpx.report.html import render_svg
from tpx.report.picture import part_entry
from tpx.report.scales import Tick, linear_axis

WIDTH, LEFT, RIGHT, TOP, ROW, BAR = 960, 190, 890, 8, 34, 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A share of the mean latency in ns."""

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
"""What each part is called, and its colour where no style sheet reaches."""


def parts_of(result: LevelResult) -> tuple[Part, ...]:
    """The parts of the mean latency; their sum is the mean latency.

    Each reading is a mean of its own, of slightly different requests: a part takes no more than is left.
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
        wanted += _server(result.server)
    left = total
    parts = []
    for kind, duration in wanted:
        taken = min(max(0, duration), left)
        parts.append(Part(kind=kind, duration_ns=taken))
        left -= taken
    parts.append(Part(kind="network", duration_ns=left))
    order = list(KINDS)
    return tuple(sorted((p for p in parts if p.duration_ns), key=lambda part: order.index(part.kind)))


def _server(server: ServerBreakdown) -> list[tuple[str, int]]:
    """Mean of every request; what is known of fewer requests counts as much less."""
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
class Segment:
    """A part on its row."""

    kind: str
    color: str
    x: float
    width: float
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One level."""

    y: float
    name: str
    total: str
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """All levels, laid out."""

    rows: tuple[Row, ...]
    ticks: tuple[Tick, ...]
    legend: tuple[tuple[str, str, str], ...]
    """Kind, name, colour."""
    height: int
    key: str = "breakdown"
    """Makes the ids in the page unique."""
    x_title: str = "Mean latency (microseconds)"
    description: str = ""
    width: int = WIDTH
    left: int = LEFT
    right: int = RIGHT
    top: int = TOP
    bar: int = BAR

    @property
    def bottom(self) -> int:
        return self.height - 46


def breakdown_picture(breakdown: Breakdown | None) -> Picture | None:
    """Draw the bars; None for None."""
    if breakdown is None:
        return None
    return Picture(
        svg=render_svg("breakdown.svg.j2", breakdown=breakdown),
        description=f"Where the mean latency goes. {breakdown.description}",
        width_px=breakdown.width,
        legend=tuple(part_entry(*part) for part in breakdown.legend),
    )


def lay_out_breakdown(levels: Sequence[LevelResult]) -> Breakdown | None:
    """None where no level has a latency."""
    return lay_out_rows([(level_name(r.level), parts_of(r)) for r in levels])


def lay_out_rows(
    named: Sequence[tuple[str, Sequence[Part]]], *, unit: str = "us", key: str = "breakdown"
) -> Breakdown | None:
    """Bars by name, each as long as its parts together, in us or ms; None where nothing has a part."""
    known = [(name, parts) for name, parts in named if parts]
    if not known:
        return None
    scale, digits = (1e6, 2) if unit == "ms" else (1e3, 0)
    axis = linear_axis([sum(p.duration_ns for p in parts) / scale for _, parts in known], LEFT, RIGHT)
    rows = []
    for number, (name, parts) in enumerate(known):
        at, segments = 0, []
        for part in parts:
            x = axis.at(at / scale)
            at += part.duration_ns
            kind, color = KINDS[part.kind]
            title = f"{kind}: {part.duration_ns / scale:,.{max(digits, 1)}f} {unit}"
            segments.append(
                Segment(
                    kind=part.kind, color=color, x=x, width=round(axis.at(at / scale) - x, 1), title=title
                )
            )
        total = f"{at / scale:,.{digits}f} {unit}"
        rows.append(Row(y=TOP + number * ROW, name=name, total=total, segments=tuple(segments)))
    shown = {part.kind for _, parts in known for part in parts}
    return Breakdown(
        key=key,
        x_title=f"Mean latency ({'milliseconds' if unit == 'ms' else 'microseconds'})",
        description="; ".join(f"{row.name}: {row.total}" for row in rows),
        rows=tuple(rows),
        ticks=axis.ticks,
        legend=tuple((kind, name, color) for kind, (name, color) in KINDS.items() if kind in shown),
        height=TOP + len(known) * ROW + 46,
    )
