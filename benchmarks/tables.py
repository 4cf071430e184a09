"""Results as Markdown that is aligned, so that it can be read on a terminal as well as in a page."""

from collections.abc import Sequence

from benchmarks.goals import Goal
from benchmarks.machine import Machine
from benchmarks.results import FIGURES, Cell, Side

RATIOS = (
    "throughput",
    "p50_us",
    "p90_us",
    "p99_us",
    "server_cpu_us",
    "tokens_per_s",
    "client_cpu_us",
    "run_cpu_s",
    "wall_s",
    "ready_s",
    "rss_mb",
)
"""Figures of which the first side's ratio to every other is shown, where they were measured."""
ABSENT = "-"
ERROR_CHARS = 200


def bench_table(title: str, figures: Sequence[str], cells: Sequence[Cell]) -> str:
    """Medians of every side, the spread of its throughput, and the first side's ratios to it."""
    ratios = [figure for figure in RATIOS if figure in figures]
    spread = ["+-"] if "throughput" in figures else []
    header = ["cell", "side", *(FIGURES[f].title for f in figures), *spread]
    header += [f"ratio {FIGURES[f].title}" for f in ratios]
    rows = []
    for cell in cells:
        for side in cell.sides:
            row = [cell.name, side.name, *(_value(side, f) for f in figures)]
            row += [_percent(side.spread("throughput"))] if spread else []
            compared = side is not cell.sides[0]
            row += [_decimals(cell.ratio(f, side.name), 2) if compared else "" for f in ratios]
            rows.append(row)
    missing = [
        f"{cell.name}: {side.name}: {len(side.errors)} rounds failed: {side.errors[0][:ERROR_CHARS]}"
        for cell in cells
        for side in cell.sides
        if side.errors
    ]
    return "\n".join([f"### {title}", "", _aligned(header, rows), *(["", *missing] if missing else [])])


def goal_table(goals: Sequence[Goal], cells: Sequence[Cell]) -> str:
    """What was measured of the goals, each with its bound and whether it is met."""
    header = ["bench", "cell", "figure", "over", "measured", "bound", ""]
    rows = []
    for goal in goals:
        value = goal.measured(cells)
        verdict = "not measured" if value is None else "met" if goal.met(value) else "MISSED"
        title = FIGURES[goal.figure].title
        rows.append([goal.bench, goal.cell, title, goal.over, _decimals(value, 3), goal.bound, verdict])
    return "\n".join(["### Goals", "", _aligned(header, rows)])


def page(machine: Machine, how: str, tables: Sequence[str]) -> str:
    """Everything, as Markdown below a second-level heading."""
    return "\n\n".join([f"Measured {machine}; {how}.", *tables]) + "\n"


def _value(side: Side, figure: str) -> str:
    return _decimals(side.median(figure), FIGURES[figure].decimals)


def _decimals(value: float | None, decimals: int) -> str:
    return ABSENT if value is None else f"{value:.{decimals}f}"


def _percent(share: float | None) -> str:
    return ABSENT if share is None else f"{share:.0%}"


def _aligned(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(3, *(len(row[i]) for row in [header, *rows])) for i in range(len(header))]
    lines = [header, ["-" * width for width in widths], *rows]
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |"
        for line in lines
    )
