"""Self-contained HTML pages with their style sheets and scripts, among them that of a `Document`."""

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tpx.report.chart import COLORS, STYLES, TEXT_COLORS, Chart, marker
from tpx.report.document import Block, Document, Group, LegendEntry, Picture, Section
from tpx.report.layout import BAR_PX, lay_out

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

TEMPLATES = Path(__file__).resolve().parents[1] / "templates"
T = TypeVar("T")
NARROW_PX = 560
"""Maximum width of pictures that are placed side by side."""


def render(document: Document) -> str:
    """Return the document as an HTML page."""
    return render_page(
        "report",
        *page_style("report"),
        product=document.product,
        title=document.title,
        page=document,
        colors=COLORS,
        markers=[marker(style, 7, 7) for style in range(STYLES)],
        rows=rows,
        columns=columns,
        narrow_px=NARROW_PX,
    )


def page_style(*parts: str) -> tuple[str, str]:
    """Return the style sheets and the scripts of a page's parts, each after what all pages share."""
    style, script = (
        "".join(TEMPLATES.joinpath(f"{each}.{kind}").read_text(encoding="utf-8") for each in ("page", *parts))
        for kind in ("css", "js")
    )
    return style, script


def render_page(name: str, style: str, script: str, **values: object) -> str:
    """Render the template of a page with its `page_style`."""
    template = _load_environment().get_template(f"{name}.html.j2")
    return template.render(style=style, script=script, **values)


def _mark_code(text: str) -> "Markup":
    """Return a text with its words in backticks as code."""
    from markupsafe import Markup, escape

    parts = enumerate(text.split("`"))
    return Markup("").join(Markup("<code>%s</code>") % part if i % 2 else escape(part) for i, part in parts)


def _render_svg(template: str, **values: object) -> str:
    """Render a drawing as SVG for a page; `standalone` turns it into a file."""
    return _load_environment().get_template(template).render(colors=COLORS, text_colors=TEXT_COLORS, **values)


def standalone(svg: str) -> str:
    """Return a page's SVG as a standalone document."""
    return svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)


def rows(sections: tuple[Section, ...]) -> Iterator[tuple[Section, ...]]:
    """Yield sections to place side by side: consecutive narrow pictures together, all others alone."""

    def is_narrow(found: Section) -> bool:
        first, *others = found.blocks
        return isinstance(first, Picture) and first.width_px <= NARROW_PX and not others and not found.chapter

    return _iter_runs(sections, is_narrow)


def columns(blocks: tuple[Block, ...]) -> Iterator[tuple[Block, ...]]:
    """Yield blocks to place side by side: consecutive groups together, all others alone."""
    return _iter_runs(blocks, lambda block: isinstance(block, Group))


def _iter_runs(items: Iterable[T], joins: Callable[[T], bool]) -> Iterator[tuple[T, ...]]:
    for joined, run in groupby(items, key=joins):
        together = tuple(run)
        yield from (together,) if joined else ((alone,) for alone in together)


@cache
def _load_environment() -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["prose"] = _mark_code
    return environment


def chart_picture(chart: Chart | None) -> Picture | None:
    """Draw a chart; return None for None."""
    if chart is None:
        return None
    drawing, compact = lay_out(chart), lay_out(chart, compact=True)
    entries = [
        _legend_entry(
            series.line.name,
            style=series.style,
            line=bool(series.path),
            dashed=series.dashed,
            marker=marker(0 if series.round else series.style, 14, 7) if series.points else "",
        )
        for series in drawing.series
        if series.line.dots
    ]
    shown = {part.color for bar in chart.bars for part in bar.parts}
    entries += [
        _legend_entry(name, kind="part", style=color)
        for color, name in chart.part_names.items()
        if color in shown
    ]
    if chart.background:
        entries.append(_legend_entry(f"{len(chart.background)} other configurations", kind="back"))
    if any(not point.dot.stable for series in drawing.series for point in series.points):
        entries.append(_legend_entry("hollow: not stable", kind="hollow"))
    if any(series.context for series in drawing.series):
        entries.append(_legend_entry(chart.context_name, kind="context"))
    return Picture(
        svg=_render_svg("chart.svg.j2", drawing=drawing, bar_px=BAR_PX),
        compact_svg=_render_svg("chart.svg.j2", drawing=compact, bar_px=BAR_PX),
        description=f"{chart.title}. {chart.description}",
        width_px=drawing.frame.width,
        legend=tuple(entries),
    )


def _legend_entry(name: str, **swatch: object) -> LegendEntry:
    """Return a legend entry; `kind` of its swatch is that of a series by default."""
    return LegendEntry(name=name, swatch=_render_svg("swatch.svg.j2", **{"kind": "series", **swatch}))
