"""Ensembles come and go with the models that they are made of."""

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest

from tests.serving.onnx_files import write_model
from tests.serving.repository.controlled import Scene, ask, controlled, play, times, write
from tpx.errors import NotFound
from tpx.protocol.tensors import Tensor
from tpx.protocol.v2 import DecodedRequest
from tpx.serving.request import InferRequest, InferResponse

IO = (
    "input [{ name: 'x' data_type: TYPE_FP32 dims: [2] }] "
    "output [{ name: 'y' data_type: TYPE_FP32 dims: [2] }] "
)


def chain(*models: str, version: int = -1) -> str:
    """The configuration of an ensemble that calls one model after the other."""
    tensors = ["x", *(f"t{n}" for n in range(1, len(models))), "y"]
    steps = ", ".join(
        f"{{ model_name: '{model}' model_version: {version} input_map {{ key: 'x' value: '{given}' }} "
        f"output_map {{ key: 'y' value: '{made}' }} }}"
        for model, given, made in zip(models, tensors, tensors[1:], strict=False)
    )
    return f"platform: 'ensemble' max_batch_size: 4 {IO} ensemble_scheduling {{ step [ {steps} ] }}"


def ensemble(repository: Path, name: str, *models: str, version: int = -1) -> None:
    (repository / name / "1").mkdir(parents=True, exist_ok=True)
    (repository / name / "config.pbtxt").write_text(chain(*models, version=version))


def model(repository: Path, name: str, factor: float, config: str = "") -> None:
    write(repository, factor, name=name)
    (repository / name / "config.pbtxt").write_text(config or "max_batch_size: 8")


def house(repository: Path) -> None:
    """`top` is 2 * 3 * 5, of which `inner` is 3 * 5."""
    for name, factor in (("two", 2), ("three", 3), ("five", 5)):
        model(repository, name, factor)
    ensemble(repository, "inner", "three", "five")
    ensemble(repository, "top", "two", "inner")


WHOLE = {f"{name}:1": "READY" for name in ("two", "three", "five", "inner", "top")}


@pytest.mark.parametrize("mode", ["none", "poll"])
def test_at_startup_models_come_before_the_ensembles_that_are_made_of_them(tmp_path: Path, mode: str) -> None:
    async def scene() -> None:
        house(tmp_path)
        async with controlled(tmp_path, mode=mode, load_threads=1) as it:
            assert it.states == WHOLE
            assert it.repository.all_ready()
            assert await it.factor(name="top") == 30

    play(scene)


@pytest.mark.parametrize("at_startup", [True, False])
def test_loading_an_ensemble_loads_all_that_it_is_made_of(tmp_path: Path, at_startup: bool) -> None:
    async def scene() -> None:
        house(tmp_path)
        model(tmp_path, "other", 7)
        async with controlled(tmp_path, startup=["top"] if at_startup else []) as it:
            if not at_startup:
                await it.load("top")
            assert it.states == WHOLE
            assert await it.factor(name="top") == 30

    play(scene)


def test_loading_an_ensemble_again_loads_what_has_changed_below_it(tmp_path: Path) -> None:
    async def scene() -> None:
        house(tmp_path)
        async with controlled(tmp_path) as it:
            await it.load("top")
            before = it.repository.get("top")
            write(tmp_path, 7, name="five")
            await it.load("top")
            assert await it.factor(name="top") == 42
            assert it.repository.get("top") is before

    play(scene)


def test_a_model_that_is_loaded_again_serves_at_the_next_step_of_requests_on_their_way(
    tmp_path: Path,
) -> None:
    async def scene() -> None:
        slow(tmp_path, "slow")
        model(tmp_path, "two", 2)
        ensemble(tmp_path, "top", "slow", "two")
        async with controlled(tmp_path) as it:
            await it.load("top")
            asked = asyncio.create_task(ask(it.repository.get("top")))
            await asyncio.sleep(0.02)
            write(tmp_path, 3, name="two")
            await it.load("two")
            assert not asked.done()
            assert await asked == 3

    play(scene)


def slow(repository: Path, name: str, delay_ms: int = 300) -> None:
    """A model that gives back what it gets, after a while."""
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(
        f"backend: 'identity' max_batch_size: 8 {IO} "
        f"parameters {{ key: 'execute_delay_ms' value {{ string_value: '{delay_ms}' }} }}"
    )


@pytest.mark.parametrize("gone", [["two"], ["top"], ["two", "slow"], ["inner", "two"]])
def test_requests_on_their_way_are_answered_whatever_is_unloaded(tmp_path: Path, gone: list[str]) -> None:
    async def scene() -> None:
        slow(tmp_path, "slow")
        model(tmp_path, "two", 2)
        ensemble(tmp_path, "inner", "two")
        ensemble(tmp_path, "top", "slow", "inner")
        async with controlled(tmp_path) as it:
            await it.load("top")
            asked = asyncio.create_task(ask(it.repository.get("top")))
            await asyncio.sleep(0.02)
            for name in gone:
                await it.control.unload(name, unload_dependents=True)
            with pytest.raises(NotFound):
                it.repository.get("top")
            await asyncio.sleep(0.1)
            assert not asked.done()
            assert await asked == 2
            await it.until(lambda: not it.control.retirement.draining)

    play(scene)


