"""The charts of a model: throughput over latency, Pareto front, latency breakdown, heat map of
instances and batch sizes, and final rounds.

Points confirmed by the final rounds have markers and intervals; if there were such rounds, points that
the search measured once are faint.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tpx.analyzer.objectives import METRICS, NS_PER_MS, RankedVariant, gpu_mb, ram_mb
from tpx.analyzer.results.goals import Goals
from tpx.analyzer.results.measurement import Measurement
from tpx.analyzer.results.pooled import Mean
from tpx.perf.report.breakdown import KINDS, Part, breakdown_picture
from tpx.report.chart import Axis, Chart, Dot, Line, Mark, linear_scale, scale_around
from tpx.report.digits import in_unit, latency, rounded
from tpx.report.document import Picture
from tpx.report.html import render_svg

LEAST_RADIUS, MOST_RADIUS = 3.0, 8.5
_LONGEST_NAME = 26
HEAT_WIDTH, HEAT_HEIGHT, HEAT_LEFT, HEAT_MARGIN = 92, 40, 74, 12
"""Pixels of a cell of the heat map, and of the margins."""
ONCE = "faint: measured once, by the search"


def load_chart(
    key: str, shown: Sequence[RankedVariant], others: Sequence[RankedVariant], goals: Goals
) -> Chart | None:
    """Return throughput over latency, one line per configuration through its loads; None without latencies.

    `shown` have a color, a marker and a legend entry, in this order; `others` are thin lines behind.
    """
    drawn = [m for ranked in (*shown, *others) for m in ranked.ordered if _latency_ns(m)]
    if not drawn:
        return None
    kind = drawn[0].load.kind.replace("_", " ")
    bests = "; ".join(
        f"{r.name}: {_told(r.figures)}, at {kind} {r.figures.load.value}" for r in shown if r.ordered
    )
    settled = any(r.settled for r in (*shown, *others))
    return Chart(
        key=key,
        title="Throughput and latency of each configuration under growing load",
        description=f"Each line joins the points of one configuration in the order of their {kind}. {bests}.",
        x=Axis(title="p99 latency (ms)", auto=True),
        y=Axis(title="Throughput (infer/s)"),
        lines=tuple(
            _line(ranked, labelled=place == 0 or ranked.run.variant.is_default, settled=settled)
            for place, ranked in enumerate(shown)
        ),
        background=tuple(_line(ranked, labelled=False, settled=settled) for ranked in others),
        marks=tuple(_limits(goals)),
        label_name=kind,
        context_name=ONCE,
    )


def _limits(goals: Goals) -> Iterator[Mark]:
    """Yield the constraints that can be drawn on an axis of the chart."""
    for constraint in goals.constraints:
        if constraint.tag == "perf_latency_p99":
            yield Mark(value=constraint.limit, text=f"limit {constraint.limit:g} ms", upright=True)
        elif constraint.tag == "perf_throughput":
            yield Mark(value=constraint.limit, text=f"limit {rounded(constraint.limit)} infer/s")


def _line(ranked: RankedVariant, *, labelled: bool, settled: bool) -> Line:
    """Return the line through a configuration's loads, interrupted between batch sizes.

    On a labelled line every point shows its load, otherwise only the one that represents it.
    """
    points = sorted(
        (m for m in ranked.ordered if _latency_ns(m)), key=lambda m: (m.load.batch_size, m.load.value)
    )
    before = [None, *(m.load.batch_size for m in points)]
    ends = [METRICS["perf_throughput"].interval(m) if isinstance(m, Mean) else None for m in points]
    return Line(
        name=ranked.name,
        dots=tuple(
            Dot(
                x=_latency_ns(m) / NS_PER_MS,
                y=m.throughput,
                title=f"{ranked.name} at {m.load}: {_told(m)}{_doubts(m)}",
                label=str(m.load.value) if labelled or m is ranked.figures else "",
                stable=m.stable,
                apart=m.load.batch_size != batch,
                context=settled and m is not ranked.settled,
            )
            for m, batch in zip(points, before, strict=False)
        ),
        spread=tuple(
            (m.throughput, m.throughput) if found is None else (found.low, found.high or m.throughput)
            for m, found in zip(points, ends, strict=True)
        ),
    )


def _latency_ns(measurement: Measurement) -> float:
    """Return the p99, or else the mean; 0 if unknown."""
    return measurement.latency.p99_ns or measurement.latency.avg_ns or 0


def _told(measurement: Measurement) -> str:
    return f"{rounded(measurement.throughput)} infer/s, {latency(_latency_ns(measurement))}"


def _doubts(measurement: Measurement) -> str:
    return "" if measurement.stable else " (not stable)"


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
    """Return the Pareto front of throughput and p99 by latency, up to the confirmed throughput."""
    confirmed = [r.figures.throughput for r in ranking if r.settled]
    ceiling = max(confirmed, default=math.inf)
    front: list[Spot] = []
    for spot in sorted(_spots(ranking, gpus=gpus), key=lambda s: (s.latency_ms, -s.throughput)):
        higher = not front or spot.throughput > front[-1].throughput
        if higher and spot.throughput <= ceiling:
            front.append(spot)
    return tuple(front)


def pareto_chart(key: str, ranking: Sequence[RankedVariant], *, gpus: bool, most: int) -> Chart | None:
    """Return the Pareto front and `most` other measurements by memory; None for fewer than three."""
    spots = _spots(ranking, gpus=gpus)
    front = front_of(ranking, gpus=gpus)
    if len(spots) < 3 or not front:
        return None
    largest = max((s.memory_mb for s in spots if s.memory_mb), default=0.0)
    on_front = {id(s.measurement) for s in front}
    others = [s for s in spots if id(s.measurement) not in on_front]
    rest = sorted(others, key=lambda s: -s.throughput)[:most]
    left_out = f" (the {len(rest)} of {len(others)} with the most throughput)"
    return Chart(
        key=key,
        title="Configurations and loads that no other beats in throughput and latency at once",
        description="The front, from the lowest latency: " + "; ".join(_title(s) for s in front) + ".",
        x=Axis(title="p99 latency (ms)", auto=True),
        y=Axis(title="Throughput (infer/s)"),
        lines=(
            Line(name="Pareto front", dots=tuple(_dot(s, largest, _label(s)) for s in front), shape="steps"),
            Line(
                name=f"the others{left_out if len(rest) < len(others) else ''}",
                dots=tuple(_dot(s, largest) for s in rest),
                shape="dots",
                faint=True,
            ),
        ),
        label_name="configuration and load",
    )


def drift_chart(key: str, ranking: Sequence[RankedVariant]) -> Chart | None:
    """Return the throughput of each final round relative to its mean; None without two rounds."""
    finalists = [r for r in ranking if len(r.run.repetitions) > 1]
    if not finalists:
        return None
    lines = tuple(_rounds_of(ranked) for ranked in finalists)
    values = [dot.y for line in lines for dot in line.dots]
    rounds = int(max(dot.x for line in lines for dot in line.dots))
    every = linear_scale([rounds], count=min(10, rounds))
    whole = tuple(mark for mark in every.marks if mark == int(mark) > 0)
    return Chart(
        key=key,
        title="The final rounds: each measurement against the mean of its configuration",
        description=(
            "Lines that rise and fall together are the machine's doing; a line of its own is the "
            f"configuration's. The values lie between {min(values):.1f} and {max(values):.1f} %."
        ),
        x=Axis(title="Round of the final repetitions", scale=replace(every, marks=whole)),
        y=Axis(
            title="Throughput (% of its mean)",
            scale=scale_around(100, max(5.0, *(abs(value - 100) for value in values))),
        ),
        lines=lines,
        size="low",
    )


def _rounds_of(ranked: RankedVariant) -> Line:
    mean = ranked.figures.throughput or 1.0
    repetitions = sorted(ranked.run.repetitions, key=lambda m: m.round)
    return Line(
        name=ranked.name,
        dots=tuple(
            Dot(
                x=m.round,
                y=m.throughput / mean * 100,
                title=f"{ranked.name}, round {m.round}: {rounded(m.throughput)} infer/s",
                stable=m.stable,
            )
            for m in repetitions
        ),
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


def _dot(spot: Spot, largest_mb: float, label: str = "") -> Dot:
    radius = _radius(spot.memory_mb, largest_mb)
    return Dot(x=spot.latency_ms, y=spot.throughput, title=_title(spot), label=label, radius_px=radius)


def _radius(memory_mb: float | None, most: float) -> float:
    """Return a radius such that the area shows the memory; the minimum without a reading."""
    if not memory_mb or not most:
        return 5.0 if not most else LEAST_RADIUS
    return round(LEAST_RADIUS + (MOST_RADIUS - LEAST_RADIUS) * math.sqrt(memory_mb / most), 1)


def _memory_mb(measurement: Measurement, *, gpus: bool) -> float | None:
    """Return the GPU memory if there is a GPU, otherwise the server's RAM."""
    found = gpu_mb(measurement) if gpus else None
    return ram_mb(measurement.memory) if found is None else found


