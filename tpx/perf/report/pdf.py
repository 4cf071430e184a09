"""The page of a run as a `Document`, for its PDF."""

from dataclasses import replace

from tpx.perf.report.breakdown import Breakdown
from tpx.perf.report.page import PerfPage
from tpx.report.document import (
    Document,
    LegendEntry,
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


def page_document(page: PerfPage) -> Document:
    """Return the sections of the page, in its order."""
    found = page.conclusion
    statement = Statement(
        badge=found.badge,
        tone=found.tone,
        sentence=found.sentence,
        details=(found.detail,) if found.detail else (),
        tiles=page.tiles,
    )
    levels = page.levels and replace(page.levels, caption="Every level; the best one is bold")
    sections = [
        Section(blocks=(statement,)),
        *table_section("Objectives", page.objectives),
        *([Section(title="Answers", blocks=(code(page.answers),))] if page.answers else []),
        *chart_section("Latency and throughput", page.curve),
        *table_section("Levels", levels),
        *breakdown_section(page.breakdown),
        *chart_section("Percentiles", page.spectrum),
        *chart_section(f"Distribution at {page.histogram_of}", page.histogram, legend=False),
        *(section for chart in page.timelines for section in chart_section(chart.title, chart)),
        *table_section("Models", page.members),
        *table_section("Server", page.server),
        *table_section("Server metrics", page.metrics),
        *table_section("Errors", page.errors),
        *([Section(title="Remarks", blocks=tuple(map(_note, page.remarks)))] if page.remarks else []),
        Section(
            title="Where these figures come from",
            blocks=(
                code(page.command),
                *facts_block((("Target", page.target), ("Client", page.host), ("Options", page.settings))),
            ),
        ),
    ]
    return Document(title=page.title, subtitle=page.subtitle, notice=page.notice, sections=tuple(sections))


def breakdown_section(breakdown: Breakdown | None) -> list[Section]:
    """Return the bars of the mean latency's parts, or nothing for None."""
    if breakdown is None:
        return []
    picture = Picture(
        svg=render_svg("breakdown.svg.j2", breakdown=breakdown),
        description=f"Where the mean latency goes. {breakdown.description}",
        width_px=breakdown.width,
        legend=tuple(LegendEntry(name=name, color=color) for _, name, color in breakdown.legend),
    )
    return [Section(title="Where the time goes", blocks=(picture,))]


def _note(text: str) -> Note:
    return Note(text=text)
