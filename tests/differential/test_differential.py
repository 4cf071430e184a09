"""Send the same requests to a real Triton and to tpx: only listed deviations may differ."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.differential.conftest import Both
from tests.differential.deviations import listed

CASES: list[dict[str, Any]] = yaml.safe_load(
    Path(__file__).with_name("cases.yaml").read_text(encoding="utf-8")
)
DEVIATIONS = {case: deviation for deviation in listed() for case in deviation.cases}


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.parametrize("case", [pytest.param(case, id=case["id"]) for case in CASES])
def test_both_answer_the_same(both: Both, case: dict[str, Any]) -> None:
    theirs, ours = both.triton.outcome(case), both.tpx.outcome(case)
    deviation = DEVIATIONS.get(case["id"])
    if deviation is None:
        assert ours == theirs
        return
    assert ours != theirs, f"not a deviation any more, take it off the list: {deviation.what}"
    if deviation.same_words:
        assert message(ours).startswith(message(theirs))
        assert ours["status"] != theirs["status"]


def message(outcome: dict[str, Any]) -> str:
    """What an error says."""
    if "details" in outcome:
        return str(outcome["details"])
    [(key, text)] = outcome["body"]
    assert key == "error"
    return str(text)


def test_the_list_of_deviations_names_cases_that_exist_and_reasons() -> None:
    known = [case["id"] for case in CASES]
    assert len(known) == len(set(known))
    named = [case for deviation in listed() for case in deviation.cases]
    assert len(named) == len(set(named)), "a case shows two deviations"
    assert set(named) <= set(known)
    for deviation in listed():
        assert deviation.cases, deviation.what
        assert deviation.why, deviation.what
