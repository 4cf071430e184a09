"""No row of the list of hostile inputs is forgotten: each has a case, or a test that carries its name."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.hostile import vocabulary

ROWS: dict[str, list[str]] = vocabulary.document()["rows"]


@cache
def _tests() -> set[str]:
    """The rows that have a test of their own in this folder."""
    out = set()
    for path in Path(__file__).parent.glob("test_*.py"):
        for item in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef):
                found = re.match(r"test_([a-z]\d+)_", item.name)
                if found:
                    out.add(found[1].upper())
    return out


def test_every_case_belongs_to_a_row() -> None:
    assert {case.row for case in vocabulary.cases()} <= ROWS.keys()


@pytest.mark.parametrize("row", ROWS)
def test_every_row_is_shown_over_each_of_its_protocols(row: str) -> None:
    if row in _tests():
        return
    shown = {_protocol(case) for case in vocabulary.cases() if case.row == row}
    wanted = set(ROWS[row]) & {"http", "grpc", "repository"}
    assert 0 < len(wanted) < len(ROWS[row])
    assert wanted <= shown


def _protocol(case: vocabulary.Case) -> str:
    """Raw bytes go to HTTP unless they say otherwise."""
    return "grpc" if case.said.get("port") == "grpc" else case.sort.replace("raw", "http")


def test_no_two_cases_have_the_same_name() -> None:
    names = [str(case) for case in vocabulary.cases()]
    assert sorted(set(names)) == sorted(names)
