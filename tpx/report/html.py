"""Self-contained HTML pages with their style sheets and scripts, among them that of a `Document`."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tpx.report.chart import COLORS, TEXT_COLORS, Chart, marker
from tpx.report.document import Block, Document, Group, Section
from tpx.report.layout import BAR_PX, Drawing

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

TEMPLATES = Path(__file__).resolve().parents[1] / "templates"
T = TypeVar("T")


def render(document: Document) -> str:
    """Return the document as an HTML page."""
    return render_page(
        "report",
        *page_style("report"),
        product=document.product,
        title=document.title,
        page=document,
        rows=rows,
        columns=columns,
        draw=Drawing,
        svg=svg,
        legend=legend,
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


def standalone(svg: str) -> str:
    """Return a page's SVG as a standalone document."""
    return svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)


def rows(sections: tuple[Section, ...]) -> Iterator[tuple[Section, ...]]:
    """Yield sections to place side by side: consecutive narrow charts together, all others alone."""

    def is_narrow(found: Section) -> bool:
        first, *others = found.blocks
        return isinstance(first, Chart) and first.size == "half" and not others and not found.chapter

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
    environment.globals |= {"colors": COLORS, "text_colors": TEXT_COLORS, "marker": marker, "bar_px": BAR_PX}
    return environment


@dataclass(frozen=True, slots=True, kw_only=True)
class LegendEntry:
    """A legend entry, with its swatch as SVG."""

    name: str
    swatch: str


def svg(drawing: Drawing) -> str:
    """Return a drawing as SVG for a page; `standalone` turns it into a file."""
    return _call_macro("svg", drawing)


def legend(drawing: Drawing) -> Iterator[LegendEntry]:
    """Yield the names of a drawing's lines and parts of bars, and the meaning of special dots."""
    chart = drawing.chart
    for series in drawing.series:
        if series.line.dots:
            yield LegendEntry(name=series.line.name, swatch=_call_macro("line_swatch", series))
    shown = {part.color for bar in chart.bars for part in bar.parts}
    dots = [dot for line in chart.lines for dot in line.dots]
    others = [(name, "part", color) for color, name in chart.part_names.items() if color in shown]
    if chart.background:
        others.append((f"{len(chart.background)} other configurations", "back", 0))
    if any(not dot.stable for dot in dots):
        others.append(("hollow: not stable", "hollow", 0))
    if any(dot.context for dot in dots):
        others.append((chart.context_name, "context", 0))
    for name, kind, color in others:
        yield LegendEntry(name=name, swatch=_call_macro("swatch", kind, color))


def _call_macro(name: str, *values: object) -> str:
    return str(getattr(_load_environment().get_template("chart.svg.j2").module, name)(*values))
