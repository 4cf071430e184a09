"""The reports of a run and of a single configuration as a `Document`, for their PDF."""

from collections.abc import Sequence

from tpx.analyzer.reports.detail import DetailPage
from tpx.analyzer.reports.heat import HeatMap
from tpx.analyzer.reports.view import DiffLine, FailureCard, ModelPage, Page, Recommendation, TraceStep
from tpx.perf.report.pdf import breakdown_section
from tpx.report.document import (
    Block,
    Code,
    CodeLine,
    Document,
    Note,
    Picture,
    Section,
    Statement,
    chart_section,
    code,
    facts_block,
    table_section,
)
from tpx.report.html import render_svg
from tpx.report.view import Cell, Column, Grid, Row

LOG_LINES = 12


def report_document(page: Page) -> Document:
    """Return the sections of a run's report, model by model."""
    facts = (
        ("Machine", page.host),
        ("Versions", page.versions),
        ("Options", page.settings),
        ("Hashes", page.hashes),
    )
    return Document(
        title=page.title,
        subtitle=page.subtitle,
        notice=page.notice,
        sections=(
            *table_section("The best of all models", page.top),
            *(section for model in page.models for section in _model(model, named=len(page.models) > 1)),
            Section(
                title="Where these figures come from",
                blocks=(code(page.command), *facts_block(facts)),
            ),
        ),
    )


def detail_document(page: DetailPage) -> Document:
    """Return the sections of a single configuration's report."""
    statement = Statement(badge=page.badge, tone=page.tone, sentence=page.sentence, tiles=page.tiles)
    sections = [
        Section(blocks=(statement,)),
        *chart_section("Throughput and latency", page.chart),
        *breakdown_section(page.breakdown),
        *(section for plot in page.plots for section in chart_section(plot.title, plot)),
        *table_section("Loads", page.loads),
        *table_section("Final rounds", page.repetitions),
        *_notes("Why the search ended here", page.notes),
        *_failures(page.failures),
        Section(
            title="The configuration", blocks=(code(page.command), *facts_block((("Facts", page.facts),)))
        ),
        *([Section(title="Against the default", blocks=(_diff(page.diff),))] if page.diff else []),
        Section(title="config.pbtxt", blocks=(code(page.config_text),)),
    ]
    return Document(title=page.title, subtitle=page.subtitle, sections=tuple(sections))


def _model(model: ModelPage, *, named: bool) -> Sequence[Section]:
    card = model.verdict
    statement = Statement(
        badge=card.badge,
        tone=card.tone,
        sentence="".join(span.text for span in card.sentence),
        details=tuple(text for text in (card.detail, card.caution) if text),
        tiles=card.tiles,
    )
    return (
        Section(title=model.model if named else "", chapter=named, blocks=(statement,)),
        *_recommendation(model.recommendation),
        *chart_section("Throughput and latency", model.chart),
        *(section for plot in model.plots for section in chart_section(plot.title, plot)),
        *table_section("Configurations", model.configurations),
        *chart_section("What to choose from: the Pareto front", model.pareto),
        *breakdown_section(model.breakdown),
        *_heat(model.heat),
        *chart_section("The final rounds", model.drift),
        *_failures(model.failures),
        *_trace(model.trace),
        *table_section("All measurements", model.measurements),
    )


def _recommendation(item: Recommendation | None) -> list[Section]:
    if item is None:
        return []
    blocks: list[Block] = [code(item.command)]
    if item.diff:
        blocks.append(_diff(item.diff))
    if item.rows:
        blocks.append(_plain_table(item.columns, item.rows, numeric=range(1, 4)))
    return [Section(title="What to change", blocks=tuple(blocks))]


def _heat(heat: HeatMap | None) -> list[Section]:
    if heat is None:
        return []
    note = Note(text="Throughput in infer/s of each combination at its best load; the best is framed.")
    picture = Picture(
        svg=render_svg("heat.svg.j2", heat=heat),
        description=f"{heat.title}. {heat.description}",
        width_px=heat.width,
    )
    return [Section(title="Instances and batches", blocks=(note, picture))]


def _trace(trace: Sequence[TraceStep]) -> list[Section]:
    if not trace:
        return []
    rows = [(step.name, step.tried, step.best, " / ".join(step.notes)) for step in trace]
    table = _plain_table(("Configuration", "Load", "Best", "Why it ended"), rows, numeric=(2,))
    return [Section(title="How the search went", blocks=(table,))]


def _failures(failures: Sequence[FailureCard]) -> list[Section]:
    blocks: list[Block] = []
    for failure in failures:
        blocks.append(Note(text=f"{failure.name} {failure.load}: {failure.reason}"))
        if failure.log_tail:
            blocks.append(code("\n".join(failure.log_tail.splitlines()[-LOG_LINES:])))
    return [Section(title="Failed trials", blocks=tuple(blocks))] if blocks else []


def _notes(title: str, notes: Sequence[str]) -> list[Section]:
    return [Section(title=title, blocks=tuple(Note(text=note) for note in notes))] if notes else []


def _diff(lines: Sequence[DiffLine]) -> Code:
    return Code(lines=tuple(CodeLine(text=line.text.rstrip("\n"), kind=line.kind) for line in lines))


def _plain_table(headers: Sequence[str], rows: Sequence[Sequence[str]], *, numeric: Sequence[int]) -> Grid:
    columns = tuple(Column(header=text, numeric=i in numeric) for i, text in enumerate(headers))
    cells = tuple(Row(cells=tuple(Cell(text=text) for text in row)) for row in rows)
    return Grid(caption="", columns=columns, rows=cells)
