"""Pages of a PDF without any system library: text, tables and charts of the HTML pages, drawn by fpdf2."""

import re
from collections.abc import Collection, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from tpx.errors import MeasurementError, Unsupported
from tpx.pages.chart import FRAME, Chart, Series
from tpx.pages.styles import COLORS
from tpx.pages.view import Column, Grid

if TYPE_CHECKING:
    from fpdf import FPDF

INK, MUTED, FAINT, LINE, LIMIT = "#1b2128", "#5b6572", "#c3cad3", "#d5dbe2", "#b3261e"
WIDTH = 182.0
MM_PER_PIXEL = WIDTH / FRAME.width
PADDING, GAP = 0.7, 3.0
"""Of the cells of a table, and before text that follows a number."""
LOOSE = 1.4
"""How much wider a table is than what it holds, where there is room."""
MOST_COLUMNS = 12
CHARACTERS = 118
"""That a line of a table has room for, beside the space between so many columns."""
_PLAIN = {"\u2013": "-", "\u2014": "-", "\u2192": "->", "\u2026": "...", "\u2009": " ", "\u2007": " "}


def require_fpdf() -> None:
    """Raise Unsupported, saying what to install, where fpdf2 is not there."""
    try:
        import fpdf  # noqa: F401 (whether it can be loaded is the question)
    except ImportError as exc:
        raise Unsupported("no PDF: fpdf2 is not installed, add it with: pip install 'tpx[report]'") from exc