def _label(spot: Spot) -> str:
    return f"{short_name(spot.ranked.name)} @ {spot.measurement.load.value:g}"


def _title(spot: Spot) -> str:
    held = "" if spot.memory_mb is None else f", {in_unit(spot.memory_mb, 'MB')}"
    return f"{spot.ranked.name} at {spot.measurement.load}: {_told(spot.measurement)}{held}"


def short_name(variant: str) -> str:
    """Return `config_4` for `alexnet_config_4`; on a model's page the prefix is redundant."""
    _, found, number = variant.rpartition("_config_")
    name = f"config_{number}" if found else variant
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}\u2026"


def parts_of(measurement: Measurement) -> tuple[Part, ...]:
    """Return the components of the mean latency, limited to it as means may exceed it; empty if unknown."""
    total = measurement.latency.avg_ns
    if total is None:
        return ()
    own = measurement.breakdown
    wanted = [
        ("client", own.client_send_recv_ns),
        ("queue", own.queue_ns),
        ("infer", own.compute_infer_ns),
        ("input", own.compute_input_ns),
        ("output", own.compute_output_ns),
    ]
    if all(duration is None for _, duration in wanted):
        return ()
    left, parts = total, []
    for kind, duration in wanted:
        taken = min(max(0, duration or 0), left)
        parts.append(Part(kind=kind, duration_ns=taken))
        left -= taken
    parts.append(Part(kind="network", duration_ns=left))
    order = list(KINDS)
    return tuple(sorted((p for p in parts if p.duration_ns), key=lambda part: order.index(part.kind)))


