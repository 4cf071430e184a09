"""Every field of Model Analyzer's `profile`, from a list: by flag and by key, what is shown of it, and what
is said where it cannot be.

Those marked M have an effect, which the test named beside them shows; those marked O change nothing and say
so.
"""

import csv
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tpx.analyzer.options import ProfileSpec
from tpx.analyzer.options.file import merge_options
from tpx.argv import given_in_argv
from tpx.errors import UsageError
from tpx.options import Field, fields_of, given_in_mapping

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Row:
    """One field as the list has it."""

    field: str
    short: str
    mark: str
    sample: str
    bad: str
    expects: str
    shown_by: str

    def __str__(self) -> str:
        return self.field

    @property
    def flag(self) -> str:
        return "--" + self.field.replace("_", "-")


with (Path(__file__).parent / "model_analyzer_options.csv").open(encoding="utf-8", newline="") as lines:
    ROWS = [Row(**line) for line in csv.DictReader(lines)]
FIELDS = {field.name: field for field in fields_of(ProfileSpec)}

every = pytest.mark.parametrize("row", ROWS, ids=str)


def those(mark: str) -> pytest.MarkDecorator:
    """Runs a test for each field with this mark."""
    return pytest.mark.parametrize("row", [row for row in ROWS if row.mark == mark], ids=str)


def field_of(row: Row) -> Field:
    return FIELDS[row.field]


def given(row: Row, *words: str) -> Any:
    return given_in_argv(ProfileSpec, words)[row.field]


def test_the_list_has_every_field_once() -> None:
    names = [row.field for row in ROWS]
    assert len(names) == len(set(names)) == 81
    assert {row.mark for row in ROWS} == {"M", "O"}


@every
def test_both_forms_of_the_flag_and_the_key_of_a_file_mean_the_same(row: Row) -> None:
    joined, apart = given(row, f"{row.flag}={row.sample}"), given(row, row.flag, row.sample)
    mapped = given_in_mapping(ProfileSpec, {row.field: yaml.safe_load(row.sample)})[row.field]
    assert joined == apart == mapped
    assert joined != field_of(row).default


@pytest.mark.parametrize("row", [row for row in ROWS if row.short], ids=str)
def test_the_short_form_means_the_same(row: Row) -> None:
    assert given(row, row.short, row.sample) == given(row, row.flag, row.sample)


@pytest.mark.parametrize("row", [row for row in ROWS if row.bad], ids=str)
def test_a_wrong_value_is_told_with_what_is_expected(row: Row) -> None:
    with pytest.raises(UsageError, match=re.escape(row.expects)) as found:
        merge_options([f"{row.flag}={row.bad}"])
    names = (row.flag, row.field, row.field.replace("_", " "))
    assert any(name in found.value.message for name in names) or row.expects in found.value.message


@every
def test_a_misspelled_flag_or_key_is_told_the_nearest(row: Row, tmp_path: Path) -> None:
    wrong = row.flag + "q"
    with pytest.raises(UsageError, match=f"'{wrong}' .did you mean '{row.flag}'"):
        merge_options([f"{wrong}={row.sample}"])
    (tmp_path / "config.yml").write_text(f"{row.field}q: 1\n")
    with pytest.raises(UsageError, match=f":1: unknown key '{row.field}q' .did you mean '{row.field}'"):
        merge_options(["-f", str(tmp_path / "config.yml")])


@those("M")
def test_a_field_with_an_effect_is_shown_by_a_test(row: Row) -> None:
    assert not field_of(row).option.inert
    path, _, name = row.shown_by.partition("::")
    text = (ROOT / path).read_text(encoding="utf-8")
    assert re.search(rf"^(async )?def {name}\(", text, re.MULTILINE), f"{path} has no {name}"


@those("O")
def test_a_field_that_changes_nothing_says_so(row: Row) -> None:
    assert field_of(row).option.inert
    remote = ["--triton-launch-mode=remote"]
    [line] = merge_options([*remote, f"{row.flag}={row.sample}"]).warnings
    assert line.startswith(f"{row.flag} has no effect: ")