class Paper:
    """A document of A4 pages that grows downwards; positions in millimetres."""

    def __init__(self, title: str) -> None:
        require_fpdf()
        from fpdf import FPDF

        self._pdf: FPDF = FPDF(format="A4")
        self._pdf.set_margins(14, 14, 14)
        self._pdf.set_auto_page_break(auto=True, margin=14)
        self._pdf.set_title(title)
        self._pdf.set_creator("tpx")
        self._pdf.add_page()

    def save(self, path: Path) -> None:
        """Raises MeasurementError when the file cannot be written."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(bytes(self._pdf.output()))
        except OSError as exc:
            raise MeasurementError(f"cannot write {path}: {exc.strerror or exc}") from exc

    def heading(self, text: str, size: float = 12.0, *, needs: float = 30.0, color: str = INK) -> None:
        """A heading that stays with the `needs` millimetres below it."""
        if self._pdf.get_y() + needs > self._pdf.eph + self._pdf.t_margin:
            self._pdf.add_page()
        self._pdf.ln(2.5)
        self.text(text, size=size, bold=True, color=color)
        self._pdf.ln(0.8)

    def text(self, text: str, *, size: float = 9.0, bold: bool = False, color: str = INK) -> None:
        """A paragraph."""
        self._font("helvetica", size, bold=bold, color=color)
        self._pdf.multi_cell(0, size * 0.48, plain(text), align="L", new_x="LMARGIN", new_y="NEXT")

    def code(self, lines: Sequence[tuple[str, str]]) -> None:
        """Lines with their colours, in a fixed width."""
        for line, color in lines:
            self._font("courier", 7.5, bold=False, color=color)
            self._pdf.multi_cell(0, 3.5, plain(line) or " ", align="L", new_x="LMARGIN", new_y="NEXT")
        self._pdf.ln(1)

    def table(
        self,
        headers: Sequence[str],
        rows: Sequence[Sequence[str]],
        numeric: Sequence[bool],
        bold: Collection[int] = (),
    ) -> None:
        """Cells that wrap, headers that repeat on every page, `bold` rows; no wider than it needs."""
        from fpdf.fonts import FontFace

        if not rows:
            return
        self._font("helvetica", 7, bold=False, color=INK)
        self._pdf.set_draw_color(LINE)
        self._pdf.set_line_width(0.15)
        self._pdf.set_fill_color("#ffffff")
        align = tuple("RIGHT" if right else "LEFT" for right in numeric)
        aside = [not right and before for before, right in pairwise((False, *numeric))]
        widths = column_widths(headers, rows)
        with self._pdf.table(
            text_align=align,
            borders_layout="HORIZONTAL_LINES",
            line_height=3.6,
            padding=PADDING,
            align="LEFT",
            width=min(1.0, LOOSE * sum(widths) / CHARACTERS) * WIDTH,
            col_widths=widths,
            headings_style=FontFace(emphasis="BOLD", color=MUTED),
        ) as table:
            for number, cells in enumerate((headers, *rows), -1):
                row = table.row(style=FontFace(emphasis="BOLD") if number in bold else None)
                for cell, apart in zip(cells, aside, strict=True):
                    row.cell(plain(cell), padding=(PADDING, PADDING, PADDING, GAP) if apart else None)
        self._pdf.ln(1)

    def grid(self, grid: Grid, most_rows: int = 60) -> None:
        """A table of the HTML page; what does not fit across is left out and said."""
        shown = columns_shown(grid.columns)
        rows = [
            [f"{row.cells[i].text}{' ' + row.cells[i].note if row.cells[i].note else ''}" for i in shown]
            for row in grid.rows[:most_rows]
        ]
        headers = [grid.columns[i].header for i in shown]
        self.text(grid.caption, size=8, color=MUTED)
        best = [number for number, row in enumerate(grid.rows[:most_rows]) if row.emphasis == "best"]
        self.table(headers, rows, [grid.columns[i].numeric for i in shown], best)
        left_out = ", ".join(c.header for i, c in enumerate(grid.columns) if i not in shown)
        if left_out:
            self.text(f"Only in the HTML report: {left_out}.", size=8, color=MUTED)
        if len(grid.rows) > most_rows:
            self.text(f"{len(grid.rows) - most_rows} more rows in the HTML report.", size=8, color=MUTED)

    def chart(self, chart: Chart, *, legend: bool = True) -> None:
        """The chart as vectors, over the whole width where it has that of a page."""
        scale = MM_PER_PIXEL
        self._room(chart.frame.height * scale + 6)
        top = self._pdf.get_y()
        pen = Pen(self._pdf, self._pdf.l_margin, top, scale)
        _draw_axes(pen, chart)
        for path in chart.background:
            pen.path(path, FAINT, 0.2)
        for bar in chart.bars:
            pen.box(bar.x, bar.y, bar.width, bar.height, COLORS[0])
        _draw_limits(pen, chart)
        for series in reversed(chart.series):
            _draw_series(pen, series)
        self._pdf.set_y(top + chart.frame.height * scale)
        if legend:
            self._legend([(series.name, _color(series)) for series in chart.series])
        if legend and chart.has_unstable:
            self.text(f"Hollow: {chart.hollow_means}.", size=7.5, color=MUTED)

    def canvas(self, width: float, height: float) -> "Pen":
        """A free surface of so many pixels across and down, for its own pen; no wider than a chart's."""
        scale = min(WIDTH / width, MM_PER_PIXEL)
        self._room(height * scale)
        top = self._pdf.get_y()
        self._pdf.set_y(top + height * scale)
        return Pen(self._pdf, self._pdf.l_margin, top, scale)

    def bars(
        self, rows: Sequence[tuple[str, str, Sequence[tuple[float, str]]]], legend: Sequence[tuple[str, str]]
    ) -> None:
        """Stacked bars: name, text behind it, and parts as shares of the longest with their colours."""
        left, width = 40.0, WIDTH - 64.0
        for name, total, parts in rows:
            self._room(7)
            y = self._pdf.get_y()
            self._font("helvetica", 7.5, bold=False, color=INK)
            self._pdf.text(self._pdf.l_margin, y + 3.6, plain(name))
            x = self._pdf.l_margin + left
            for share, color in parts:
                self._pdf.set_fill_color(color)
                self._pdf.rect(x, y, share * width, 4.6, style="F")
                x += share * width
            self._pdf.text(x + 1.5, y + 3.6, plain(total))
            self._pdf.set_y(y + 6.2)
        self._legend(legend)

    def _legend(self, named: Sequence[tuple[str, str]]) -> None:
        x, y = self._pdf.l_margin, self._pdf.get_y() + 2
        for name, color in named:
            self._font("helvetica", 7.5, bold=False, color=INK)
            width = self._pdf.get_string_width(plain(name)) + 9
            if x + width > self._pdf.l_margin + WIDTH:
                x, y = self._pdf.l_margin, y + 4.5
            self._pdf.set_fill_color(color)
            self._pdf.rect(x, y, 3, 3, style="F")
            self._pdf.text(x + 4.2, y + 2.6, plain(name))
            x += width
        self._pdf.set_y(y + 5)

    def _room(self, height: float) -> None:
        if self._pdf.get_y() + height > self._pdf.eph + self._pdf.t_margin:
            self._pdf.add_page()

    def _font(self, family: str, size: float, *, bold: bool, color: str) -> None:
        self._pdf.set_font(family, "B" if bold else "", size)
        self._pdf.set_text_color(color)


