"""Every option of `tpx perf` and of perf_analyzer, from a list: what a value of it does, and what a bad one.

The mark is perf_analyzer's, for HTTP, gRPC and the engine in the process: M and S work here, - is refused or
means what another service needs. T is an option of tpx alone. What an option does is shown by the test named
beside it.
"""

import csv
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tpx.argv import given_in_argv
from tpx.cli.perf import main
from tpx.options import Field, fields_of
from tpx.perf.options.words import PERF_ANALYZER, REFUSED, PerfWords, read_words

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Row:
    """One option as the list has it; `more` are words that it needs beside it."""

    option: str
    mark: str
    field: str
    more: str
    sample: str
    bad: str
    expects: str
    shown_by: str

    def __str__(self) -> str:
        return self.option


with (Path(__file__).parent / "perf_analyzer_options.csv").open(encoding="utf-8", newline="") as lines:
    ROWS = [Row(*line) for line in list(csv.reader(lines))[1:]]
FIELDS = {spelling: field for field in fields_of(PerfWords) for spelling in field.spellings}
HERE = [row for row in ROWS if row.option not in REFUSED]


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that samples name."""
    folder = tmp_path_factory.mktemp("samples")
    (folder / "numbers").write_text("1000\n2000\n", encoding="utf-8")
    (folder / "data.json").write_text('{"data": [{"x": [1], "timestamp": [1]}]}', encoding="utf-8")
    return folder


@pytest.fixture(autouse=True)
def _elsewhere(samples: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(samples)


def words(row: Row, *last: str) -> list[str]:
    model = [] if row.option in ("-m", "--models", "--version") else ["-m", "net"]
    return [*model, *row.more.split(), *last]


def joined(row: Row, text: str) -> str:
    return f"{row.option}={text}" if row.option.startswith("--") else row.option + text


def test_every_option_has_its_line_once() -> None:
    names = [row.option for row in ROWS]
    assert len(names) == len(set(names))
    assert {row.field for row in HERE} == {field.name for field in fields_of(PerfWords)}
    assert {f"--{name}" for name in PERF_ANALYZER} - set(names) == {"--help"}
    assert set(REFUSED) <= set(names)


@pytest.mark.parametrize("row", HERE, ids=str)
def test_the_field_is_the_options(row: Row) -> None:
    assert FIELDS[row.option].name == row.field


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_what_it_does_is_shown_by_a_test_that_there_is(row: Row) -> None:
    path, _, name = row.shown_by.partition("::")
    text = (ROOT / path).read_text(encoding="utf-8")
    assert re.search(rf"^(async )?def {name}\(", text, re.MULTILINE), f"{path} has no {name}"


def value(row: Row, *last: str) -> Any:
    return given_in_argv(PerfWords, words(row, *last))[row.field]


def is_switch(row: Row) -> bool:
    field: Field = FIELDS[row.option]
    return field.is_switch


@pytest.mark.parametrize("row", [row for row in HERE if row.sample and not is_switch(row)], ids=str)
def test_both_forms_of_an_option_mean_the_same(row: Row) -> None:
    assert value(row, joined(row, row.sample)) == value(row, row.option, row.sample)


@pytest.mark.parametrize("row", [row for row in HERE if row.sample], ids=str)
def test_a_value_is_another_than_the_default_and_describes_a_run(row: Row) -> None:
    last = [row.option] if row.sample == "true" else [joined(row, row.sample)]
    assert value(row, *last) != FIELDS[row.option].default
    read_words(words(row, *last))


@pytest.mark.parametrize("row", [row for row in ROWS if row.bad], ids=str)
def test_a_bad_value_is_told_with_what_is_expected(row: Row, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words(row, joined(row, row.bad))) == 99
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("Error: ")
    assert row.expects in line


@pytest.mark.parametrize("row", [row for row in ROWS if row.option in REFUSED], ids=str)
def test_what_is_refused_is_refused_by_name(row: Row, capsys: pytest.CaptureFixture[str]) -> None:
    assert row.mark in ("---", "-")
    assert main(words(row, joined(row, "1"))) == 99
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"Error: {row.expects}: ")


@pytest.mark.parametrize(
    "row", [row for row in HERE if is_switch(row) and row.option.startswith("--")], ids=str
)
def test_a_switch_takes_no_other_word(row: Row, capsys: pytest.CaptureFixture[str]) -> None:
    if row.option == "--version":
        return
    assert main(words(row, f"{row.option}=maybe")) == 99
    assert "expected true, on, 1, false, off or 0" in capsys.readouterr().err


@pytest.mark.parametrize("row", [row for row in HERE if row.option.startswith("--")], ids=str)
def test_a_misspelled_option_is_told_the_nearest(row: Row, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = row.option + "q"
    assert main(words(row, f"{wrong}={row.sample}")) == 99
    [line] = capsys.readouterr().err.splitlines()
    assert line == f"Error: Invalid long option '{wrong}' (did you mean '{row.option}'?)"
