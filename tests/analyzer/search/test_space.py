"""Axes and the points made of them: what a variant changes, what is not worth a trial, what it is called."""

import math
from dataclasses import replace

import pytest

from tests.analyzer.search.exploring import BATCHING, FIXED, explore, search_spec, server_for, space
from tpx.analyzer.results.measurement import Trial, TrialFailure, Variant
from tpx.analyzer.search.axes import open_grid
from tpx.analyzer.search.driver import SearchDriver
from tpx.analyzer.search.space import Dimension, Names, SearchGrid, combine
from tpx.analyzer.search.spec import Extras, Limits, SearchMember
from tpx.analyzer.variants import ModelFacts, configure, merge
from tpx.errors import UsageError


def grid(extras: Extras, facts: ModelFacts = BATCHING, *, instances: tuple[int, int] = (1, 2)) -> SearchGrid:
    return open_grid(
        search_spec(facts, within=space(instances=instances, max_batch_sizes=(1, 4), extras=extras))
    )


def labels(found: SearchGrid, name: str) -> list[str]:
    return [c.label for d in found.dimensions if d.name == name for c in d.choices]


def variant_with(found: SearchGrid, **chosen: str) -> Variant:
    """The variant of the first point with these labels, spaces being underscores."""
    for point in found.points():
        told = found.describe(point)
        if all(
            f"{name.replace('_', ' ') if name == 'graph_level' else name} {label}" in told
            for name, label in chosen.items()
        ):
            return found.variant(point)
    raise AssertionError(f"no point with {chosen}")


def test_a_plain_grid_has_model_analyzers_automatic_variants() -> None:
    found = grid(Extras())
    assert [found.variant(p).delta for p in found.points()][1] == {
        "instance_group": [{"count": 1, "kind": "KIND_CPU"}],
        "max_batch_size": 2,
        "dynamic_batching": {},
    }
    assert found.size == 6


def test_threads_double_up_to_the_cores() -> None:
    found = grid(Extras(search_threads=True, cores=6))
    assert labels(found, "threads") == ["1", "2", "4", "6"]
    delta = variant_with(found, instances="1", threads="4").delta
    assert delta["parameters"] == {"intra_op_thread_count": {"string_value": "4"}}
    assert not any(
        "instances 2" in found.describe(p) and "threads 4" in found.describe(p) for p in found.points()
    )


def test_a_queue_delay_is_one_of_the_batcher_and_needs_batches() -> None:
    found = grid(Extras(queue_delays=(100, 500)))
    delta = variant_with(found, max_batch_size="4", batching="on, delay 500 \u00b5s").delta
    assert delta["dynamic_batching"] == {"max_queue_delay_microseconds": 500}
    told = [found.describe(p) for p in found.points()]
    assert not any("max_batch_size 1," in text and "delay" in text for text in told)


def test_without_a_batcher_the_defaults_own_is_taken_out() -> None:
    found = grid(Extras(search_without_batching=True))
    variant = variant_with(found, max_batch_size="4", batching="off")
    assert variant.delta["dynamic_batching"] is None
    default = {"max_batch_size": 8, "dynamic_batching": {"max_queue_delay_microseconds": 5}}
    assert "dynamic_batching" not in merge(default, variant.delta)
    assert not configure(variant, default).dynamic_batching


def test_execution_providers_come_with_the_precisions_they_take() -> None:
    found = grid(Extras(execution_providers=("openvino",), precisions=("FP16",)))
    assert labels(found, "provider") == ["default", "openvino", "openvino FP16"]
    variant = variant_with(found, provider="openvino FP16")
    assert variant.delta["optimization"] == {
        "execution_accelerators": {
            "cpu_execution_accelerator": [{"name": "openvino", "parameters": {"precision": "FP16"}}]
        }
    }
    assert "precision" in configure(variant, {"max_batch_size": 8}).text


