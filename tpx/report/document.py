"""A report without its layout: sections of verdicts, tables, charts and notes.

`tpx perf` and `tpx analyze` fill a `Document`; the renderers beside this module lay it out. In every text,
words between backticks are code.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

Tone = Literal["good", "neutral", "warn", "bad"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A table cell: what it shows and what it is sorted by."""

    text: str
    sort: str = ""
    """A number for numeric columns, else the text itself."""
    numeric: bool = False
    chart_style: int | None = None
    """Colour and marker of the chart's series that the cell names; None for no series."""
    flag: str = ""
    """`ok`, `bad` or `warn`: how the cell is set off."""
    note: str = ""
    """Small, under the text."""
    title: str = ""
    """Shown where a pointer rests on it."""
    href: str = ""
    """Where the text leads to."""

    @property
    def with_note(self) -> str:
        """Text and note on one line; parentheses keep a note that begins with a figure apart."""
        note = f"({self.note})" if self.note[:1].isdigit() else self.note
        return f"{self.text} {note}".rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table: its heading and how its cells are set."""

    header: str
    numeric: bool = False
    hint: str = ""
    marked: bool = False
    """Its cells may carry a marker of the chart, so that the others keep the room of one free."""
    minor: bool = False
    """Left out first where not all of them fit across."""
    wraps: bool = False
    """Its cells hold sentences, which may take several lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """A row of a table, with what marks it out."""

    cells: tuple[Cell, ...]
    emphasis: str = ""
    """`best`, `default`, `group` or nothing."""
    kept: bool = True
    """Shown before a filter is used."""
    passes: bool = True
    """Satisfies the constraints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataTable:
    """A table."""

    kind: ClassVar[str] = "grid"
    key: str = ""
    """Id in the page; empty for a table that is not sorted."""
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]
    filtered: bool = False
    """The page offers a search over the rows, and begins with those that are `kept`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One large figure of a verdict."""

    label: str
    figure: str
    unit: str
    note: str
    tone: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """The verdict of a report: a badge of a few words, a sentence, what qualifies it, and large figures."""

    kind: ClassVar[str] = "statement"
    badge: str
    tone: Tone
    sentence: str
    detail: str = ""
    caution: str = ""
    tiles: tuple[Tile, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A paragraph; `small` ones explain figures, `failure` ones tell what went wrong."""

    kind: ClassVar[str] = "note"
    text: str
    style: Literal["", "small", "failure"] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bullets:
    """A list of sentences."""

    kind: ClassVar[str] = "bullets"
    items: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeLine:
    """A line in a fixed-width font; change is `add`, `remove`, `hunk` or `same`."""

    text: str
    change: str = "same"


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeBlock:
    """A command, a configuration file, a log or a diff."""

    kind: ClassVar[str] = "code"
    lines: tuple[CodeLine, ...]
    label: str = ""
    """Name for readers who do not see the page."""
    command: bool = False
    """Offered to be copied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LegendEntry:
    """A name in the legend of a picture, with its swatch as SVG."""

    name: str
    swatch: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A drawing as SVG, with its legend."""

    kind: ClassVar[str] = "picture"
    svg: str
    compact_svg: str = ""
    """The same laid out for narrow screens, where it needs another layout."""
    description: str
    """Alternative text for readers who do not see the drawing."""
    width_px: int
    legend: tuple[LegendEntry, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A label and its value."""

    label: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Labels and values."""

    kind: ClassVar[str] = "facts"
    facts: tuple[Fact, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Blocks below a small heading; groups that follow each other stand side by side."""

    kind: ClassVar[str] = "group"
    title: str
    blocks: tuple["Block", ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Details:
    """Blocks that a page shows on demand; `printed` ones are on paper, too."""

    kind: ClassVar[str] = "details"
    summary: str
    blocks: tuple["Block", ...]
    printed: bool = False


Block = Statement | Note | Bullets | CodeBlock | Picture | Facts | Group | Details | DataTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Blocks below a heading."""

    title: str = ""
    lead: str = ""
    """A sentence or two on the blocks."""
    blocks: tuple[Block, ...]
    chapter: str = ""
    """Id of the chapter that the section begins, such as one model of several; empty within one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A whole report."""

    product: str
    """`perf` or `analyze`."""
    title: str
    subtitle: str
    notice: str = ""
    """A warning about the whole report, such as that its run was interrupted."""
    sections: tuple[Section, ...]
    parent: str = ""
    """Link to the report that this one is a part of."""
    data: str = ""
    """All figures as JSON, safe between script tags; empty for none."""
    file_name: str = ""
    """Name of a download of the data, without its ending."""

    def blocks(self) -> Iterator[Block]:
        """Yield every block, each before those within it."""
        for section in self.sections:
            yield from _nested(section.blocks)


def _nested(blocks: Sequence[Block]) -> Iterator[Block]:
    for block in blocks:
        yield block
        if isinstance(block, Group | Details):
            yield from _nested(block.blocks)


def section(title: str, *blocks: Block | None, lead: str = "") -> list[Section]:
    """Return the section of these blocks, or nothing where all of them are None."""
    shown = tuple(block for block in blocks if block is not None)
    return [Section(title=title, lead=lead, blocks=shown)] if shown else []


def code(text: str, *, label: str = "", command: bool = False) -> CodeBlock:
    """Return the lines of a text as code."""
    return CodeBlock(
        lines=tuple(CodeLine(text=line) for line in text.splitlines()), label=label, command=command
    )


def fact_groups(*groups: tuple[str, Sequence[Fact]]) -> tuple[Group, ...]:
    """Return a group for each title that has any facts."""
    return tuple(Group(title=title, blocks=(Facts(facts=tuple(facts)),)) for title, facts in groups if facts)


def bullets(items: Sequence[str]) -> Bullets | None:
    """Return a list of the items; None for none."""
    return Bullets(items=tuple(items)) if items else None
