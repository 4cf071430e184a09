"""Render tables and documents as plain text, fitted to a terminal's width, and tables as CSV."""

import csv
import io
import itertools
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tpx.report.document import Block, Bullets, CodeBlock, DataTable, Document, Facts, Note, Statement
from tpx.report.strangers import harmless, wrapped

BARS = "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
_BREAKS = re.compile(r"(?<=[ _,/+;=])")
"""Positions at which a cell may be broken into lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Cells as text; unknown figures are empty."""

    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: frozenset[int] = frozenset()
    """Indices of right-aligned columns."""
    minor: frozenset[int] = frozenset()
    """Indices of the columns that are dropped first if the table is too wide."""
    padding: int = 2

    def to_csv(self) -> str:
        """Return CSV with a header line."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self.headers)
        writer.writerows(self.rows)
        return out.getvalue()

    def to_console(self, width: int | None = None) -> str:
        """Return the title and aligned columns, with control characters escaped.

        If wider than `width`: headers get several lines, columns of one value go, then minor ones, then
        long cells are broken.
        """
        return self._escape_controls()._fit(width)

    def _fit(self, width: int | None) -> str:
        lines = self._align_rows([self.headers, *self.rows], self.padding)
        if width is None or not self.rows or max(map(len, lines)) <= width:
            return "\n".join((*self._format_heading(None), *lines))
        # the title states the value of a column of one value in all rows
        uniform = [i for i in range(len(self.headers)) if len({row[i] for row in self.rows}) == 1]
        if len(uniform) == len(self.headers):
            return self._fit_width(width)
        same = [f"{self.headers[i]} {self.rows[0][i]}" for i in uniform if self.rows[0][i]]
        lead = f"{self.title}, all with" if self.title else "All with"
        title = f"{lead} {', '.join(same)}" if same else self.title
        return replace(self._drop_columns({*uniform}), title=title)._fit_width(width)

    def _escape_controls(self) -> "Table":
        def escape(cells: Sequence[str]) -> tuple[str, ...]:
            if all(cell.isprintable() for cell in cells):
                return tuple(cells)
            return tuple(" ".join(harmless(cell).split()) for cell in cells)

        title, rows = harmless(self.title), tuple(map(escape, self.rows))
        return replace(self, title=title, headers=escape(self.headers), rows=rows)

    def _drop_columns(self, left_out: set[int]) -> "Table":
        kept = [i for i in range(len(self.headers)) if i not in left_out]
        return replace(
            self,
            headers=tuple(self.headers[i] for i in kept),
            rows=tuple(tuple(row[i] for i in kept) for row in self.rows),
            numeric=frozenset(place for place, i in enumerate(kept) if i in self.numeric),
            minor=frozenset(place for place, i in enumerate(kept) if i in self.minor),
        )

    def _fit_width(self, width: int) -> str:
        columns = list(zip(self.headers, zip(*self.rows, strict=True), strict=True))
        widths = [max(max(map(len, h.split()), default=0), *map(len, cells)) for h, cells in columns]
        if _sum_widths(widths) > width and self.minor:
            return self._drop_columns({max(self.minor)})._fit_width(width)
        least = [max(_measure_longest_part(h), *map(_measure_longest_part, cells)) for h, cells in columns]
        while _sum_widths(widths) > width and widths > least:
            widest = max(range(len(widths)), key=lambda i: widths[i] - least[i])
            widths[widest] -= 1
        lines: list[Sequence[str]] = []
        for cells in (self.headers, *self.rows):
            broken = [_break_lines(cell, widths[i]) for i, cell in enumerate(cells)]
            lines += itertools.zip_longest(*broken, fillvalue="")
        return "\n".join((*self._format_heading(width), *self._align_rows(lines, 1)))

    def _format_heading(self, width: int | None) -> list[str]:
        title = f"{self.title}:" if self.title else ""
        return textwrap.wrap(title, width) if width else [title] * bool(title)

    def _align_rows(self, rows: Sequence[Sequence[str]], padding: int) -> list[str]:
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        gap = " " * (padding + 1)
        return [
            gap.join(
                cell.rjust(widths[i]) if i in self.numeric else cell.ljust(widths[i])
                for i, cell in enumerate(cells)
            ).rstrip()
            for cells in rows
        ]


def _sum_widths(widths: Sequence[int]) -> int:
    return sum(widths) + 2 * (len(widths) - 1)


def _measure_longest_part(text: str) -> int:
    return max((len(part.rstrip()) for part in _BREAKS.split(text)), default=0)


def _break_lines(text: str, width: int) -> list[str]:
    """Break a text into lines of at most `width` between words; longer words break after separators."""
    lines = [""]
    for word in re.split(r"(?<= )", text):
        for part in [word] if len(word.rstrip()) <= width else _BREAKS.split(word):
            if len(lines[-1]) + len(part.rstrip()) > width and lines[-1]:
                lines.append("")
            lines[-1] += part
    return [line.rstrip() for line in lines]


def table_of(grid: DataTable) -> Table:
    """Return a grid as a text table, with each note appended to its cell."""
    columns = range(len(grid.columns))
    return Table(
        title=grid.caption,
        headers=tuple(column.header for column in grid.columns),
        rows=tuple(tuple(c.with_note for c in row.cells) for row in grid.rows),
        numeric=frozenset(i for i in columns if grid.columns[i].numeric),
        minor=frozenset(i for i in columns if grid.columns[i].minor),
        padding=1,
    )


def render(document: Document, width: int | None = None) -> str:
    """Return the document without its drawings; lines are at most `width` long, if given."""
    lines = [wrapped(document.notice, width)] if document.notice else []
    for section in document.sections:
        lines += [f"{section.title}:"] if section.title else []
        lines += [text for block in section.blocks if (text := _format_block(block, width))]
    lines += [wrapped(document.subtitle, width)] if document.subtitle else []
    return "\n".join(lines) + "\n"


def _format_block(block: Block, width: int | None) -> str:
    match block:
        case DataTable():
            return table_of(block).to_console(width)
        case Statement():
            more = [f"  {text}" for text in (block.detail, block.caution) if text]
            return "\n".join(wrapped(line, width) for line in (block.sentence, *more))
        case Note():
            return wrapped(block.text, width)
        case Bullets():
            return "\n".join(wrapped(f"  {item}", width) for item in block.items)
        case Facts():
            return "\n".join(f"  {label}: {value}" for label, value in block.facts.items())
        case CodeBlock():
            return "\n".join(line.text for line in block.lines)
    return ""


def sparkline(values: Sequence[float]) -> str:
    """Return one block character per value, scaled from the minimum to the maximum."""
    if not values:
        return ""
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    return "".join(BARS[min(len(BARS) - 1, int((v - low) / span * len(BARS)))] for v in values)
