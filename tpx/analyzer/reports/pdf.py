"""The report as PDF: the HTML page by WeasyPrint, or drawn from the same view model where that cannot run."""

from collections.abc import Sequence
from pathlib import Path

from tpx.analyzer.reports.detail import DetailPage
from tpx.analyzer.reports.heat import LEFT, HeatCell, HeatMap
from tpx.analyzer.reports.manner import Manner
from tpx.analyzer.reports.page import Places, build
from tpx.analyzer.reports.view import FailureCard, ModelPage, Page
from tpx.analyzer.results.run import Run
from tpx.pages import html
from tpx.pages.paper import INK, MM_PER_PIXEL, MUTED, Paper
from tpx.pages.pdf import Engine, draw_chart, draw_facts, draw_tiles, write_by
from tpx.pages.styles import COLORS
from tpx.perf.report.pdf import draw_breakdown

_DIFF = {"add": "#10704a", "remove": "#b3261e", "hunk": MUTED, "same": INK}
LOG_LINES = 12


def write_report_pdf(
    run: Run, places: Places, path: Path, engine: Engine = "auto", manner: Manner | None = None
) -> str:
    """Write the report of a run; returns a note where it was not made by what was wanted first.

    Raises Unsupported where the engine (or, of `auto`, neither) can run; MeasurementError as `write_html`.
    """
    page = build(run, places, manner, data=False)
    return write_by(
        engine, path, lambda: html.render("analyze_report.html.j2", page), lambda: draw_pdf(page, path)
    )


def write_detail_pdf(page: DetailPage, path: Path, engine: Engine = "auto") -> str:
    """Write the report of a single configuration; as `write_report_pdf`."""
    return write_by(
        engine, path, lambda: html.render("analyze_detail.html.j2", page), lambda: draw_detail_pdf(page, path)
    )


def draw_detail_pdf(page: DetailPage, path: Path) -> None:
    """The view model of a single configuration on paper, by fpdf2 alone. Raises as `draw_pdf`."""
    paper = Paper(page.title)
    paper.text(page.title, size=17, bold=True)
    paper.text(page.subtitle, color=MUTED)
    paper.heading(page.badge)
    paper.text(page.sentence, size=12)
    paper.table(("", ""), [(tile.label, f"{tile.figure} {tile.unit}") for tile in page.tiles], (False, True))
    draw_chart(paper, "Throughput and latency", page.chart)
    draw_breakdown(paper, page.breakdown)
    for plot in page.plots:
        draw_chart(paper, plot.title, plot)
    paper.heading("Loads")
    paper.grid(page.loads)
    if page.repetitions is not None:
        paper.heading("Final rounds")
        paper.grid(page.repetitions)
    if page.notes:
        paper.heading("Why the search ended here")
        for note in page.notes:
            paper.text(note)
    _failures(paper, page.failures)
    paper.heading("The configuration")
    paper.code([(page.command, INK)])
    draw_facts(paper, "Facts", page.facts)
    if page.diff:
        paper.heading("Against the default")
        paper.code([(line.text, _DIFF[line.kind]) for line in page.diff])
    paper.heading("config.pbtxt")
    paper.code([(line, INK) for line in page.config_text.splitlines()])
    paper.save(path)


def draw_pdf(page: Page, path: Path) -> None:
    """The view model on paper, by fpdf2 alone. Raises Unsupported and MeasurementError."""
    paper = Paper(page.title)
    paper.text(page.title, size=17, bold=True)
    paper.text(page.subtitle, color=MUTED)
    if page.notice:
        paper.text(page.notice, color="#8a5a00")
    if page.top is not None:
        paper.heading("The best of all models")
        paper.grid(page.top)
    for model in page.models:
        _model(paper, model, named=len(page.models) > 1)
    paper.heading("Where these figures come from")
    paper.code([(page.command, INK)])
    for title, facts in (
        ("Machine", page.host),
        ("Versions", page.versions),
        ("Options", page.settings),
        ("Hashes", page.hashes),
    ):
        draw_facts(paper, title, facts)
    paper.save(path)


def _model(paper: Paper, model: ModelPage, *, named: bool) -> None:
    if named:
        paper.heading(model.model, 15.0)
    card = model.verdict
    paper.heading(card.badge)
    paper.text("".join(span.text for span in card.sentence), size=12)
    for text in (card.detail, card.caution):
        if text:
            paper.text(text, color=MUTED)
    draw_tiles(paper, card.tiles)
    _recommendation(paper, model)
    draw_chart(paper, "Throughput and latency", model.chart)
    for plot in model.plots:
        draw_chart(paper, plot.title, plot)
    if model.configurations is not None:
        paper.heading("Configurations")
        paper.grid(model.configurations)
    draw_chart(paper, "What to choose from: the Pareto front", model.pareto)
    draw_breakdown(paper, model.breakdown)
    _heat(paper, model.heat)
    draw_chart(paper, "The final rounds", model.drift)
    _search(paper, model)
    if model.measurements is not None:
        paper.heading("All measurements")
        paper.grid(model.measurements)


def _recommendation(paper: Paper, model: ModelPage) -> None:
    item = model.recommendation
    if item is None:
        return
    paper.heading("What to change")
    paper.code([(item.command, INK)])
    paper.code([(line.text, _DIFF[line.kind]) for line in item.diff])
    if item.rows:
        paper.table(item.columns, item.rows, (False, True, True, True))


def _heat(paper: Paper, heat: HeatMap | None) -> None:
    if heat is None:
        return
    paper.heading("Instances and batches", needs=heat.height * MM_PER_PIXEL + 22)
    pen = paper.canvas(heat.width, heat.height)
    for cell in heat.cells:
        pen.box(cell.x, cell.y, heat.cell_width - 2, heat.cell_height - 2, COLORS[0], share=cell.share)
        x, y = cell.x + heat.cell_width / 2, cell.y + heat.cell_height / 2 + 4
        pen.text(x, y, f"({cell.text})" if cell.failing else cell.text, align="middle", color=_on(cell))
    for x, text in heat.columns:
        pen.text(x, heat.height - 30, text, align="middle", color=MUTED)
    for y, text in heat.rows:
        pen.text(LEFT - 10, y, text, align="end", color=MUTED)
    paper.text("Throughput in infer/s; columns are instances, rows greatest batches.", size=8, color=MUTED)


def _on(cell: HeatCell) -> str:
    return "#ffffff" if cell.strong else INK


def _search(paper: Paper, model: ModelPage) -> None:
    _failures(paper, model.failures)
    if model.trace:
        paper.heading("How the search went")
        rows = [(step.name, step.tried, step.best, " / ".join(step.notes)) for step in model.trace]
        paper.table(("Configuration", "Load", "Best", "Why it ended"), rows, (False, False, True, False))


def _failures(paper: Paper, failures: Sequence[FailureCard]) -> None:
    if not failures:
        return
    paper.heading("Failed trials")
    for failure in failures:
        paper.text(f"{failure.name} {failure.load}: {failure.reason}")
        paper.code([(line, MUTED) for line in failure.log_tail.splitlines()[-LOG_LINES:]])
