"""Manual search: what the user listed, after the default, nothing twice."""

from dataclasses import replace
from typing import Any

import pytest

from tests.analyzer.search.exploring import BATCHING, Explored, explore, search_spec, server_for, space
from tpx.analyzer.config_sweep import read_sweep
from tpx.analyzer.search.spec import Limits


def manual(*deltas: dict[str, Any]) -> Explored:
    within = space(loads=(1, 2), until_plateau=False)
    asked = replace(search_spec(BATCHING, within=within, limits=Limits(final_rounds=0)), deltas=deltas)
    return explore("manual", asked, server_for(asked, seed=1))


def names(found: Explored) -> list[str]:
    return list(dict.fromkeys(t.variant.name for t in found.trials))


def test_the_default_comes_first_and_then_the_list_in_its_order() -> None:
    found = manual({"max_batch_size": 4}, {"max_batch_size": 2})
    assert names(found) == ["m_config_default", "m_config_0", "m_config_1"]
    assert [t.load.value for t in found.trials] == [1, 2, 1, 2, 1, 2]
    assert [t.variant.delta.get("max_batch_size") for t in found.trials[2::2]] == [4, 2]


def test_what_changes_nothing_is_the_default_and_not_measured_again() -> None:
    found = manual({"max_batch_size": 8}, {"max_batch_size": 2})
    assert names(found) == ["m_config_default", "m_config_0"]
    assert found.decisions[1].text == "max_batch_size: 8 equals the default: not measured again"


def test_the_same_change_has_one_name_whatever_the_order_of_its_keys() -> None:
    one = {"max_batch_size": 2, "parameters": {"a": {"string_value": "1"}}}
    assert names(manual(one, dict(reversed(one.items())))) == ["m_config_default", "m_config_0"]


def test_a_configuration_that_cannot_load_is_left_out_with_its_reason() -> None:
    found = manual({"max_batch_size": 4, "dynamic_batching": {"preferred_batch_size": [2, 8]}})
    assert names(found) == ["m_config_default"]
    assert found.decisions[-1].text == "left out: preferred_batch_size 8 is above max_batch_size 4"


def test_an_empty_list_is_the_default_alone() -> None:
    assert names(manual()) == ["m_config_default"]


def test_a_sweep_of_the_configuration_file_is_such_a_list() -> None:
    sweep = read_sweep(
        {"max_batch_size": [2, 4], "dynamic_batching": {"max_queue_delay_microseconds": [0, 9]}}
    )
    assert len(names(manual(*sweep.deltas()))) == 5


@pytest.mark.parametrize("mode", ["quick", "optuna", "pareto", "budgeted"])
def test_the_other_strategies_choose_among_what_is_listed(mode: Any) -> None:
    deltas = tuple({"max_batch_size": size} for size in (1, 2, 4))
    asked = replace(search_spec(BATCHING), deltas=deltas)
    found = explore(mode, asked, server_for(asked, seed=1))
    assert {t.variant.delta.get("max_batch_size") for t in found.trials} <= {None, 1, 2, 4}
