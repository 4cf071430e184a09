"""Whole searches on servers with a known truth; `tools/certainty.py` has the table of a thousand."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

PLACE = Path(__file__).parents[3] / "tools" / "certainty.py"


@pytest.fixture(scope="module")
def certainty() -> ModuleType:
    spec = importlib.util.spec_from_file_location("certainty", PLACE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_no_verdict_of_a_quiet_machine_is_wrong(certainty: ModuleType) -> None:
    tally = certainty.simulate(certainty.SETTINGS["quiet"], 12)
    assert sum(tally.wrong.values()) == 0
    assert tally.findings["better"] >= 3
    assert max(tally.gaps) <= certainty.MARGIN
    assert all(tally.covered)


@pytest.mark.slow
@pytest.mark.parametrize(
    "machine", ["noisy", "drifting", "quiet, p99 as the objective", "quiet, a limit of p99"]
)
def test_wrong_verdicts_are_rare_on_any_machine(certainty: ModuleType, machine: str) -> None:
    tally = certainty.simulate(certainty.SETTINGS[machine], 60)
    assert sum(tally.wrong.values()) <= 2
    assert sum(tally.findings[name] for name in ("better", "default")) >= 10
