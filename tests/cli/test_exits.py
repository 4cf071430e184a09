"""Exit codes: one table, in the docs and in `--help` as it is."""

import re
from pathlib import Path

import pytest

from tpx.cli.commands import MEANINGS, Exit
from tpx.cli.main import run

PAGE = Path(__file__).parents[2] / "docs" / "perf" / "reports.md"


def test_the_page_has_every_exit_code_as_it_is() -> None:
    section = PAGE.read_text("utf-8").partition("## Exit codes\n")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| (\d+) \| (.*) \|$", section.replace("`", ""), re.MULTILINE))
    assert rows == {str(code.value): meaning for code, meaning in MEANINGS.items()}
    assert list(MEANINGS) == list(Exit)


@pytest.mark.parametrize(
    ("words", "codes"),
    [
        (["perf"], [0, 2, 3, 4, 5, 6, 7, 99, 130]),
        (["perf", "compare"], [0, 5, 7, 99]),
        (["analyze", "profile"], [0, 1, 4, 7, 130]),
        (["analyze", "compare"], [0, 1, 5, 7]),
        (["quickstart"], [0, 1]),
    ],
)
def test_help_lists_the_exit_codes_of_a_command(
    words: list[str], codes: list[int], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run([*words, "--help"]) == 0
    told = capsys.readouterr().out.partition("Exit codes:\n")[2]
    assert [int(code) for code in re.findall(r"^  (\d+) ", told, re.MULTILINE)] == codes
