"""Ensembles come and go with the models that they are made of."""

import asyncio
import random
from contextlib import suppress
from pathlib import Path

import pytest

from tests.serving.repository.composed import WHOLE, ensemble, house, model
from tests.serving.repository.controlled import controlled, write
from tpx.errors import InvalidRequest


@pytest.mark.parametrize("mode", ["none", "poll"])
async def test_at_startup_models_come_before_the_ensembles_that_are_made_of_them(
    tmp_path: Path, mode: str
) -> None:
    house(tmp_path)
    async with controlled(tmp_path, mode=mode, model_load_thread_count=1) as it:
        assert it.states == WHOLE
        assert it.repository.all_ready()
        assert await it.factor(name="top") == 30


@pytest.mark.parametrize("at_startup", [True, False])
async def test_loading_an_ensemble_loads_all_that_it_is_made_of(tmp_path: Path, at_startup: bool) -> None:
    house(tmp_path)
    model(tmp_path, "other", 7)
    async with controlled(tmp_path, load_model=["top"] if at_startup else []) as it:
        if not at_startup:
            await it.load("top")
        assert it.states == WHOLE
        assert await it.factor(name="top") == 30


async def test_loading_an_ensemble_again_loads_what_has_changed_below_it(tmp_path: Path) -> None:
    house(tmp_path)
    async with controlled(tmp_path) as it:
        await it.load("top")
        before = it.repository.get("top")
        write(tmp_path, 7, name="five")
        await it.load("top")
        assert await it.factor(name="top") == 42
        assert it.repository.get("top") is before


async def test_an_ensemble_is_not_available_without_its_models_and_returns_with_them(tmp_path: Path) -> None:
    house(tmp_path)
    async with controlled(tmp_path) as it:
        await it.load("top")
        await it.unload("five")
        await it.until(lambda: "UNLOADING" not in str(it.states))
        gone, lost = "UNAVAILABLE unloaded: Invalid argument:", "which has no loaded version."
        assert it.states == {
            **WHOLE,
            "five:1": "UNAVAILABLE unloaded",
            "inner:1": f"{gone} ensemble 'inner' depends on 'five' {lost}",
            "top:1": f"{gone} ensemble 'top' depends on 'inner' {lost}",
        }
        assert it.repository.all_ready()
        await it.load("five")
        assert it.states == WHOLE
        assert await it.factor(name="top") == 30


async def test_an_ensemble_that_was_unloaded_itself_does_not_return_with_its_models(tmp_path: Path) -> None:
    house(tmp_path)
    async with controlled(tmp_path) as it:
        await it.load("top")
        await it.unload("top")
        await it.unload("five")
        await it.load("five")
        await it.until(lambda: it.states == {**WHOLE, "top:1": "UNAVAILABLE unloaded"})


async def test_a_model_that_does_not_fit_any_more_makes_its_ensembles_unavailable(tmp_path: Path) -> None:
    house(tmp_path)
    async with controlled(tmp_path) as it:
        await it.load("top")
        (tmp_path / "five" / "config.pbtxt").write_text("max_batch_size: 2")
        await it.load("five")
        assert it.states["five:1"] == "READY"
        await it.until(lambda: it.states["top:1"].startswith("UNAVAILABLE"))
        fault = (
            "ensemble inner allows maximum batch size 4, but it contains model five which only allows "
            f"maximum batch size to be 2 ({tmp_path}/inner/config.pbtxt:1: max_batch_size)"
        )
        assert it.states["inner:1"] == f"UNAVAILABLE unloaded: Invalid argument: {fault}"
        assert await it.refusal(it.load("inner")) == f"load failed for model 'inner': {fault}\n"
        (tmp_path / "five" / "config.pbtxt").write_text("max_batch_size: 4")
        await it.load("five")
        assert it.states == WHOLE


async def test_a_failed_load_of_a_model_leaves_its_ensembles_alone(tmp_path: Path) -> None:
    house(tmp_path)
    async with controlled(tmp_path) as it:
        await it.load("top")
        before = it.repository.get("top")
        (tmp_path / "five" / "1" / "model.onnx").write_bytes(b"no model")
        await it.refusal(it.load("five"))
        await it.load("top")
        assert it.repository.get("top") is before
        assert await it.factor(name="top") == 30


async def test_an_ensemble_tells_why_a_model_of_it_cannot_be_loaded_and_comes_once_it_can(
    tmp_path: Path,
) -> None:
    house(tmp_path)
    (tmp_path / "five" / "1" / "model.onnx").write_bytes(b"no model")
    async with controlled(tmp_path) as it:
        refusal = await it.refusal(it.load("inner"))
        begin = (
            "load failed for model 'inner': ensemble 'inner' depends on 'five' which has no loaded "
            "version. "
            "Model 'five' loading failed with error: version 1 is at UNAVAILABLE state: "
        )
        assert refusal.startswith(begin)
        assert refusal.endswith(";\n")
        assert it.states["inner:1"].startswith("UNAVAILABLE Invalid argument: ensemble 'inner' depends on")
        assert not it.repository.all_ready()
        write(tmp_path, 5, name="five")
        await it.load("five")
        assert await it.factor(name="inner") == 15
        assert it.repository.all_ready()


