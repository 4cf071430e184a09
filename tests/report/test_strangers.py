"""Text of servers and saved runs: nothing of it reaches a terminal or a page as more than text."""

import pytest

from tpx.cli.messages import fitted
from tpx.report.ci import to_markdown
from tpx.report.document import Cell, Column, DataTable, Document, Note, Section, TableRow
from tpx.report.strangers import harmless, wrapped
from tpx.report.text import Table

EVIL = {
    "clears the screen": ("a\x1b[2Jb", r"a\x1b[2Jb"),
    "rings": ("a\x07b", r"a\x07b"),
    "a C1 control": ("a\x9b2Jb", r"a\x9b2Jb"),
    "goes back": ("a\rb\x08", r"a\rb\x08"),
    "right to left": ("a\u202eb\u2066", r"a\u202eb\u2066"),
    "another line": ("a\u2028b\x85", r"a\u2028b\x85"),
    "nul and delete": ("\0\x7f", r"\x00\x7f"),
}


@pytest.mark.parametrize("name", EVIL)
def test_control_characters_are_escaped_by_every_writer(name: str) -> None:
    text, expected = EVIL[name]
    assert harmless(text) == expected
    assert fitted(text, None) == expected
    assert wrapped(text, None) == expected
    table = Table(title=text, headers=(text, "b"), rows=((text, "1"), ("x", "2")))
    assert table.to_console().count(expected) == 3
    assert not any(ord(c) < 32 and c != "\n" for c in table.to_console(20))


def test_ordinary_text_is_left_as_it_is() -> None:
    text = "naïve 模型 ▁▂ 10 µs\n\tnext line \ue000"
    assert harmless(text) == text
    assert Table(title="", headers=("a",), rows=(("模\u3000型\ue000",),)).to_console() == "a\n模 型\ue000"


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "a`<script>b", "a|b", "a\x1b[2J"])
def test_names_are_no_markup_in_markdown(name: str) -> None:
    columns = (Column(header="Model", marked=True), Column(header="Note"))
    row = TableRow(cells=(Cell(text=name), Cell(text=name)))
    blocks = (DataTable(caption="", columns=columns, rows=(row,)), Note(text=f"`{name}` is best"))
    text = to_markdown(
        Document(product="analyze", title="", subtitle=name, sections=(Section(title=name, blocks=blocks),))
    )
    assert "<script" not in text
    assert "\x1b" not in text
    assert all(line.count("|") - line.count("\\|") == 3 for line in text.splitlines() if line[:1] == "|")
