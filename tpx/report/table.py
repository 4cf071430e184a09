"""Typed table columns: the displayed text and the sort key of a record's value."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from tpx.report.digits import latency, rounded
from tpx.report.document import Cell, Column, DataTable, TableRow

NO_VALUE = "\u2013"
R = TypeVar("R")
Record = TypeVar("Record", contravariant=True)
Value = Callable[[R], float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableField(Generic[Record]):
    """A column and the function that makes its cell from a record."""

    column: Column
    cell: Callable[[Record], Cell]


def number(value: float | None, written: Callable[[float], str] = rounded) -> Cell:
    """Return the cell of a figure; None becomes a dash, which sorts last."""
    if value is None:
        return Cell(text=NO_VALUE, numeric=True)
    return Cell(text=written(value), sort=repr(round(float(value), 6)), numeric=True)


def text_cell(text: str, flag: str = "") -> Cell:
    """Return a text cell, sorted by its text."""
    return Cell(text=text, sort=text, flag=flag)


def field(
    header: str, cell: Callable[[R], Cell], *, hint: str = "", numeric: bool = True, minor: bool = False
) -> TableField[R]:
    """Return a column of cells, of figures by default."""
    return TableField(column=Column(header=header, numeric=numeric, hint=hint, minor=minor), cell=cell)


def quantity(
    header: str,
    value: Value[R],
    *,
    hint: str = "",
    minor: bool = False,
    written: Callable[[float], str] = rounded,
) -> TableField[R]:
    """Return a column of a measured figure, rounded for display."""
    return field(header, lambda record: number(value(record), written), hint=hint, minor=minor)


def count(header: str, value: Value[R]) -> TableField[R]:
    """Return a column of exact counts or settings."""
    return quantity(header, value, written="{:,.10g}".format)


def duration(header: str, value_ns: Value[R], *, minor: bool = False) -> TableField[R]:
    """Return a column of durations, each in us or ms."""
    return quantity(header, value_ns, minor=minor, written=latency)


def text(
    header: str, value: Callable[[R], str], flag: Callable[[R], str] = lambda _: "", *, wraps: bool = False
) -> TableField[R]:
    """Return a text column; `flag` highlights a cell as good, doubtful or bad."""
    return TableField(
        column=Column(header=header, wraps=wraps), cell=lambda record: text_cell(value(record), flag(record))
    )


def table(
    key: str,
    caption: str,
    fields: Iterable[TableField[R]],
    records: Sequence[R],
    style: Callable[[R], TableRow] = lambda _: TableRow(),
    *,
    filtered: bool = False,
) -> DataTable | None:
    """Return a table with one row per record, without columns that are always empty; None without records.

    `style` returns the highlighting of a record's row, and whether a filter shows it.
    """
    if not records:
        return None
    made = [(field.column, [field.cell(record) for record in records]) for field in fields]
    known = [(column, cells) for column, cells in made if any(cell.text != NO_VALUE for cell in cells)]
    rows = zip(*(cells for _, cells in known), strict=True)
    return DataTable(
        key=key,
        caption=caption,
        columns=tuple(column for column, _ in known),
        rows=tuple(replace(style(r), cells=cells) for r, cells in zip(records, rows, strict=True)),
        filtered=filtered,
    )
