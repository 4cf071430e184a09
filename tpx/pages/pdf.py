"""What makes a PDF: WeasyPrint from the HTML page, or fpdf2 from its view model where that cannot run."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from tpx.errors import Unsupported
from tpx.pages import html
from tpx.pages.chart import Chart
from tpx.pages.html import require_pdf
from tpx.pages.paper import MM_PER_PIXEL, Paper, require_fpdf
from tpx.pages.view import Fact, Tile

Engine = Literal["auto", "weasyprint", "builtin"]


def require_engine() -> None:
    """Raise Unsupported, saying what to install, where nothing here can make a PDF."""
    try:
        require_pdf()
    except Unsupported:
        require_fpdf()


def write_by(engine: Engine, path: Path, render: Callable[[], str], draw: Callable[[], None]) -> str:
    """Write the page that `render` makes, or let `draw` do it; returns a note where it was not made by what
    was wanted first.

    Raises Unsupported where the engine (or, of `auto`, neither) can run; MeasurementError as `write_html`.
    """
    note = ""
    if engine != "builtin":
        try:
            require_pdf()
            html.write_pdf(render(), path)
            return ""
        except Unsupported as exc:
            if engine == "weasyprint":
                raise
            note = f"drawn by fpdf2 ({exc})"
    draw()
    return note


def draw_chart(paper: Paper, title: str, chart: Chart | None, *, legend: bool = True) -> None:
    """A chart below its heading, both on one page; nothing for None."""
    if chart is not None:
        paper.heading(title, needs=chart.frame.height * MM_PER_PIXEL + 22)
        paper.chart(chart, legend=legend)


def draw_tiles(paper: Paper, tiles: Sequence[Tile]) -> None:
    """The large figures of a verdict, as a table."""
    rows = [(tile.label, f"{tile.figure} {tile.unit}", tile.note) for tile in tiles]
    paper.table(("", "", ""), rows, (False, True, False))


def draw_facts(paper: Paper, title: str, facts: Sequence[Fact]) -> None:
    """Labels and values; nothing where there is none."""
    if facts:
        paper.table((title, ""), [(fact.label, fact.value) for fact in facts], (False, False))
