"""The report as PDF: the HTML page by WeasyPrint, or drawn from the same view model where that cannot run."""

from pathlib import Path
from typing import Literal

from tpx.analyzer.reports.page import Places, build
from tpx.analyzer.reports.view import ModelPage, Page
from tpx.analyzer.results.run import Run
from tpx.errors import Unsupported
from tpx.pages import html
from tpx.pages.chart import Chart
from tpx.pages.html import require_pdf
from tpx.pages.paper import INK, MUTED, Paper
from tpx.pages.view import Fact
from tpx.perf.report.breakdown import Breakdown

Engine = Literal["auto", "weasyprint", "builtin"]
_DIFF = {"add": "#10704a", "remove": "#b3261e", "hunk": MUTED, "same": INK}
LOG_LINES = 12


def write_report_pdf(run: Run, places: Places, path: Path, engine: Engine = "auto") -> str:
    """Write the report; returns by what it was made, with the reason where that was not the first choice.

    Raises Unsupported where the engine (or, of `auto`, neither) can run; MeasurementError as `write_html`.
    """
    why = ""
    if engine != "builtin":
        try:
            require_pdf()
            page = html.render("analyze_report.html.j2", build(run, places, data=False))
            html.write_pdf(page, path)
            return "weasyprint"
        except Unsupported as exc:
            if engine == "weasyprint":
                raise
            why = f" ({exc})"
    draw_pdf(build(run, places, data=False), path)
    return f"builtin{why}"


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
        _facts(paper, title, facts)
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
    if card.tiles:
        rows = [(tile.label, f"{tile.figure} {tile.unit}", tile.note) for tile in card.tiles]
        paper.table(("", "Recommended", ""), rows, (False, True, False))
    _recommendation(paper, model)
    _chart(paper, "Throughput and latency", model.chart)
    if model.configurations is not None:
        paper.heading("Configurations")
        paper.grid(model.configurations)
    _chart(paper, "What to choose from: the Pareto front", model.pareto)
    _breakdown(paper, model.breakdown)
    _chart(paper, "The final rounds", model.drift)
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


def _chart(paper: Paper, title: str, chart: Chart | None) -> None:
    if chart is not None:
        paper.heading(title, needs=chart.frame.height / 5 + 12)
        paper.chart(chart)


def _breakdown(paper: Paper, breakdown: Breakdown | None) -> None:
    if breakdown is None:
        return
    paper.heading("Where the time goes")
    span = max(sum(s.width for s in row.segments) for row in breakdown.rows) or 1.0
    rows = [
        (row.name, row.total, [(segment.width / span, segment.color) for segment in row.segments])
        for row in breakdown.rows
    ]
    paper.bars(rows, [(name, color) for _, name, color in breakdown.legend])


def _search(paper: Paper, model: ModelPage) -> None:
    if model.failures:
        paper.heading("Failed trials")
        for failure in model.failures:
            paper.text(f"{failure.name} {failure.load}: {failure.reason}")
            paper.code([(line, MUTED) for line in failure.log_tail.splitlines()[-LOG_LINES:]])
    if model.trace:
        paper.heading("How the search went")
        rows = [(step.name, step.tried, step.best, " / ".join(step.notes)) for step in model.trace]
        paper.table(("Configuration", "Load", "Best", "Why it ended"), rows, (False, False, True, False))


def _facts(paper: Paper, title: str, facts: tuple[Fact, ...]) -> None:
    if facts:
        paper.table((title, ""), [(fact.label, fact.value) for fact in facts], (False, False))