def test_a_graph_level_is_the_configurations_own() -> None:
    found = grid(Extras(graph_levels=(-1, 2)))
    assert labels(found, "graph level") == ["default", "-1", "2"]
    assert variant_with(found, graph_level="2").delta["optimization"] == {"graph": {"level": 2}}


@pytest.mark.parametrize(
    ("extras", "facts", "message"),
    [
        (
            Extras(search_threads=True, cores=2),
            replace(BATCHING, backend="python"),
            "--search-threads: the number of threads",
        ),
        (Extras(graph_levels=(1,)), replace(BATCHING, backend="pytorch"), "--graph-levels vary models of"),
        (Extras(execution_providers=("tensorrt",)), BATCHING, "tensorrt is for instances on the GPU"),
        (Extras(precisions=("FP16",)), BATCHING, "--precisions requires openvino or tensorrt"),
    ],
)
def test_an_axis_that_a_model_does_not_have_is_refused(
    extras: Extras, facts: ModelFacts, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        grid(extras, facts)


def test_neighbours_are_one_step_away_and_unordered_choices_all_of_them() -> None:
    found = grid(Extras(queue_delays=(1, 2)), instances=(1, 3))
    here = (1, 1, 0)
    assert set(found.neighbours(here)) == {(2, 1, 0), (0, 1, 0), (1, 2, 0), (1, 0, 0), (1, 1, 1), (1, 1, 2)}


def test_what_is_around_a_point_lies_within_the_radius_and_may_be_tried() -> None:
    found = grid(Extras(queue_delays=(1, 2)), instances=(1, 5))
    for home in found.points():
        expected = [point for point in found.points() if 0 < math.dist(point, home) <= 2]
        assert found.around(home, 2) == expected


@pytest.mark.slow
def test_quick_search_does_not_look_at_every_point_of_many_members() -> None:
    many = tuple(SearchMember(facts=replace(BATCHING, model=name)) for name in "abcdef")
    asked = replace(search_spec(FIXED), members=many)
    assert open_grid(asked).size == 40**6
    search = SearchDriver("quick", asked)
    for _ in range(5):
        trial = search.ask()
        assert isinstance(trial, Trial)
        search.tell(trial, TrialFailure(variant=trial.variant.name, load=trial.load, reason="not tried"))


def test_names_count_changes_in_the_order_they_are_asked_for() -> None:
    names = Names(("m_config_model",))
    first = names.variant({"a": 1, "b": {"c": 2}})
    assert first.name == "m_config_model_config_0"
    assert names.variant({"d": 1}).name == "m_config_model_config_1"
    assert names.variant({"b": {"c": 2}, "a": 1}).name == first.name
    assert names.variant({}).name == "m_config_model_config_default"


def test_changes_combine_and_none_stays() -> None:
    one = {"dynamic_batching": {"preferred_batch_size": []}, "max_batch_size": 4}
    assert combine(one, {"dynamic_batching": None}) == {"dynamic_batching": None, "max_batch_size": 4}
    assert combine(one, {"dynamic_batching": {"max_queue_delay_microseconds": 7}})["dynamic_batching"] == {
        "preferred_batch_size": [],
        "max_queue_delay_microseconds": 7,
    }


ADD, SUB, BLS = replace(BATCHING, model="add"), replace(FIXED, model="sub"), replace(FIXED, model="bls")
BOTH = (SearchMember(facts=ADD), SearchMember(facts=SUB))
TOGETHER = tuple(replace(member, loads=space().loads) for member in BOTH)


def test_an_ensembles_steps_are_its_dimensions_and_its_variant_names_theirs() -> None:
    facts = ModelFacts(model="ens", max_batch_size=4, can_batch_dynamically=False, steps=("add", "sub"))
    asked = replace(search_spec(facts), members=BOTH)
    found = open_grid(asked)
    assert [(d.model, d.name) for d in found.dimensions] == [
        ("add", "instances"),
        ("add", "max_batch_size"),
        ("sub", "instances"),
    ]
    variant = found.variant((1, 0, 2))
    assert (variant.name, [m.name for m in variant.members]) == (
        "ens_config_0",
        ["add_config_0", "sub_config_0"],
    )
    assert found.default.is_default
    assert found.default.name == "ens_config_default"
    assert not found.together


def test_business_logic_is_varied_with_what_it_calls() -> None:
    asked = replace(search_spec(BLS), members=(SearchMember(facts=BLS), SearchMember(facts=SUB)))
    variant = open_grid(asked).variant((1, 0))
    assert variant.delta == {"instance_group": [{"count": 2, "kind": "KIND_CPU"}]}
    assert [m.model for m in variant.members] == ["sub"]


def test_models_measured_together_have_loads_of_their_own() -> None:
    asked = replace(search_spec(replace(BATCHING, model="add,sub")), members=TOGETHER)
    found = open_grid(asked)
    point = (1, 2, 0)  # add: 2 instances, batches of 4; sub: 1 instance
    load = found.ladder(point)[4]
    assert [own.value for own in load.members] == [14, 2]
    assert load.value == 16
    assert str(load) == "concurrency 14 + concurrency 2"


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["quick", "optuna", "budgeted", "pareto"])
@pytest.mark.parametrize("together", [False, True])
def test_several_models_are_searched_by_every_strategy_that_jumps(mode: str, together: bool) -> None:
    name = "add,sub" if together else "ens"
    asked = replace(
        search_spec(replace(FIXED, model=name), limits=Limits(max_measurements=150)),
        members=TOGETHER if together else BOTH,
    )
    found = explore(mode, asked, server_for(asked, seed=4))  # type: ignore[arg-type]
    assert found.trials[0].variant.is_default
    assert all(len(t.load.members) == (2 if together else 0) for t in found.trials)
    assert found.quality_of_best > 1.2


