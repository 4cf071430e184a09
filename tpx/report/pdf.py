"""Render a `Document` as PDF with typst, which is a single wheel without system libraries."""

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import msgspec

from tpx.errors import Unsupported
from tpx.report.chart import Chart
from tpx.report.document import Block, Column, DataTable, Details, Document, Group
from tpx.report.html import TEMPLATES, columns, legend, rows, standalone, svg
from tpx.report.layout import Drawing

MOST_COLUMNS, MOST_ROWS = 12, 60
"""Limits of a printed table; a note below it names what only the HTML report has."""
FONT_PACKAGE = "font_source_sans_pro"


def require_typst() -> None:
    """Raise Unsupported with installation instructions if typst is missing."""
    try:
        import typst  # noqa: F401 (only whether it can be imported matters)
    except ImportError as exc:
        raise Unsupported("no PDF: typst is not installed, add it with: pip install 'tpx[report]'") from exc


def render(document: Document) -> bytes:
    """Return the document as tagged A4 pages. Raises Unsupported if typst is missing."""
    require_typst()
    import typst

    data = {
        "title": document.title,
        "subtitle": document.subtitle,
        "notice": document.notice,
        "rows": [
            [
                {
                    "title": found.title,
                    "chapter": bool(found.chapter),
                    "runs": [
                        [_encode_block(block) for block in blocks]
                        for blocks in columns(_select_printed(found.blocks))
                    ],
                }
                for found in run
            ]
            for run in rows(document.sections)
        ],
    }
    # without the sans-serif font typst uses its own serif font
    package = importlib.util.find_spec(FONT_PACKAGE)
    fonts = [Path(package.origin).parent / "files"] if package is not None and package.origin else []
    content: bytes = typst.compile(
        TEMPLATES / "report.typ",
        font_paths=fonts,
        sys_inputs={"document": msgspec.json.encode(data).decode()},
    )
    return content


def _select_printed(blocks: Sequence[Block]) -> tuple[Block, ...]:
    return tuple(block for block in blocks if not isinstance(block, Details) or block.printed)


def _encode_block(block: Block) -> Mapping[str, object]:
    values: Mapping[str, object]
    if isinstance(block, DataTable):
        values = _encode_table(block)
    elif isinstance(block, Chart):
        drawing = Drawing(block)
        values = {
            "svg": standalone(svg(drawing)),
            "description": f"{block.title}. {block.description}",
            "width_px": drawing.frame.width,
            "legend": [{"name": e.name, "swatch": standalone(e.swatch)} for e in legend(drawing)],
        }
    elif isinstance(block, Group | Details):
        title = block.title if isinstance(block, Group) else ""
        values = {"title": title, "blocks": [_encode_block(inner) for inner in _select_printed(block.blocks)]}
    else:
        values = asdict(block)
    return {"kind": block.kind, **values}


def _encode_table(grid: DataTable) -> Mapping[str, object]:
    shown = columns_shown(grid.columns)
    left_out = [c.header for i, c in enumerate(grid.columns) if i not in shown]
    notes = [f"Only in the HTML report: {', '.join(left_out)}."] if left_out else []
    more = len(grid.rows) - MOST_ROWS
    if more > 0:
        notes.append(f"{more} more rows in the HTML report.")
    return {
        "caption": grid.caption,
        "columns": [asdict(grid.columns[i]) for i in shown],
        "rows": [
            {"bold": row.emphasis == "best", "cells": [asdict(row.cells[i]) for i in shown]}
            for row in grid.rows[:MOST_ROWS]
        ],
        "notes": notes,
    }


def columns_shown(columns: tuple[Column, ...]) -> list[int]:
    """Return the indices of the columns that fit on the page; the last minor ones are dropped first."""
    order = sorted(range(len(columns)), key=lambda index: columns[index].minor)
    return sorted(order[:MOST_COLUMNS])