def test_an_ensemble_is_not_available_without_its_models_and_returns_with_them(tmp_path: Path) -> None:
    async def scene() -> None:
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

    play(scene)


def test_an_ensemble_that_was_unloaded_itself_does_not_return_with_its_models(tmp_path: Path) -> None:
    async def scene() -> None:
        house(tmp_path)
        async with controlled(tmp_path) as it:
            await it.load("top")
            await it.unload("top")
            await it.unload("five")
            await it.load("five")
            await it.until(lambda: it.states == {**WHOLE, "top:1": "UNAVAILABLE unloaded"})

    play(scene)


def test_a_model_that_does_not_fit_any_more_makes_its_ensembles_unavailable(tmp_path: Path) -> None:
    async def scene() -> None:
        house(tmp_path)
        async with controlled(tmp_path) as it:
            await it.load("top")
            (tmp_path / "five" / "config.pbtxt").write_text("max_batch_size: 2")
            await it.load("five")
            assert it.states["five:1"] == "READY"
            await it.until(lambda: it.states["top:1"].startswith("UNAVAILABLE"))
            assert it.states["inner:1"] == (
                "UNAVAILABLE unloaded: Invalid argument: ensemble inner allows maximum batch size 4, but it "
                "contains model five which only allows maximum batch size to be 2"
            )
            assert await it.refusal(it.load("inner")) == (
                "load failed for model 'inner': ensemble inner allows maximum batch size 4, but it contains "
                "model five which only allows maximum batch size to be 2\n"
            )
            (tmp_path / "five" / "config.pbtxt").write_text("max_batch_size: 4")
            await it.load("five")
            assert it.states == WHOLE

    play(scene)


def test_a_failed_load_of_a_model_leaves_its_ensembles_alone(tmp_path: Path) -> None:
    async def scene() -> None:
        house(tmp_path)
        async with controlled(tmp_path) as it:
            await it.load("top")
            before = it.repository.get("top")
            (tmp_path / "five" / "1" / "model.onnx").write_bytes(b"no model")
            await it.refusal(it.load("five"))
            await it.load("top")
            assert it.repository.get("top") is before
            assert await it.factor(name="top") == 30

    play(scene)


def test_an_ensemble_tells_why_a_model_of_it_cannot_be_loaded_and_comes_once_it_can(tmp_path: Path) -> None:
    async def scene() -> None:
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
            assert it.states["inner:1"].startswith(
                "UNAVAILABLE Invalid argument: ensemble 'inner' depends on"
            )
            assert not it.repository.all_ready()
            write(tmp_path, 5, name="five")
            await it.load("five")
            assert await it.factor(name="inner") == 15
            assert it.repository.all_ready()

    play(scene)


def test_models_that_are_nowhere_are_named(tmp_path: Path) -> None:
    async def scene() -> None:
        house(tmp_path)
        ensemble(tmp_path, "lost", "two", "nine", "eight")
        async with controlled(tmp_path) as it:
            assert await it.refusal(it.load("lost")) == (
                "load failed for model 'lost': ensemble lost contains models that are not available or "
                "ambiguous: eight, nine\n"
            )

    play(scene)


def test_a_step_may_need_a_certain_version(tmp_path: Path) -> None:
    async def scene() -> None:
        policy = "max_batch_size: 8 version_policy { all { } }"
        model(tmp_path, "two", 2, policy)
        write(tmp_path, 20, version=2, name="two")
        ensemble(tmp_path, "first", "two", version=1)
        ensemble(tmp_path, "latest", "two")
        async with controlled(tmp_path) as it:
            await it.load("first")
            await it.load("latest")
            assert await it.factor(name="first") == 2
            assert await it.factor(name="latest") == 20
            (tmp_path / "two" / "config.pbtxt").write_text("max_batch_size: 8")
            await it.load("two")
            await it.until(lambda: "UNLOADING" not in str(it.states))
            assert it.states["first:1"] == (
                "UNAVAILABLE unloaded: Invalid argument: ensemble 'first' depends on 'two' whose required "
                "version 1 is not loaded."
            )
            assert await it.factor(name="latest") == 20

    play(scene)


@pytest.mark.parametrize("at_startup", [True, False])
def test_a_circle_of_ensembles_is_named_and_the_rest_is_served(tmp_path: Path, at_startup: bool) -> None:
    async def scene() -> None:
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

    play(scene)


def test_a_circle_in_sixty_four_levels_is_found(tmp_path: Path) -> None:
    async def scene() -> None:
        for n in range(64):
            ensemble(tmp_path, f"m{n}", f"m{(n + 1) % 64}")
        async with controlled(tmp_path) as it:
            refusal = await asyncio.wait_for(it.refusal(it.load("m0")), 20)
            assert "circular dependency between ensembles: " in refusal
            assert it.repository.served() == []

    play(scene)


