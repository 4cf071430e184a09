"""Every option of tritonserver, from a list: it parses in both forms, and does what its mark promises.

Options marked M and S have an effect, which the test named beside them shows; those marked O change nothing
and say so once.
"""

import csv
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tpx.argv import from_argv
from tpx.cli.serve import main
from tpx.errors import UsageError
from tpx.options import Field, fields_of
from tpx.serving.options import ServeConfig

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Row:
    """One option as the list has it."""

    option: str
    mark: str
    sample: str
    bad: str
    expects: str
    shown_by: str

    def __str__(self) -> str:
        return self.option


with (Path(__file__).parent / "tritonserver_options.csv").open(encoding="utf-8", newline="") as lines:
    ROWS = [Row(**line) for line in csv.DictReader(lines)]
FIELDS = {spelling: field for field in fields_of(ServeConfig) for spelling in field.spellings}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files that options name are written there."""
    return tmp_path_factory.mktemp("written")


@pytest.fixture(autouse=True)
def _elsewhere(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(written)


def those(*marks: str) -> pytest.MarkDecorator:
    """Runs a test for each option with one of these marks."""
    return pytest.mark.parametrize("row", [row for row in ROWS if row.mark in marks], ids=str)


def field_of(row: Row) -> Field:
    return FIELDS[row.option]


def value(row: Row, *words: str) -> Any:
    return field_of(row).of(from_argv(ServeConfig, words))


def test_the_list_has_every_option_once() -> None:
    names = [row.option for row in ROWS]
    assert len(names) == len(set(names)) == 90
    assert {row.mark for row in ROWS} == {"M", "S", "O"}


@those("M", "S", "O")
def test_both_forms_of_an_option_mean_the_same(row: Row) -> None:
    joined, apart = value(row, f"{row.option}={row.sample}"), value(row, row.option, row.sample)
    assert joined == apart
    assert joined != field_of(row).default


@those("M", "S", "O")
def test_an_option_may_be_the_last_before_a_model(row: Row) -> None:
    config = from_argv(ServeConfig, [row.option, row.sample, "model.onnx"])
    assert config.repository.models == (Path("model.onnx"),)


@those("M", "S")
def test_an_option_that_works_is_shown_by_a_test(row: Row) -> None:
    assert not field_of(row).option.inert
    path, _, name = row.shown_by.partition("::")
    text = (ROOT / path).read_text(encoding="utf-8")
    assert re.search(rf"^(async )?def {name}\(", text, re.MULTILINE), f"{path} has no {name}"


@those("O")
def test_an_option_that_changes_nothing_says_so_once(row: Row, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["/nowhere", row.option, row.sample, f"{row.option}={row.sample}"]) == 1
    warning, error = capsys.readouterr().err.splitlines()
    assert re.match(rf"Warning: '{row.option}' has no effect: \w", warning)
    assert "cannot read model repository '/nowhere'" in error


@those("M", "S")
def test_an_option_that_works_warns_of_nothing(row: Row, capsys: pytest.CaptureFixture[str]) -> None:
    # an address that cannot be ends the server also where a missing repository does not
    assert main(["/nowhere", "--http-address=192.0.2.1", f"{row.option}={row.sample}"]) == 1
    assert f"'{row.option}' has no effect" not in capsys.readouterr().err


@pytest.mark.parametrize("row", [row for row in ROWS if row.bad], ids=str)
def test_a_wrong_value_is_told_with_its_option_and_what_is_expected(
    row: Row, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["/nowhere", f"{row.option}={row.bad}"]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: creating server: Invalid argument - ")
    assert row.option in line
    assert row.expects in line


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_misspelled_option_is_told_the_nearest(row: Row, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = row.option + "q"
    assert main(["/nowhere", f"{wrong}={row.sample}"]) == 1
    [line] = capsys.readouterr().err.splitlines()
    message = f"Invalid long option '{wrong}' (did you mean '{row.option}'?)"
    assert line == f"error: creating server: Invalid argument - {message}"


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (
            ["--strict-model-config=true"],
            ["has been deprecated! Please use '--disable-auto-complete-config'"],
        ),
        (
            ["--strict-model-config=false", "--disable-auto-complete-config"],
            [
                "Warning: '--strict-model-config' has been deprecated! Please use "
                "'--disable-auto-complete-config' instead.",
                "Warning: Overriding deprecated '--strict-model-config' from False to True in favor of "
                "'--disable-auto-complete-config'!",
            ],
        ),
        (["--disable-auto-complete-config"], []),
    ],
)
def test_the_deprecated_option_says_what_replaces_it(
    words: list[str], lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["/nowhere", *words]) == 1
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("Warning: ")]
    assert len(told) == len(lines)
    assert all(part in line for part, line in zip(lines, told, strict=True))


def test_only_unambiguous_beginnings_are_options() -> None:
    assert from_argv(ServeConfig, ["--http-po=9000"]).http.http_port == 9000
    with pytest.raises(UsageError, match="Option '--http' is ambiguous: "):
        from_argv(ServeConfig, ["--http=9000"])