class Pen:
    """Draws in the pixels of a chart."""

    def __init__(self, pdf: "FPDF", left: float, top: float, scale: float) -> None:
        self._pdf, self._left, self._top, self._scale = pdf, left, top, scale

    def line(self, x0: float, y0: float, x1: float, y1: float, color: str, *, dashed: bool = False) -> None:
        self._pdf.set_draw_color(color)
        self._pdf.set_line_width(0.3 if dashed else 0.15)
        self._pdf.set_dash_pattern(dash=1.2 if dashed else 0, gap=0.9 if dashed else 0)
        self._pdf.line(self._x(x0), self._y(y0), self._x(x1), self._y(y1))
        self._pdf.set_dash_pattern()

    def path(self, path: str, color: str, width: float, *, dashed: bool = False) -> None:
        lines = [points for points in subpaths(path) if len(points) > 1]
        if not lines:
            return
        self._pdf.set_draw_color(color)
        self._pdf.set_line_width(width)
        self._pdf.set_dash_pattern(dash=1.0 if dashed else 0, gap=0.6 if dashed else 0)
        for points in lines:
            self._pdf.polyline([(self._x(x), self._y(y)) for x, y in points])
        self._pdf.set_dash_pattern()

    def dot(self, x: float, y: float, color: str, *, filled: bool) -> None:
        self._pdf.set_draw_color(color)
        self._pdf.set_fill_color(color if filled else "#ffffff")
        self._pdf.set_line_width(0.25)
        self._pdf.circle(self._x(x), self._y(y), 0.75, style="DF")

    def box(self, x: float, y: float, width: float, height: float, color: str, *, share: float = 1.0) -> None:
        """Filled with so much of the colour over white."""
        self._pdf.set_fill_color(over_white(color, share))
        self._pdf.rect(self._x(x), self._y(y), width * self._scale, height * self._scale, style="F")

    def text(self, x: float, y: float, text: str, *, align: str = "start", color: str = INK) -> None:
        self._pdf.set_font("helvetica", "", 6.5)
        self._pdf.set_text_color(color)
        width = self._pdf.get_string_width(plain(text))
        shift = {"start": 0.0, "middle": width / 2, "end": width}[align]
        self._pdf.text(self._x(x) - shift, self._y(y), plain(text))

    def _x(self, x: float) -> float:
        return self._left + x * self._scale

    def _y(self, y: float) -> float:
        return self._top + y * self._scale


