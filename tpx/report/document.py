"""A report without its layout: sections of verdicts, tables, charts and notes.

`tpx perf` and `tpx analyze` fill a `Document`; the renderers in this package lay it out. In all texts,
words in backticks are code.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from tpx.report.chart import Chart

Tone = Literal["good", "neutral", "warn", "bad"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A table cell: its text and its sort key."""

    text: str
    sort: str = ""
    """Sort key: a number for numeric columns, otherwise the text itself."""
    numeric: bool = False
    chart_style: int | None = None
    """Index of the color and marker of the chart series that the cell names; None for no series."""
    flag: str = ""
    """Highlight: `ok`, `bad`, `warn` or none."""
    note: str = ""
    """Small text below the cell's text."""
    title: str = ""
    """Tooltip."""
    href: str = ""
    """Link target of the text."""

    @property
    def with_note(self) -> str:
        """Text and note on one line; a note that begins with a digit is put in parentheses."""
        note = f"({self.note})" if self.note[:1].isdigit() else self.note
        return f"{self.text} {note}".rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A table column: its heading and the format of its cells."""

    header: str
    numeric: bool = False
    hint: str = ""
    marked: bool = False
    """True if cells may carry a series marker, so that cells without one keep its space."""
    minor: bool = False
    """True if the column is dropped first when the table is too wide."""
    wraps: bool = False
    """True if cells hold sentences that may wrap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """A table row and its highlighting."""

    cells: tuple[Cell, ...] = ()
    emphasis: str = ""
    """`best`, `default` or empty."""
    kept: bool = True
    """True if the row is shown before a filter is used."""
    passes: bool = True
    """True if the row satisfies the constraints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataTable:
    """A table."""

    kind: ClassVar[str] = "grid"
    key: str = ""
    """Id in the page; empty for a table that is not sortable."""
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]
    filtered: bool = False
    """True if the page offers a search over the rows, initially showing those that are `kept`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One large figure of a verdict."""

    label: str
    figure: str
    unit: str = ""
    note: str = ""
    tone: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """The verdict of a report: a short badge, a sentence, qualifications, and large figures."""

    kind: ClassVar[str] = "statement"
    badge: str
    tone: Tone
    sentence: str
    detail: str = ""
    caution: str = ""
    tiles: tuple[Tile, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A paragraph; `small` ones explain figures, `failure` ones describe errors."""

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
    """Accessible name for screen readers."""
    command: bool = False
    """True for a command, which gets a copy button."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Values by their labels."""

    kind: ClassVar[str] = "facts"
    facts: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Blocks below a small heading; consecutive groups are placed side by side."""

    kind: ClassVar[str] = "group"
    title: str
    blocks: tuple["Block", ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Details:
    """Collapsible blocks of a page; `printed` ones also appear in the PDF."""

    kind: ClassVar[str] = "details"
    summary: str
    blocks: tuple["Block", ...]
    printed: bool = False


Block = Statement | Note | Bullets | CodeBlock | Chart | Facts | Group | Details | DataTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Blocks below a heading."""

    title: str = ""
    lead: str = ""
    """One or two introductory sentences."""
    blocks: tuple[Block, ...]
    chapter: str = ""
    """Id of the chapter that the section begins, such as one model of several; empty within one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A complete report."""

    product: str
    """`perf` or `analyze`."""
    title: str
    subtitle: str
    notice: str = ""
    """A warning about the whole report, such as that its run was interrupted."""
    sections: tuple[Section, ...]
    parent: str = ""
    """Link to the report that contains this one."""
    data: str = ""
    """All figures as JSON, safe within a script element; empty for none."""
    file_name: str = ""
    """File name for downloads of the data, without extension."""


def section(title: str, *blocks: Block | None, lead: str = "") -> list[Section]:
    """Return a section of these blocks, or an empty list if all of them are None."""
    shown = tuple(block for block in blocks if block is not None)
    return [Section(title=title, lead=lead, blocks=shown)] if shown else []


def code(text: str, *, label: str = "", command: bool = False) -> CodeBlock:
    """Return the lines of a text as code."""
    return CodeBlock(
        lines=tuple(CodeLine(text=line) for line in text.splitlines()), label=label, command=command
    )


def provenance(command: str, groups: Mapping[str, Mapping[str, str]], method: str) -> Section:
    """Return the last section of a report: its command line, facts about the run, and how it was measured."""
    return Section(
        title="Where these figures come from",
        blocks=(
            *([code(command, command=True)] if command else []),
            *fact_groups(groups),
            Note(text=method, style="small"),
        ),
    )


def fact_groups(groups: Mapping[str, Mapping[str, str]]) -> tuple[Group, ...]:
    """Return one group per title that has facts."""
    return tuple(Group(title=title, blocks=(Facts(facts=facts),)) for title, facts in groups.items() if facts)


def bullets(items: Sequence[str]) -> Bullets | None:
    """Return a list of the items, or None without any."""
    return Bullets(items=tuple(items)) if items else None
