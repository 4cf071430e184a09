"""The table of options in docs/reference/perf.md is what the options are.

`TPX_WRITE_DOCS=1 pytest tests/cli/test_perf_tables.py` writes it anew.
"""

from pathlib import Path

import pytest

from tests.cli.option_tables import check_page
from tpx.cli.main import run
from tpx.options import fields_of
from tpx.perf.options.words import REFUSED, PerfWords

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "perf.md"


def test_the_page_has_every_option_as_it_is() -> None:
    check_page(PAGE, PerfWords, "perf", "tests/cli/test_perf_tables.py")


def test_the_page_names_what_is_refused() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [name for name in REFUSED if f"`{name}`" not in text] == []


def test_the_help_fits_a_terminal_of_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["perf", "--help-all"]) == 0
    page = capsys.readouterr().out
    assert [line for line in page.splitlines() if len(line) > 80] == []
    assert all(name in page for field in fields_of(PerfWords) for name in field.spellings)


@pytest.mark.parametrize("word", ["-h", "-?", "--help"])
def test_help_may_be_asked_for_as_of_perf_analyzer(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["perf", word]) == 0
    assert "Usage: tpx perf" in capsys.readouterr().out