def _draw_axes(pen: Pen, chart: Chart) -> None:
    frame = chart.frame
    for tick in chart.y_ticks:
        pen.line(frame.left, tick.at, frame.right, tick.at, LINE)
        pen.text(frame.left - 8, tick.at + 4, tick.label, align="end", color=MUTED)
    for tick in chart.x_ticks:
        pen.line(tick.at, frame.top, tick.at, frame.bottom, LINE)
        pen.text(tick.at, frame.bottom + 18, tick.label, align="middle", color=MUTED)
    pen.text((frame.left + frame.right) / 2, frame.bottom + 42, chart.x_title, align="middle")
    pen.text(frame.left, frame.top - 6, chart.y_title)


def _draw_limits(pen: Pen, chart: Chart) -> None:
    frame = chart.frame
    if chart.limit is not None:
        at, aside = chart.limit.x, -6 if chart.limit.anchor == "end" else 6
        pen.line(at, frame.top, at, frame.bottom, LIMIT, dashed=True)
        pen.text(at + aside, frame.bottom - 8, chart.limit.text, align=chart.limit.anchor, color=LIMIT)
    for mark in chart.marks:
        if mark.upright:
            pen.line(mark.at, frame.top, mark.at, frame.bottom, LIMIT, dashed=True)
            pen.text(mark.at + 5, frame.top + 12, mark.text, color=LIMIT)
        else:
            pen.line(frame.left, mark.at, frame.right, mark.at, LIMIT, dashed=True)
            pen.text(frame.right - 4, mark.at - 6, mark.text, align="end", color=LIMIT)


def _draw_series(pen: Pen, series: Series) -> None:
    color = _color(series)
    pen.path(series.whiskers, over_white(color, 0.35), 0.9)
    pen.path(series.path, color, 0.5, dashed=series.dashed)
    for point in series.points:
        pen.dot(point.x, point.y, color, filled=point.stable)
    for label in series.labels:
        pen.text(label.x, label.y, label.text, align=label.anchor, color=color)


def _color(series: Series) -> str:
    return FAINT if series.faint else COLORS[series.style]


def over_white(color: str, share: float) -> str:
    """So much of a colour, the rest white."""
    parts = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(255 + (part - 255) * share):02x}" for part in parts)


def subpaths(path: str) -> list[list[tuple[float, float]]]:
    """The corners of a path of M, L, H and V, line by line."""
    lines: list[list[tuple[float, float]]] = []
    for command, numbers in re.findall(r"([MLHV])([^MLHV]*)", path):
        values = [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", numbers)]
        if command == "M":
            lines.append([(values[0], values[1])])
        elif command == "L":
            lines[-1].append((values[0], values[1]))
        else:
            x, y = lines[-1][-1]
            lines[-1].append((values[0], y) if command == "H" else (x, values[0]))
    return lines


def plain(text: str) -> str:
    """What the fonts of every PDF reader have: Latin letters."""
    for sign, replacement in _PLAIN.items():
        text = text.replace(sign, replacement)
    return text.encode("latin-1", "replace").decode("latin-1")


def columns_shown(columns: Sequence[Column]) -> list[int]:
    """The places of the columns that fit across; minor ones give way, the last ones first."""
    order = sorted(range(len(columns)), key=lambda place: columns[place].minor)
    return sorted(order[:MOST_COLUMNS])


def column_widths(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[float, ...]:
    """No column narrower than its longest word; what is left goes to those whose cells are longer."""
    columns = [[plain(cells[i]) for cells in (headers, *rows)] for i in range(len(headers))]
    least = [max(3, *(len(word) for cell in cells for word in cell.split() or [""])) + 1 for cells in columns]
    wanted = [
        max(low, max(len(cell) for cell in cells) + 1) for low, cells in zip(least, columns, strict=True)
    ]
    missing = [want - low for low, want in zip(least, wanted, strict=True)]
    room = max(0, CHARACTERS - sum(least))
    share = min(1.0, room / sum(missing)) if sum(missing) else 0.0
    return tuple(low + lack * share for low, lack in zip(least, missing, strict=True))
