"""Render a `Document` as Markdown for the page of a CI job, without its drawings."""

from collections.abc import Iterator

from tpx.report.document import (
    Block,
    Bullets,
    Cell,
    CodeBlock,
    Column,
    DataTable,
    Document,
    Facts,
    Note,
    Section,
    Statement,
    TableRow,
)

MOST_ROWS, MOST_FILTERED_ROWS = 60, 10
_SIGNS = {"good": "\u2705", "neutral": "\u2705", "warn": "\u26a0\ufe0f", "bad": "\u274c"}
_FLAGS = {"": "", "ok": "\u2705 ", "warn": "\u26a0\ufe0f ", "bad": "\u274c "}


def render(document: Document, link: str = "") -> str:
    """Return the document as Markdown; `link` is the URL of the complete report."""
    lines = [line for section in document.sections for line in _section(section)]
    if document.notice:
        lines += [f"> {escaped(document.notice)}", ""]
    report = f" \u00b7 [report]({link})" if link else ""
    return "\n".join([*lines, f"<sub>{escaped(document.subtitle)}{report}</sub>"]) + "\n"


def _section(section: Section) -> Iterator[str]:
    title = escaped(section.title)
    for block in section.blocks:
        if isinstance(block, Statement):
            yield from _statement(block, title)
            title = ""
    if title:
        yield from (f"**{title}**", "")
    if section.lead:
        yield from (_prose(section.lead), "")
    for block in section.blocks:
        yield from _block(block)


def _statement(statement: Statement, title: str) -> Iterator[str]:
    subject = f"{title}: " if title else ""
    yield from (f"### {_SIGNS[statement.tone]} {subject}{_prose(statement.sentence)}", "")
    for text in (statement.detail, statement.caution):
        if text:
            yield from (_prose(text), "")


def _block(block: Block) -> Iterator[str]:
    match block:
        case DataTable():
            yield from _table(block)
        case Note():
            yield _prose(block.text)
        case Bullets():
            yield from (f"- {_prose(item)}" for item in block.items)
        case Facts():
            yield from (f"- {escaped(fact.label)}: {escaped(fact.value)}" for fact in block.facts)
        case CodeBlock():
            yield from ("```", *(line.text for line in block.lines), "```")
        case _:
            return
    yield ""


def _table(grid: DataTable) -> Iterator[str]:
    """Yield a table of the first rows, without minor columns."""
    kept = [i for i, column in enumerate(grid.columns) if not column.minor]
    columns = [grid.columns[i] for i in kept]
    yield "| " + " | ".join(escaped(column.header) for column in columns) + " |"
    yield "|" + "|".join("---:" if column.numeric else "---" for column in columns) + "|"
    rows = _first_rows(grid)
    for row in rows:
        yield "| " + " | ".join(_cell(row.cells[i], grid.columns[i]) for i in kept) + " |"
    if len(rows) < len(grid.rows):
        yield from ("", f"{len(grid.rows) - len(rows)} more in the report.")


def _first_rows(grid: DataTable) -> list[TableRow]:
    """Return the first rows; the last is replaced by the default if it would be missing."""
    most = MOST_FILTERED_ROWS if grid.filtered else MOST_ROWS
    rows = list(grid.rows[:most])
    rows[-1:] = [row for row in grid.rows[most:] if row.emphasis == "default"][:1] or rows[-1:]
    return rows


def _cell(cell: Cell, column: Column) -> str:
    return _FLAGS[cell.flag] + (f"`{cell.text}`" if column.marked else escaped(cell.with_note))


def _prose(text: str) -> str:
    """Return a text with its words in backticks as code."""
    parts = text.split("`")
    return "".join(f"`{part}`" if i % 2 else escaped(part, keep_ends=True) for i, part in enumerate(parts))


def escaped(text: str, *, keep_ends: bool = False) -> str:
    """Escape markup in text such as a server's message; `keep_ends` keeps a space at either end."""
    for sign in "\\`*_|[]":
        text = text.replace(sign, f"\\{sign}")
    text = text.replace("<", "&lt;").replace(">", "&gt;")
    joined = " ".join(text.split())
    if not keep_ends:
        return joined
    return f"{' ' * text.startswith(' ')}{joined}{' ' * (text.endswith(' ') and bool(joined))}"
