"""The table of the kinds of load."""

from importlib import import_module
from inspect import iscoroutinefunction

import pytest

from tpx.options import fields_of
from tpx.perf.levels import KINDS, Level, LoadKind, level_number
from tpx.perf.options import SessionSpec


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_kind_of_load_has_a_function_that_opens_it(kind: LoadKind) -> None:
    module, _, function = kind.opener.partition(":")
    assert iscoroutinefunction(getattr(import_module(f"tpx.perf.loads.{module}"), function))


def test_every_kind_that_an_option_asks_for_names_its_flag() -> None:
    flags = {field.name: field.flag for field in fields_of(SessionSpec)}
    asked = [kind for kind in KINDS.values() if kind.option]
    assert [flags[kind.option] for kind in asked] == [kind.flag for kind in asked]


def test_the_seed_of_a_level_is_exact_in_every_reader_of_json() -> None:
    numbers = {level_number(seed, Level("concurrency", load)) for seed in range(20) for load in (1.0, 8.0)}
    assert len(numbers) == 40
    assert all(number < 2**53 for number in numbers)
