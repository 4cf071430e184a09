"""What an ensemble answers with the models that it finds."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.serving.gated import GATE, Gate, installed
from tests.serving.onnx_files import write_model
from tests.serving.repository.composed import IO, answers, chain, ensemble, gated, house, model, send
from tests.serving.repository.controlled import Scene, ask, controlled, times, write
from tpx.errors import NotFound
from tpx.protocol.tensors import Tensor


@pytest.fixture
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    """A closed one."""
    with installed(tmp_path_factory.mktemp("site")):
        GATE.close()
        yield GATE
        GATE.open()


async def begun(it: Scene) -> "asyncio.Task[float]":
    """A request to the ensemble whose first step waits at the gate."""
    asked = asyncio.create_task(ask(it.repository.get("top")))
    slow = it.repository.get("slow")
    await it.until(lambda: (slow.in_flight, slow.pending) == (1, 0))
    return asked


async def test_a_model_that_is_loaded_again_serves_at_the_next_step_of_requests_on_their_way(
    tmp_path: Path, gate: Gate
) -> None:
    gated(tmp_path, "slow")
    model(tmp_path, "two", 2)
    ensemble(tmp_path, "top", "slow", "two")
    async with controlled(tmp_path) as it:
        await it.load("top")
        asked = await begun(it)
        write(tmp_path, 3, name="two")
        await it.load("two")
        assert not asked.done()
        gate.open()
        assert await asked == 3


@pytest.mark.parametrize("gone", [["two"], ["top"], ["two", "slow"], ["inner", "two"]])
async def test_requests_on_their_way_are_answered_whatever_is_unloaded(
    tmp_path: Path, gate: Gate, gone: list[str]
) -> None:
    gated(tmp_path, "slow")
    model(tmp_path, "two", 2)
    ensemble(tmp_path, "inner", "two")
    ensemble(tmp_path, "top", "slow", "inner")
    async with controlled(tmp_path) as it:
        await it.load("top")
        asked = await begun(it)
        for name in gone:
            await it.control.unload(name, unload_dependents=True)
        with pytest.raises(NotFound):
            it.repository.get("top")
        assert not asked.done()
        gate.open()
        assert await asked == 2
        await it.until(lambda: not it.control.retirement.draining)


async def test_a_step_may_need_a_certain_version(tmp_path: Path) -> None:
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


async def test_an_ensemble_of_a_request_needs_no_repository(tmp_path: Path) -> None:
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
async def test_a_batch_dimension_comes_and_goes_between_models_with_and_without(
    tmp_path: Path, outer: tuple[int, str], inner: tuple[int, str], shape: tuple[int, ...], answered: bool
) -> None:
    def io(batch: int, dims: str) -> str:
        return f"max_batch_size: {batch} " + IO.replace("[2]", f"[{dims}]")

    (tmp_path / "same" / "1").mkdir(parents=True)
    (tmp_path / "same" / "config.pbtxt").write_text("backend: 'identity' " + io(*inner))
    model(tmp_path, "two", 2)
    config = chain("two", "same").replace(f"max_batch_size: 4 {IO}", io(*outer))
    ensemble(tmp_path, "top")
    (tmp_path / "top" / "config.pbtxt").write_text(config)
    async with controlled(tmp_path) as it:
        await it.load("top")
        response = await answers(it, "top", shape)
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


async def test_labels_are_the_ensembles_or_else_those_of_the_model_that_makes_the_output(
    tmp_path: Path,
) -> None:
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


async def test_large_tensors_pass_between_models_without_a_copy(tmp_path: Path) -> None:
    """Every model here gives back the memory that it gets: the answer lies where the request lay."""
    dims = IO.replace("[2]", "[-1]")
    for name in ("one", "two", "three"):
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "config.pbtxt").write_text(f"backend: 'identity' max_batch_size: 8 {dims}")
    ensemble(tmp_path, "top")
    config = chain("one", "two", "three").replace(IO, dims)
    (tmp_path / "top" / "config.pbtxt").write_text(config)
    async with controlled(tmp_path) as it:
        await it.load("top")
        sent = np.arange(1 << 18, dtype=np.float32).reshape(1, -1)
        tensor = Tensor.from_numpy("x", sent)
        response = await send(it.repository.get("top"), tensor)
        [got] = response.outputs
        assert np.shares_memory(got.numpy(), sent)
        assert (got.numpy() == sent).all()


async def test_strings_pass_between_models(tmp_path: Path) -> None:
    words = IO.replace("FP32", "STRING")
    for name in ("one", "two"):
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "config.pbtxt").write_text(f"backend: 'identity' max_batch_size: 8 {words}")
    ensemble(tmp_path, "top")
    (tmp_path / "top" / "config.pbtxt").write_text(chain("one", "two").replace(IO, words))
    async with controlled(tmp_path) as it:
        await it.load("top")
        sent = np.array([["a", "\u00fc" * 500], ["", "c"]], dtype=np.object_)
        response = await send(it.repository.get("top"), Tensor.from_numpy("x", sent, "BYTES"))
        [got] = response.outputs
        assert got.numpy().tolist() == [[b"a", "\u00fc".encode() * 500], [b"", b"c"]]


@pytest.mark.slow
async def test_any_depth_of_ensembles_is_answered(tmp_path: Path) -> None:
    model(tmp_path, "m400", 2)
    for n in range(400):
        ensemble(tmp_path, f"m{n}", f"m{n + 1}")
    async with controlled(tmp_path, mode="none") as it:
        assert await it.factor(name="m0") == 2


async def test_no_request_fails_while_models_and_ensembles_are_loaded_again_and_again(tmp_path: Path) -> None:
    house(tmp_path)
    async with controlled(tmp_path) as it:
        await it.load("top")
        ended, answered = asyncio.Event(), []

        async def keep_asking() -> None:
            while not ended.is_set():
                answered.append(await ask(it.repository.get("top")))

        async with asyncio.TaskGroup() as clients:
            for _ in range(8):
                clients.create_task(keep_asking())
            for factor in (7, 11, 5):
                write(tmp_path, factor, name="five")
                await it.load("five")
                ensemble(tmp_path, "inner", "five", "three")
                await it.load("inner")
                ensemble(tmp_path, "inner", "three", "five")
                await it.load("top")
            ended.set()
        assert {30, 42, 66} == set(answered)
        assert len(answered) > 100