def breakdown_of_configurations(key: str, shown: Sequence[RankedVariant]) -> Picture | None:
    """Draw one bar per configuration at its best load."""
    named = [
        (f"{short_name(r.name)}, {r.figures.load.value:g}", parts_of(r.figures))
        for r in shown
        if not r.figures.members
    ]
    return breakdown_picture(key, named)


def breakdown_of_loads(key: str, ranked: RankedVariant) -> Picture | None:
    """Draw one bar per load of a configuration."""
    ordered = sorted(ranked.ordered, key=lambda m: (m.load.batch_size, m.load.value))
    named = [(str(m.load), parts_of(m)) for m in ordered if not m.members]
    return breakdown_picture(key, named)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatCell:
    """One combination of instances and max batch size at its best load, with its position in the heat map."""

    ranked: RankedVariant
    column: int
    row: int
    share: float
    """Color intensity, from the worst to the best throughput."""
    best: bool

    @property
    def text(self) -> str:
        return rounded(self.ranked.figures.throughput)

    @property
    def title(self) -> str:
        failing = "" if self.ranked.satisfies else ", misses the constraints"
        return f"{self.ranked.name} at {self.ranked.figures.load}: {self.text} infer/s{failing}"


def heat_picture(key: str, ranking: Sequence[RankedVariant], best_name: str = "") -> Picture | None:
    """Draw the best throughput by instances and max batch size, one framed; None unless both vary."""
    best: dict[tuple[int, int], RankedVariant] = {}
    for ranked in ranking:
        configuration = ranked.run.configuration
        if not configuration.members:
            best.setdefault((configuration.instances, configuration.max_batch_size), ranked)
    columns, rows = (sorted({place[i] for place in best}) for i in (0, 1))
    if len(columns) < 2 or len(rows) < 2:
        return None
    values = [ranked.figures.throughput for ranked in best.values()]
    low, span = min(values), max(values) - min(values)
    cells = [
        HeatCell(
            ranked=ranked,
            column=columns.index(count),
            row=rows.index(batch),
            share=round(0.08 + 0.92 * ((ranked.figures.throughput - low) / span if span else 1.0), 3),
            best=ranked.name == best_name,
        )
        for (count, batch), ranked in best.items()
    ]
    top = max(best.values(), key=lambda ranked: ranked.figures.throughput)
    title = "Best throughput by instances and max batch size"
    best_configuration = top.run.configuration
    description = (
        f"The most is {rounded(max(values))} infer/s with {best_configuration.instances} instances and a max "
        f"batch size of {best_configuration.max_batch_size} ({top.name}); the least {rounded(low)} infer/s."
    )
    width = HEAT_LEFT + len(columns) * HEAT_WIDTH + HEAT_MARGIN
    height = HEAT_MARGIN + len(rows) * HEAT_HEIGHT + 52
    svg = render_svg(
        "heat.svg.j2",
        key=key,
        title=title,
        description=description,
        cells=cells,
        columns=columns,
        rows=rows,
        width=width,
        height=height,
        left=HEAT_LEFT,
        top=HEAT_MARGIN,
        cell_width=HEAT_WIDTH,
        cell_height=HEAT_HEIGHT,
    )
    return Picture(svg=svg, description=f"{title}. {description}", width_px=width)
