"""Documents as PDF: what is on paper, and what a name or a path cannot do to it."""

from pathlib import Path

from tests.report.reading import pdf_text
from tpx.report.document import Block, Cell, Column, DataTable, Document, Facts, Section, TableRow, code
from tpx.report.pdf import MOST_COLUMNS, MOST_ROWS, columns_shown, render

PATH = "/srv/" + "model_repository/" * 12 + "mnist_config_default"
NAMES = DataTable(
    caption="Names",
    columns=(Column(header="Name"), Column(header="Value", numeric=True)),
    rows=tuple(
        TableRow(cells=(Cell(text=text), Cell(text="1,234.5", note="\u00b1 2")))
        for text in (PATH, "$x^2$ #set *_`[]` <b> \\ @ref // \u03bc")
    ),
)


def made(path: Path, *blocks: Block, title: str = "Load test: net") -> str:
    document = Document(
        product="perf", title=title, subtitle="today", sections=(Section(title="A", blocks=blocks),)
    )
    (path / "a.pdf").write_bytes(render(document))
    return pdf_text(path / "a.pdf")


def test_markup_in_names_is_text(tmp_path: Path) -> None:
    text = made(tmp_path, NAMES, title="#let x = [*evil*]")
    assert "#let x = [*evil*]" in text
    assert "$x^2$ #set *_`[]` <b> \\ @ref // \u03bc" in text
    assert "1,234.5 \u00b1 2" in text


def test_what_a_reader_copies_has_no_invisible_characters(tmp_path: Path) -> None:
    facts = Facts(facts={"Path": PATH})
    text = made(tmp_path, NAMES, facts, code(f"tpx serve --model-repository {PATH}"))
    assert "\u200b" not in text
    assert text.replace("\n", "").count(PATH) == 3


def test_a_table_that_is_too_long_says_what_only_the_page_has(tmp_path: Path) -> None:
    columns = tuple(Column(header=f"c{i}", numeric=True, minor=i == 3) for i in range(MOST_COLUMNS + 1))
    row = TableRow(cells=tuple(Cell(text=f"v{i}") for i in range(MOST_COLUMNS + 1)))
    text = made(tmp_path, DataTable(caption="", columns=columns, rows=(row,) * (MOST_ROWS + 20)))
    assert "Only in the HTML report: c3." in text
    assert "20 more rows in the HTML report." in text
    assert text.count("v12") == MOST_ROWS
    assert "v3" not in text


def test_minor_columns_give_way_to_the_others() -> None:
    columns = tuple(Column(header=str(i), minor=i in (2, 3, 4)) for i in range(MOST_COLUMNS + 2))
    assert columns_shown(columns) == [0, 1, 2, *range(5, MOST_COLUMNS + 2)]
    assert columns_shown(columns[:MOST_COLUMNS]) == list(range(MOST_COLUMNS))
