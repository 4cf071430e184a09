"""In what order models are loaded, and who goes with whom."""

import random
from collections.abc import Iterable, Mapping

import pytest

from tpx.serving.model_id import ModelId
from tpx.serving.repository.ensembles import Requirements, dependents, meant, plan_cascade, plan_order


def ids(names: Iterable[str]) -> list[ModelId]:
    return [ModelId(name) for name in names]


def needing(requires: Mapping[str, Iterable[str]]) -> dict[ModelId, list[ModelId]]:
    return {ModelId(name): ids(needed) for name, needed in requires.items()}


HOUSE = needing({"roof": ["wall", "beam"], "wall": ["brick"], "door": ["beam"]})


def composing(model: ModelId, requires: Requirements) -> set[ModelId]:
    """Return the models that a model depends on, directly or indirectly."""
    found: set[ModelId] = set()
    waiting = [model]
    while waiting:
        for needed in requires.get(waiting.pop(), ()):
            if needed not in found:
                found.add(needed)
                waiting.append(needed)
    return found


def test_a_model_comes_behind_what_it_needs() -> None:
    order = plan_order({**HOUSE, **needing({"brick": [], "beam": []})})
    assert set(order.models) == set(ids(["roof", "wall", "door", "brick", "beam"]))
    place = {model: index for index, model in enumerate(order.models)}
    for model, needed in HOUSE.items():
        assert all(place[other] < place[model] for other in needed)


def test_what_is_needed_but_not_to_be_loaded_is_left_out() -> None:
    assert plan_order(needing({"roof": ["wall"]})).models == (ModelId("roof"),)


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
    order = plan_order(needing(requires))
    assert order.circular == {ModelId(name): around for name, around in circular.items()}
    assert set(order.models) == set(ids(requires.keys() - circular.keys()))


def test_however_deep_they_are_nested() -> None:
    chain = needing({f"m{n}": [f"m{n + 1}"] for n in range(5000)})
    first, [before_last, last] = ModelId("m0"), ids(["m4999", "m5000"])
    assert plan_order(chain).models[-1] == first
    assert dependents([last], chain)[-1] == first
    chain[before_last] = [first]
    assert len(plan_order(chain).circular) == 5000


def test_random_graphs_are_ordered_or_have_a_circle() -> None:
    numbers = random.Random(7)
    for _ in range(300):
        models = ids(f"m{n}" for n in range(numbers.randint(1, 8)))
        requires = {model: {numbers.choice(models) for _ in range(numbers.randint(0, 2))} for model in models}
        order = plan_order(requires)
        around = {model for model in models if model in composing(model, requires)}
        assert order.circular.keys() <= around
        assert bool(order.circular) == bool(around)
        place = {model: index for index, model in enumerate(order.models)}
        for model in order.models:
            for needed in requires[model]:
                assert needed in around or place[needed] < place[model]


def test_who_needs_what_has_changed_comes_behind_it() -> None:
    assert dependents(ids(["brick"]), HOUSE) == ids(["wall", "roof"])
    assert sorted(dependents(ids(["beam"]), HOUSE)) == ids(["door", "roof"])
    assert dependents(ids(["elsewhere"]), HOUSE) == []


@pytest.mark.parametrize(
    ("asked", "gone"),
    [
        ((), ["roof", "wall", "brick"]),
        (("wall",), ["roof"]),
        (("brick",), ["roof", "wall"]),
    ],
)
def test_with_an_ensemble_goes_what_only_it_needs(asked: tuple[str, ...], gone: list[str]) -> None:
    assert plan_cascade(ModelId("roof"), HOUSE, ids(asked)) == ids(gone)


def test_without_the_other_ensemble_a_shared_model_goes_too() -> None:
    assert plan_cascade(ModelId("door"), needing({"door": ["beam"]}), ()) == ids(["door", "beam"])
    assert plan_cascade(ModelId("brick"), HOUSE, ()) == ids(["brick"])


@pytest.mark.parametrize(
    ("written", "namespaces", "found"),
    [
        ("", ["/own", "/b"], ["/own"]),
        ("", ["/b"], ["/b"]),
        ("", ["/b", "/c"], ["/b", "/c"]),
        ("", [], ["/own"]),
        ("/b", ["/own", "/b"], ["/b"]),
        ("/c", ["/own", "/b"], ["/c"]),
    ],
)
def test_a_step_means_what_it_names_or_its_own_namespaces_or_the_only_one(
    written: str, namespaces: list[str], found: list[str]
) -> None:
    there = [ModelId("net", namespace) for namespace in namespaces]
    assert meant(ModelId("net", written), "/own", there) == {ModelId("net", each) for each in found}
