"""In what order models are loaded, and who goes with whom."""

import random

import pytest

from tpx.serving.repository.dependencies import composing, dependents, plan_cascade, plan_order

HOUSE = {"roof": ["wall", "beam"], "wall": ["brick"], "door": ["beam"]}


def test_a_model_comes_behind_what_it_needs() -> None:
    order = plan_order({**HOUSE, "brick": [], "beam": []})
    assert set(order.names) == {"roof", "wall", "door", "brick", "beam"}
    place = {name: index for index, name in enumerate(order.names)}
    for name, needed in HOUSE.items():
        assert all(place[other] < place[name] for other in needed)


def test_what_is_needed_but_not_to_be_loaded_is_left_out() -> None:
    assert plan_order({"roof": ["wall"]}).names == ("roof",)


@pytest.mark.parametrize(
    ("requires", "circular"),
    [
        ({"a": ["a"]}, {"a": "a -> a"}),
        ({"a": ["b"], "b": ["a"]}, {"a": "a -> b -> a", "b": "a -> b -> a"}),
        (
            {"x": ["b"], "a": ["b"], "b": ["c", "m"], "c": ["a"], "m": []},
            dict.fromkeys("abc", "a -> b -> c -> a"),
        ),
    ],
)
def test_a_circle_is_named_and_everything_else_is_loaded(
    requires: dict[str, list[str]], circular: dict[str, str]
) -> None:
    order = plan_order(requires)
    assert order.circular == circular
    assert set(order.names) == requires.keys() - circular.keys()


def test_however_deep_they_are_nested() -> None:
    chain = {f"m{n}": [f"m{n + 1}"] for n in range(5000)}
    assert plan_order(chain).names[-1] == "m0"
    assert len(composing("m0", chain)) == 5000
    assert dependents(["m5000"], chain)[-1] == "m0"
    chain["m4999"] = ["m0"]
    assert len(plan_order(chain).circular) == 5000


def test_random_graphs_are_ordered_or_have_a_circle() -> None:
    numbers = random.Random(7)
    for _ in range(300):
        names = [f"m{n}" for n in range(numbers.randint(1, 8))]
        requires = {name: {numbers.choice(names) for _ in range(numbers.randint(0, 2))} for name in names}
        order = plan_order(requires)
        around = {name for name in names if name in composing(name, requires)}
        assert order.circular.keys() <= around
        assert bool(order.circular) == bool(around)
        place = {name: index for index, name in enumerate(order.names)}
        for name in order.names:
            for needed in requires[name]:
                assert needed in around or place[needed] < place[name]


def test_who_needs_what_has_changed_comes_behind_it() -> None:
    assert dependents(["brick"], HOUSE) == ["wall", "roof"]
    assert sorted(dependents(["beam"], HOUSE)) == ["door", "roof"]
    assert dependents(["elsewhere"], HOUSE) == []


def test_an_ensemble_is_made_of_everything_below_it() -> None:
    assert composing("roof", HOUSE) == {"wall", "beam", "brick"}


@pytest.mark.parametrize(
    ("asked", "gone"),
    [
        ((), ["roof", "wall", "brick"]),
        (("wall",), ["roof"]),
        (("brick",), ["roof", "wall"]),
    ],
)
def test_with_an_ensemble_goes_what_only_it_needs(asked: tuple[str, ...], gone: list[str]) -> None:
    assert plan_cascade("roof", HOUSE, asked) == gone


def test_without_the_other_ensemble_a_shared_model_goes_too() -> None:
    assert plan_cascade("door", {"door": ["beam"]}, ()) == ["door", "beam"]
    assert plan_cascade("brick", HOUSE, ()) == ["brick"]
