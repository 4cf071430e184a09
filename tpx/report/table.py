"""Typed table columns: the displayed text and the sort key of a record's value."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
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


def quantity(header: str, value: Value[R], *, hint: str = "", minor: bool = False) -> TableField[R]:
    """Return a column of a measured figure, rounded for display."""
    return _make_numeric_field(header, value, rounded, hint, minor=minor)


def count(header: str, value: Value[R], *, hint: str = "", minor: bool = False) -> TableField[R]:
    """Return a column of exact counts or settings."""
    return _make_numeric_field(header, value, lambda found: f"{found:,.10g}", hint, minor=minor)


def duration(header: str, value_ns: Value[R], *, hint: str = "", minor: bool = False) -> TableField[R]:
    """Return a column of durations, each in us or ms."""
    return _make_numeric_field(header, value_ns, latency, hint, minor=minor)


def text(
    header: str, value: Callable[[R], str], flag: Callable[[R], str] = lambda _: "", *, wraps: bool = False
) -> TableField[R]:
    """Return a text column; `flag` highlights a cell as good, doubtful or bad."""
    return TableField(
        column=Column(header=header, wraps=wraps), cell=lambda record: text_cell(value(record), flag(record))
    )


def _make_numeric_field(
    header: str, value: Value[R], written: Callable[[float], str], hint: str, *, minor: bool
) -> TableField[R]:
    return TableField(
        column=Column(header=header, numeric=True, hint=hint, minor=minor),
        cell=lambda record: number(value(record), written),
    )


def table(
    key: str,
    caption: str,
    fields: Iterable[TableField[R]],
    records: Sequence[R],
    emphasis: Callable[[R], str] = lambda _: "",
) -> DataTable | None:
    """Return a table with one row per record, without columns that are always empty; None without records."""
    if not records:
        return None
    made = [(field.column, [field.cell(record) for record in records]) for field in fields]
    known = [(column, cells) for column, cells in made if any(cell.text != NO_VALUE for cell in cells)]
    return DataTable(
        key=key,
        caption=caption,
        columns=tuple(column for column, _ in known),
        rows=tuple(
            TableRow(cells=tuple(cells[i] for _, cells in known), emphasis=emphasis(record))
            for i, record in enumerate(records)
        ),
    )
