"""Reports for CI: a `Document` as Markdown for the page of a job, and test cases as JUnit XML."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

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
)
from tpx.report.strangers import harmless

MOST_ROWS, MOST_FILTERED_ROWS = 60, 10
_SIGNS = {"good": "\u2705", "neutral": "\u2705", "warn": "\u26a0\ufe0f", "bad": "\u274c"}
_FLAGS = {"": "", "ok": "\u2705 ", "warn": "\u26a0\ufe0f ", "bad": "\u274c "}


def to_markdown(document: Document, link: str = "") -> str:
    """Return the document as Markdown; `link` is the URL of the complete report."""
    lines = [line for section in document.sections for line in _yield_section(section)]
    if document.notice:
        lines += [f"> {escaped(document.notice)}", ""]
    report = f" \u00b7 [report]({link})" if link else ""
    return "\n".join([*lines, f"<sub>{escaped(document.subtitle)}{report}</sub>"]) + "\n"


def _yield_section(section: Section) -> Iterator[str]:
    title = escaped(section.title)
    for block in section.blocks:
        if isinstance(block, Statement):
            subject = f"{title}: " if title else ""
            yield from (f"### {_SIGNS[block.tone]} {subject}{_format_prose(block.sentence)}", "")
            for text in filter(None, (block.detail, block.caution)):
                yield from (_format_prose(text), "")
            title = ""
    if title:
        yield from (f"**{title}**", "")
    if section.lead:
        yield from (_format_prose(section.lead), "")
    for block in section.blocks:
        yield from _yield_block(block)


def _yield_block(block: Block) -> Iterator[str]:
    match block:
        case DataTable():
            yield from _yield_table(block)
        case Note():
            yield _format_prose(block.text)
        case Bullets():
            yield from (f"- {_format_prose(item)}" for item in block.items)
        case Facts():
            yield from (f"- {escaped(label)}: {escaped(value)}" for label, value in block.facts.items())
        case CodeBlock():
            # no line can end the block
            lines = (harmless(line.text).replace("```", "` ` `") for line in block.lines)
            yield from ("```", *lines, "```")
        case _:
            return
    yield ""


def _yield_table(grid: DataTable) -> Iterator[str]:
    """Yield a table of the first rows, without minor columns."""
    kept = [i for i, column in enumerate(grid.columns) if not column.minor]
    columns = [grid.columns[i] for i in kept]
    yield "| " + " | ".join(escaped(column.header) for column in columns) + " |"
    yield "|" + "|".join("---:" if column.numeric else "---" for column in columns) + "|"
    most = MOST_FILTERED_ROWS if grid.filtered else MOST_ROWS
    rows = list(grid.rows[:most])
    # the default replaces the last row if it would be missing
    rows[-1:] = [row for row in grid.rows[most:] if row.emphasis == "default"][:1] or rows[-1:]
    for row in rows:
        yield "| " + " | ".join(_format_cell(row.cells[i], grid.columns[i]) for i in kept) + " |"
    if len(rows) < len(grid.rows):
        yield from ("", f"{len(grid.rows) - len(rows)} more in the report.")


def _format_cell(cell: Cell, column: Column) -> str:
    return _FLAGS[cell.flag] + (_format_code(cell.text) if column.marked else escaped(cell.with_note))


def _format_code(text: str) -> str:
    """Return a name as code; one with signs that could end the code, or that are markup, as escaped text."""
    return f"`{text}`" if text.isprintable() and not set(text) & set("`<>|") else escaped(text)


def _format_prose(text: str) -> str:
    """Return a text with its words in backticks as code."""
    parts = text.split("`")
    return "".join(
        _format_code(part) if i % 2 else escaped(part, keep_ends=True) for i, part in enumerate(parts)
    )


def escaped(text: str, *, keep_ends: bool = False) -> str:
    """Escape markup in text such as a server's message; `keep_ends` keeps a space at either end."""
    text = harmless(text)
    for sign in "\\`*_|[]":
        text = text.replace(sign, f"\\{sign}")
    text = text.replace("<", "&lt;").replace(">", "&gt;")
    joined = " ".join(text.split())
    if not keep_ends:
        return joined
    return f"{' ' * text.startswith(' ')}{joined}{' ' * (text.endswith(' ') and bool(joined))}"


_NO_XML = {code: " " for code in range(32) if code not in (9, 10, 13)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One assertion of a report and its outcome."""

    suite: str
    name: str
    outcome: Literal["passed", "failure", "error", "skipped"] = "passed"
    message: str = ""
    kind: str = ""
    """Machine-readable kind of the failure or error."""
    time_s: float = 0.0
    output: str = ""


def to_junit(name: str, cases: Sequence[Case], *, started: str = "", error: str = "") -> str:
    """Return the XML of a suite; `started` is an ISO time, `error` the reason why the run was aborted."""
    counts = {
        f"{outcome}{'' if outcome == 'skipped' else 's'}": str(sum(c.outcome == outcome for c in cases))
        for outcome in ("failure", "error", "skipped")
    }
    suite = Element("testsuite", {"name": name, "tests": str(len(cases)), **counts})
    if started:
        suite.set("timestamp", started.partition("+")[0].partition(".")[0])
    suite.set("time", f"{sum(case.time_s for case in cases):.3f}")
    for case in cases:
        text = _replace_invalid(case.name)
        element = SubElement(suite, "testcase", classname=case.suite, name=text, time=f"{case.time_s:.3f}")
        if case.outcome != "passed":
            outcome = SubElement(element, case.outcome, message=_replace_invalid(case.message))
            if case.kind:
                outcome.set("type", case.kind)
        if case.output:
            SubElement(element, "system-out").text = _replace_invalid(case.output)
    if error:
        SubElement(suite, "system-err").text = _replace_invalid(error)
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _replace_invalid(text: str) -> str:
    """Replace characters that are invalid in XML, which a server's messages may contain."""
    return text.translate(_NO_XML)
