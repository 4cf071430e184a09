"""The parts of a page that templates lay out: tables, large figures, facts, as shown."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A table cell: what it shows and what it is sorted by."""

    text: str
    sort: str = ""
    """A number for numeric columns, else the text itself."""
    numeric: bool = False
    chart_style: int | None = None
    """Which of the chart's colours marks this cell; None is none."""
    flag: str = ""
    """`ok`, `bad` or `warn`: how the cell is set off."""
    note: str = ""
    """Small, under the text."""
    title: str = ""
    """Shown where a pointer rests on it."""
    href: str = ""
    """Where the text leads to."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of a table, with what marks it out."""

    cells: tuple[Cell, ...]
    emphasis: str = ""
    """`best`, `default` or nothing."""
    kept: bool = True
    """Whether a filtered table begins with it."""
    passes: bool = True
    """Whether it keeps what was asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A sortable table."""

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    filtered: bool = False
    """Whether it can be searched, and begins with the rows that are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One large figure of the verdict card."""

    label: str
    figure: str
    unit: str
    note: str
    tone: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A run of text, as code or not."""

    text: str
    code: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A label and its value."""

    label: str
    value: str