def test_sixty_four_levels_are_served(tmp_path: Path) -> None:
    async def scene() -> None:
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

    play(scene)


def test_unloading_an_ensemble_keeps_its_models_unless_they_are_to_go_with_it(tmp_path: Path) -> None:
    async def scene() -> None:
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

    play(scene)


def test_a_poll_brings_ensembles_and_takes_them_away(tmp_path: Path) -> None:
    async def scene() -> None:
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

    play(scene)


def test_an_ensemble_of_a_request_needs_no_repository(tmp_path: Path) -> None:
    async def scene() -> None:
        model(tmp_path, "two", 2)
        step = {"model_name": "two", "input_map": {"x": "x"}, "output_map": {"y": "y"}}
        config = {
            "platform": "ensemble",
            "max_batch_size": 4,
            "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [2]}],
            "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [2]}],
            "ensemble_scheduling": {"step": [step]},
        }
        async with controlled(tmp_path) as it:
            await it.load_with({"config": json.dumps(config), "file:1/nothing": b"-"}, name="sent")
            assert it.states == {"sent:1": "READY", "two:1": "READY"}
            assert await it.factor(name="sent") == 2
            step["model_name"] = "none"
            sent = it.load_with({"config": json.dumps(config), "file:1/nothing": b"-"}, name="wrong")
            await it.refusal(sent)
            assert "wrong" not in str(it.states)

    play(scene)


async def answers(
    it: Scene, name: str, array: "np.ndarray[tuple[int, ...], np.dtype[np.float32]]"
) -> InferResponse:
    """One request of any shape."""
    future: asyncio.Future[InferResponse] = asyncio.get_running_loop().create_future()
    tensor = Tensor.from_numpy("x", array)
    served = it.repository.get(name)
    head = served.bind(DecodedRequest(model_name=name, inputs=[tensor], default_binary=True))
    served.submit(InferRequest(head, [tensor.data], lambda _, response: future.set_result(response), None))
    return await future


@pytest.mark.parametrize(
    ("outer", "inner", "shape", "answered"),
    [
        ((4, "2"), (0, "-1, 2"), (3, 2), True),
        ((0, "-1, 2"), (4, "2"), (3, 2), True),
        ((4, "2"), (0, "2"), (1, 2), True),
        ((4, "2"), (0, "2"), (3, 2), False),
        ((0, "2"), (4, "2"), (2,), True),
    ],
)
def test_a_batch_dimension_comes_and_goes_between_models_with_and_without(
    tmp_path: Path, outer: tuple[int, str], inner: tuple[int, str], shape: tuple[int, ...], answered: bool
) -> None:
    def io(batch: int, dims: str) -> str:
        return f"max_batch_size: {batch} " + IO.replace("[2]", f"[{dims}]")

    async def scene() -> None:
        (tmp_path / "same" / "1").mkdir(parents=True)
        (tmp_path / "same" / "config.pbtxt").write_text("backend: 'identity' " + io(*inner))
        model(tmp_path, "two", 2)
        config = chain("two", "same").replace(f"max_batch_size: 4 {IO}", io(*outer))
        ensemble(tmp_path, "top")
        (tmp_path / "top" / "config.pbtxt").write_text(config)
        async with controlled(tmp_path) as it:
            await it.load("top")
            response = await answers(it, "top", np.ones(shape, np.float32))
            if answered:
                [tensor] = response.outputs
                assert tensor.shape == shape
                assert (tensor.numpy() == 2).all()
            else:
                assert response.error is not None
                assert response.error.message.startswith(
                    "in ensemble 'top', [request id: <id_unknown>] unexpected shape for input 'x' for "
                    "model 'same'"
                )

    play(scene)


def test_labels_are_the_ensembles_or_else_those_of_the_model_that_makes_the_output(tmp_path: Path) -> None:
    async def scene() -> None:
        labelled = IO[IO.index("output") :].replace("dims: [2]", "dims: [2] label_filename: 'labels.txt'")
        write_model(tmp_path, "two", times(2), f"max_batch_size: 8 {labelled}")
        (tmp_path / "two" / "labels.txt").write_text("cat\ndog\n")
        ensemble(tmp_path, "top", "two")
        ensemble(tmp_path, "own", "two")
        (tmp_path / "own" / "labels.txt").write_text("hot\ncold\n")
        config = chain("two").replace(
            "'y' data_type: TYPE_FP32 dims: [2]",
            "'y' data_type: TYPE_FP32 dims: [2] label_filename: 'labels.txt'",
        )
        (tmp_path / "own" / "config.pbtxt").write_text(config)
        async with controlled(tmp_path) as it:
            await it.load("top")
            await it.load("own")
            assert it.repository.get("top").signature.outputs["y"].labels == ("cat", "dog")
            assert it.repository.get("own").signature.outputs["y"].labels == ("hot", "cold")
            (tmp_path / "two" / "labels.txt").write_text("bird\nfish\n")
            await it.load("two")
            assert it.repository.get("top").signature.outputs["y"].labels == ("bird", "fish")

    play(scene)
