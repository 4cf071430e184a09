"""The page of a run as PDF: the HTML page by WeasyPrint, or drawn from the same view model where that cannot
run."""

from dataclasses import replace
from pathlib import Path

from tpx.pages.paper import INK, MUTED, Paper
from tpx.pages.pdf import Engine, draw_chart, draw_facts, draw_tiles, write_by
from tpx.pages.view import Grid
from tpx.perf.report.breakdown import Breakdown
from tpx.perf.report.html import render_page
from tpx.perf.report.page import PerfPage

NOTICE = "#8a5a00"
TONES = {"good": "#10704a", "warn": NOTICE, "bad": "#b3261e"}


def write_page_pdf(page: PerfPage, path: Path, engine: Engine = "auto") -> str:
    """Write the page of a run; returns a note where it was not made by what was wanted first.

    Raises as `write_by`.
    """
    return write_by(engine, path, lambda: render_page(page), lambda: draw_page(page, path))


def draw_page(page: PerfPage, path: Path) -> None:
    """The view model on paper, by fpdf2 alone. Raises Unsupported and MeasurementError."""
    paper = Paper(page.title)
    paper.text(page.title, size=17, bold=True)
    paper.text(page.subtitle, color=MUTED)
    if page.notice:
        paper.text(page.notice, color=NOTICE)
    _conclusion(paper, page)
    _table(paper, "Objectives", page.objectives)
    if page.answers:
        paper.heading("Answers")
        paper.code([(line, INK) for line in page.answers.splitlines()])
    draw_chart(paper, "Latency and throughput", page.curve)
    _table(paper, "Levels", page.levels and replace(page.levels, caption="Every level; the best one is bold"))
    draw_breakdown(paper, page.breakdown)
    draw_chart(paper, "Percentiles", page.spectrum)
    draw_chart(paper, f"Distribution at {page.histogram_of}", page.histogram)
    for chart in page.timelines:
        draw_chart(paper, chart.title, chart, legend=chart is page.timelines[-1])
    _table(paper, "Models", page.members)
    _table(paper, "Server", page.server)
    _table(paper, "Server metrics", page.metrics)
    _table(paper, "Errors", page.errors)
    if page.remarks:
        paper.heading("Remarks")
        for remark in page.remarks:
            paper.text(remark)
    _provenance(paper, page)
    paper.save(path)


def draw_breakdown(paper: Paper, breakdown: Breakdown | None) -> None:
    """Bars of the mean latency's parts; nothing for None."""
    if breakdown is None:
        return
    paper.heading("Where the time goes")
    span = max(sum(s.width for s in row.segments) for row in breakdown.rows) or 1.0
    rows = [
        (row.name, row.total, [(segment.width / span, segment.color) for segment in row.segments])
        for row in breakdown.rows
    ]
    paper.bars(rows, [(name, color) for _, name, color in breakdown.legend])


def _conclusion(paper: Paper, page: PerfPage) -> None:
    found = page.conclusion
    paper.heading(found.badge, color=TONES[found.tone])
    paper.text(found.sentence, size=12)
    if found.detail:
        paper.text(found.detail, color=MUTED)
    draw_tiles(paper, page.tiles)


def _table(paper: Paper, title: str, grid: Grid | None) -> None:
    if grid is not None:
        paper.heading(title)
        paper.grid(grid)


def _provenance(paper: Paper, page: PerfPage) -> None:
    paper.heading("Where these figures come from")
    paper.code([(page.command, INK)])
    for title, facts in (("Target", page.target), ("Client", page.host), ("Options", page.settings)):
        draw_facts(paper, title, facts)
