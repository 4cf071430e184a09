"""The heat map: the best throughput by instances and by greatest batch."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tpx.analyzer.objectives import RankedVariant
from tpx.report.digits import rounded
from tpx.report.document import Picture
from tpx.report.html import render_svg

CELL_WIDTH, CELL_HEIGHT, LEFT, TOP, MARGIN = 92, 40, 74, 12, 12


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatCell:
    """One combination, at its best load."""

    x: float
    y: float
    text: str
    title: str
    share: float
    """Of the way from the worst to the best, 0 to 1."""
    strong: bool
    """Whether light text is needed on it."""
    best: bool
    failing: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatMap:
    """Laid out; columns are instances, rows greatest batches."""

    key: str
    title: str
    description: str
    cells: tuple[HeatCell, ...]
    columns: tuple[tuple[float, str], ...]
    rows: tuple[tuple[float, str], ...]
    width: int
    height: int
    cell_width: int = CELL_WIDTH
    cell_height: int = CELL_HEIGHT


def heat_picture(key: str, ranking: Sequence[RankedVariant], best: str = "") -> Picture | None:
    """Draw the heat map; None where not both of instances and batch vary."""
    heat = heat_map(key, ranking, best)
    if heat is None:
        return None
    return Picture(
        svg=render_svg("heat.svg.j2", heat=heat),
        description=f"{heat.title}. {heat.description}",
        width_px=heat.width,
    )


def heat_map(key: str, ranking: Sequence[RankedVariant], best_name: str = "") -> HeatMap | None:
    """Return the map with one configuration framed; None where not both of instances and batch vary."""
    best: dict[tuple[int, int], RankedVariant] = {}
    for ranked in ranking:
        configuration = ranked.run.configuration
        if not configuration.members:
            best.setdefault((configuration.instances, configuration.max_batch_size), ranked)
    instances = sorted({place[0] for place in best})
    batches = sorted({place[1] for place in best})
    if len(instances) < 2 or len(batches) < 2:
        return None
    values = [ranked.figures.throughput for ranked in best.values()]
    cells = tuple(
        replace(
            _cell(ranked, instances.index(count), batches.index(batch), min(values), max(values)),
            best=ranked.name == best_name,
        )
        for (count, batch), ranked in best.items()
    )
    top = max(best.values(), key=lambda ranked: ranked.figures.throughput)
    return HeatMap(
        key=key,
        title="Best throughput by instances and greatest batch",
        description=(
            f"The most is {rounded(top.figures.throughput)} infer/s with "
            f"{top.run.configuration.instances} instances and a greatest batch of "
            f"{top.run.configuration.max_batch_size} ({top.name}); the least {rounded(min(values))} infer/s."
        ),
        cells=cells,
        columns=tuple((_x(i) + CELL_WIDTH / 2, str(count)) for i, count in enumerate(instances)),
        rows=tuple((_y(i) + CELL_HEIGHT / 2 + 4, str(batch)) for i, batch in enumerate(batches)),
        width=LEFT + len(instances) * CELL_WIDTH + MARGIN,
        height=TOP + len(batches) * CELL_HEIGHT + 52,
    )


def _cell(ranked: RankedVariant, column: int, row: int, low: float, high: float) -> HeatCell:
    throughput = ranked.figures.throughput
    share = (throughput - low) / (high - low) if high > low else 1.0
    failing = "" if ranked.satisfies else ", misses the constraints"
    return HeatCell(
        x=_x(column),
        y=_y(row),
        text=rounded(throughput),
        title=f"{ranked.name} at {ranked.figures.load}: {rounded(throughput)} infer/s{failing}",
        share=round(0.08 + 0.92 * share, 3),
        strong=share > 0.5,
        best=False,
        failing=not ranked.satisfies,
    )


def _x(column: int) -> float:
    return LEFT + column * CELL_WIDTH


def _y(row: int) -> float:
    return TOP + row * CELL_HEIGHT