def test_a_point_that_changes_nothing_of_the_default_is_the_default() -> None:
    groups = [{"name": "m", "kind": "KIND_CPU", "count": 2}]
    parameters = {"intra_op_thread_count": {"string_value": "1"}}
    within = space(instances=(1, 2), extras=Extras(search_threads=True, cores=2))
    asked = search_spec(FIXED, within=within)
    found = open_grid(replace(asked, default={"instance_group": groups, "parameters": parameters}))
    names = {found.describe(point): found.variant(point).name for point in found.points()}
    assert names == {
        "instances 1, threads 1": "m_config_0",
        "instances 1, threads 2": "m_config_1",
        "instances 2, threads 1": "m_config_default",
    }


def test_members_that_are_as_they_were_make_the_default_of_what_they_belong_to() -> None:
    groups = [{"name": "a_0", "kind": "KIND_CPU", "count": 2}]
    members = tuple(
        SearchMember(facts=replace(FIXED, model=name), default={"instance_group": groups})
        for name in ("a", "b")
    )
    facts = replace(FIXED, model="ens", can_batch_dynamically=False)
    found = open_grid(replace(search_spec(facts, within=space(instances=(1, 2))), members=members))
    named = {found.describe(point): found.variant(point) for point in found.points()}
    assert named["a instances 2, b instances 2"] == found.default
    assert [part.name for part in named["a instances 1, b instances 2"].members] == [
        "a_config_0",
        "b_config_default",
    ]


def test_an_empty_dimension_is_refused() -> None:
    with pytest.raises(UsageError, match="nothing to choose for threads"):
        SearchGrid(search_spec(), (Dimension(name="threads", choices=()),))


def test_a_listed_change_that_the_default_has_is_the_default_in_a_grid_too() -> None:
    listed = ({"max_batch_size": 8}, {"max_batch_size": 4})
    found = open_grid(replace(search_spec(BATCHING), deltas=listed))
    assert [found.variant(point).name for point in found.points()] == [
        "m_config_default",
        "m_config_default",
        "m_config_0",
    ]