async def test_models_that_are_nowhere_are_named_to_the_client_and_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    house(tmp_path)
    ensemble(tmp_path, "lost", "two", "nine", "eight")
    async with controlled(tmp_path) as it:
        assert await it.refusal(it.load("lost")) == (
            "load failed for model 'lost': ensemble lost contains models that are not available or "
            "ambiguous: eight, nine\n"
        )
    assert [record.getMessage() for record in caplog.records if "'lost'" in record.getMessage()] == [
        "failed to load 'lost': Invalid argument: ensemble lost contains models that are not available or "
        "ambiguous: eight, nine"
    ]


@pytest.mark.parametrize("at_startup", [True, False])
async def test_a_circle_of_ensembles_is_named_and_the_rest_is_served(
    tmp_path: Path, at_startup: bool
) -> None:
    model(tmp_path, "two", 2)
    ensemble(tmp_path, "fine", "two")
    ensemble(tmp_path, "self", "self")
    for name, other in (("a", "b"), ("b", "c"), ("c", "a"), ("over", "a")):
        ensemble(tmp_path, name, "two", other)
    names = ["two", "fine", "self", "a", "b", "c", "over"]
    async with controlled(tmp_path, mode="none" if at_startup else "explicit") as it:
        if not at_startup:
            for name in names:
                if name in ("two", "fine"):
                    await it.load(name)
                else:
                    assert "circular dependency between ensembles: " in await it.refusal(it.load(name))
        ready = {key for key, state in it.states.items() if state == "READY"}
        assert ready == {"two:1", "fine:1"}
        assert it.states["self:-"] == (
            "UNAVAILABLE Invalid argument: circular dependency between ensembles: self -> self"
        )
        circle = [state for state in it.states.values() if "a -> b -> c -> a" in state]
        assert circle
        assert await it.factor(name="fine") == 2


async def test_a_circle_in_sixty_four_levels_is_found(tmp_path: Path) -> None:
    for n in range(64):
        ensemble(tmp_path, f"m{n}", f"m{(n + 1) % 64}")
    async with controlled(tmp_path) as it:
        refusal = await asyncio.wait_for(it.refusal(it.load("m0")), 20)
        assert "circular dependency between ensembles: " in refusal
        assert it.repository.served() == []


async def test_sixty_four_levels_are_served(tmp_path: Path) -> None:
    model(tmp_path, "m64", 2)
    for n in range(64):
        ensemble(tmp_path, f"m{n}", f"m{n + 1}")
    async with controlled(tmp_path) as it:
        await it.load("m0")
        assert await it.factor(name="m0") == 2
        await it.unload("m64")
        assert it.states["m0:1"].startswith(("UNLOADING", "UNAVAILABLE"))
        await it.load("m64")
        assert await it.factor(name="m0") == 2


async def test_unloading_an_ensemble_keeps_its_models_unless_they_are_to_go_with_it(tmp_path: Path) -> None:
    house(tmp_path)
    async with controlled(tmp_path) as it:
        await it.load("five")
        await it.load("top")
        await it.unload("top")
        assert await it.factor(name="inner") == 15
        await it.load("top")
        await it.control.unload("top", unload_dependents=True)
        await it.until(lambda: "UNLOADING" not in str(it.states))
        gone = dict.fromkeys(("top:1", "inner:1", "two:1", "three:1"), "UNAVAILABLE unloaded")
        assert it.states == {**gone, "five:1": "READY"}


async def test_a_poll_brings_ensembles_and_takes_them_away(tmp_path: Path) -> None:
    model(tmp_path, "two", 2)
    async with controlled(tmp_path, mode="poll", poll_s=1000) as it:
        house(tmp_path)
        await it.control.poll()
        assert it.states == WHOLE
        (tmp_path / "five").rename(tmp_path / ".five")
        await it.control.poll()
        await it.until(lambda: "UNLOADING" not in str(it.states))
        assert it.states["top:1"].startswith("UNAVAILABLE unloaded: ")
        await it.control.poll()
        (tmp_path / ".five").rename(tmp_path / "five")
        await it.control.poll()
        assert it.states == WHOLE
        assert await it.factor(name="top") == 30


@pytest.mark.slow
async def test_loads_and_unloads_at_the_same_time_come_to_an_end_that_fits(tmp_path: Path) -> None:
    """Whatever order they come in: what serves has all that it needs, and nobody waits for ever."""
    house(tmp_path)
    ensemble(tmp_path, "circle", "two", "round")
    ensemble(tmp_path, "round", "two", "circle")
    chance = random.Random(5)
    async with controlled(tmp_path, model_load_thread_count=2) as it:

        async def change() -> None:
            name = chance.choice(["two", "three", "five", "inner", "inner", "top", "top", "circle", "round"])
            with suppress(InvalidRequest):
                if chance.random() < 0.6:
                    await it.load(name)
                else:
                    await it.control.unload(name, unload_dependents=chance.random() < 0.5)

        for _ in range(6):
            await asyncio.wait_for(asyncio.gather(*(change() for _ in range(12))), 20)
            ready = {served.model_id for served in it.repository.served()}
            for served in it.repository.served():
                assert served.composed_of <= ready
        await it.load("top")
        assert await it.factor(name="top") == 30
        assert it.control.in_use.busy == 0
