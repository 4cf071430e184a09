"""What is loaded and unloaded, told from what was found and what is served."""

import pytest

from tpx.errors import UsageError
from tpx.serving.model_id import ModelId
from tpx.serving.repository.decisions import Recipe, plan_load, plan_poll, plan_start
from tpx.serving.repository.stamps import Stamps

A, B = ModelId("a"), ModelId("b")
NEW, CHANGED, SAME, GONE = (ModelId(name) for name in ("new", "changed", "same", "gone"))


def recipe(
    files: str = "a", *, config: bytes = b"", shared: str = "", directory: str = "d", groups: bytes = b""
) -> Recipe:
    """What a version is made from."""
    return Recipe(config=config, groups=groups, directory=directory, shared=shared, files=files)


def stamps(text: str) -> Stamps:
    """Those of some files."""
    return Stamps(config=text, shared="", versions={})


def test_what_is_new_is_loaded_and_what_is_the_same_stays() -> None:
    plan = plan_load({3: recipe(), 2: recipe(), 1: recipe()}, {2: recipe()})
    assert (plan.load, plan.keep, plan.unload) == ((1, 3), (2,), ())


@pytest.mark.parametrize(
    "changed", [recipe("b"), recipe(config=b"x"), recipe(shared="x"), recipe(directory="e")]
)
def test_a_version_whose_making_changed_is_loaded_again(changed: Recipe) -> None:
    plan = plan_load({1: changed, 2: recipe()}, {1: recipe(), 2: recipe()})
    assert (plan.load, plan.keep, plan.unload) == ((1,), (2,), ())


def test_versions_that_are_not_wanted_any_more_are_unloaded() -> None:
    plan = plan_load({3: recipe()}, {1: recipe(), 2: recipe(), 3: recipe()})
    assert (plan.load, plan.keep, plan.unload) == ((), (3,), (1, 2))


def test_a_poll_loads_what_is_new_or_changed_and_unloads_what_is_gone() -> None:
    found = {NEW: stamps("1"), CHANGED: stamps("2"), SAME: stamps("1")}
    known = {CHANGED: stamps("1"), SAME: stamps("1"), GONE: stamps("1")}
    changes = plan_poll(found, known)
    assert (changes.load, changes.unload) == ((CHANGED, NEW), (GONE,))


def test_a_poll_leaves_alone_what_is_there_but_cannot_be_told() -> None:
    changes = plan_poll({SAME: None, NEW: None}, {SAME: stamps("1")})
    assert (changes.load, changes.unload) == ((), ())


def test_a_poll_tries_again_what_failed() -> None:
    assert plan_poll({SAME: stamps("1")}, {SAME: None}).load == (SAME,)


@pytest.mark.parametrize("mode", ["none", "poll"])
def test_unless_explicit_everything_is_loaded_at_startup(mode: str) -> None:
    assert plan_start(mode, (), [B, A]) == [A, B]  # type: ignore[arg-type]


def test_explicit_mode_loads_at_startup_what_it_is_told() -> None:
    assert plan_start("explicit", (), [A, B]) == []
    assert plan_start("explicit", ("b", "absent", "b"), [A, B]) == [B, ModelId("absent")]
    assert plan_start("explicit", ("*",), [B, A]) == [A, B]
    here, there = ModelId("a", "/here"), ModelId("a", "/there")
    assert plan_start("explicit", ("a",), [there, B, here]) == [here, there]


def test_startup_models_and_modes_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(UsageError, match=r"'\*' must be the ONLY startup model if specified at all"):
        plan_start("explicit", ("*", "a"), [A])
    for mode in ("none", "poll"):
        with pytest.raises(UsageError, match="requires setting '--model-control-mode=explicit' as well"):
            plan_start(mode, ("a",), [A])
