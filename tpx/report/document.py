"""A report without its layout: sections of verdicts, tables, charts and notes."""

from collections.abc import Sequence
from dataclasses import dataclass

from tpx.report.chart import Chart
from tpx.report.html import render_svg
from tpx.report.styles import COLORS
from tpx.report.view import Fact, Grid, Tile


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """The verdict of a report: a badge of a few words, a sentence, and what qualifies it."""

    badge: str
    tone: str
    """`good`, `neutral`, `warn` or `bad`."""
    sentence: str
    details: tuple[str, ...] = ()
    tiles: tuple[Tile, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A paragraph of plain text."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeLine:
    """A line in a fixed-width font; kind is `add`, `remove`, `hunk` or `same`."""

    text: str
    kind: str = "same"


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """A command, a configuration file or a diff."""

    lines: tuple[CodeLine, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LegendEntry:
    """A name in the legend of a picture, and the colour that it explains; empty for none."""

    name: str
    color: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A drawing as standalone SVG with its legend."""

    svg: str
    description: str
    """Alternative text for readers who do not see the drawing."""
    width_px: int
    legend: tuple[LegendEntry, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Labels and values below a small heading."""

    title: str
    facts: tuple[Fact, ...]


Block = Statement | Note | Code | Picture | Facts | Grid


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Blocks below a heading; without a title they follow the section before."""

    title: str = ""
    blocks: tuple[Block, ...]
    chapter: bool = False
    """The title starts a part of the report, such as one model of several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A whole report."""

    title: str
    subtitle: str
    notice: str = ""
    """A warning about the whole report, such as that its run was interrupted."""
    sections: tuple[Section, ...]


def chart_section(title: str, chart: Chart | None, *, legend: bool = True) -> list[Section]:
    """Return the section of a chart, or nothing for None."""
    if chart is None:
        return []
    return [Section(title=title, blocks=(chart_picture(chart, legend=legend),))]


def table_section(title: str, grid: Grid | None) -> list[Section]:
    """Return the section of a table, or nothing for None."""
    return [] if grid is None else [Section(title=title, blocks=(grid,))]


def chart_picture(chart: Chart, *, legend: bool = True) -> Picture:
    """Draw a chart as standalone SVG."""
    entries = [LegendEntry(name=series.name, color=COLORS[series.style]) for series in chart.series]
    if chart.has_unstable:
        entries.append(LegendEntry(name=f"hollow: {chart.hollow_means}", color=""))
    return Picture(
        svg=render_svg("chart.svg.j2", chart=chart),
        description=f"{chart.title}. {chart.description}",
        width_px=chart.frame.width,
        legend=tuple(entries) if legend else (),
    )


def code(text: str) -> Code:
    """Return the lines of a text as code."""
    return Code(lines=tuple(CodeLine(text=line) for line in text.splitlines()))


def facts_block(groups: Sequence[tuple[str, Sequence[Fact]]]) -> tuple[Facts, ...]:
    """Return the groups that hold any facts."""
    return tuple(Facts(title=title, facts=tuple(facts)) for title, facts in groups if facts)
