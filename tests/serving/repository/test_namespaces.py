"""Repositories that have models of the same name, `two` those that multiply by 2 and `three` those by 3."""

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.serving.repository.composed import ensemble, model
from tests.serving.repository.controlled import Scene, controlled, times, write
from tpx.errors import Code, InvalidRequest, NotFound, TpxError
from tpx.serving.model_id import ModelId

FACTORS = {"two": 2, "three": 3}
OFTEN = {"mode": "poll", "poll_s": 0.02}
MODES = ["none", "poll", "explicit"]


@pytest.fixture
def both(tmp_path: Path) -> list[Path]:
    """Two repositories, each with a model `part` and an ensemble of it that no other has."""
    for name, factor in FACTORS.items():
        model(tmp_path / name, "part", factor)
        ensemble(tmp_path / name, f"top_{name}", "part")
    return [tmp_path / name for name in FACTORS]


async def serve(it: Scene, mode: str, *names: str) -> None:
    """Load these where that is not done at startup."""
    if mode == "explicit":
        for name in names:
            await it.load(name)


def refusal(it: Scene, name: str) -> TpxError:
    with pytest.raises(TpxError) as caught:
        it.repository.get(name)
    return caught.value


def is_ambiguous(it: Scene, name: str, count: int = 2) -> bool:
    error = refusal(it, name)
    return error.code is Code.INVALID_ARGUMENT and error.message == (
        f"There are {count} identifiers of model '{name}' in global map, model namespace must be provided to "
        "resolve ambiguity."
    )


async def factors(it: Scene, *names: str) -> list[float]:
    return [await it.factor(name=name) for name in names]


def meant_by(it: Scene, name: str) -> Sequence[str]:
    """The repositories that the steps of an ensemble take their models from, as its configuration says."""
    steps = it.repository.get(name).config.ensemble_scheduling.step
    return [Path(step.model_namespace).name for step in steps]


@pytest.mark.parametrize("mode", MODES)
async def test_models_of_different_names_are_known_by_their_names(tmp_path: Path, mode: str) -> None:
    for name, factor in FACTORS.items():
        model(tmp_path / name, f"part_{name}", factor)
        ensemble(tmp_path / name, f"top_{name}", f"part_{name}")
    async with controlled(tmp_path / "two", tmp_path / "three", mode=mode, namespaces=True) as it:
        await serve(it, mode, "top_two", "top_three")
        assert await factors(it, "top_two", "part_two", "top_three", "part_three") == [2, 2, 3, 3]
        assert it.repository.all_ready()


@pytest.mark.parametrize("mode", MODES)
async def test_an_ensemble_takes_the_model_of_its_own_repository(both: list[Path], mode: str) -> None:
    async with controlled(*both, mode=mode, namespaces=True) as it:
        await serve(it, mode, "top_two", "top_three")
        assert await factors(it, "top_two", "top_three") == [2, 3]
        assert (meant_by(it, "top_two"), meant_by(it, "top_three")) == (["two"], ["three"])
        assert is_ambiguous(it, "part")
        assert not it.repository.is_ready("part")
        assert it.repository.all_ready()


@pytest.mark.parametrize("mode", MODES)
async def test_ensembles_of_the_same_name_take_each_their_own_model(tmp_path: Path, mode: str) -> None:
    for name, factor in FACTORS.items():
        model(tmp_path / name, f"part_{name}", factor)
        ensemble(tmp_path / name, "top", f"part_{name}")
    async with controlled(tmp_path / "two", tmp_path / "three", mode=mode, namespaces=True) as it:
        await serve(it, mode, "top")
        assert await factors(it, "part_two", "part_three") == [2, 3]
        assert is_ambiguous(it, "top")
        assert len(it.repository.served()) == 4


async def test_polling_gives_an_ensemble_the_model_of_another_repository_until_its_own_is_back(
    both: list[Path], tmp_path: Path
) -> None:
    two = both[0]
    async with controlled(*both, namespaces=True, **OFTEN) as it:
        assert await factors(it, "top_two", "top_three") == [2, 3]
        shutil.move(two / "part", tmp_path / "aside")
        await it.until(lambda: it.repository.is_ready("part"))
        assert await factors(it, "top_two", "top_three", "part") == [3, 3, 3]
        assert meant_by(it, "top_two") == ["three"]
        shutil.move(tmp_path / "aside", two / "part")
        await it.until(lambda: not it.repository.is_ready("part"))
        assert await factors(it, "top_two", "top_three") == [2, 3]
        assert is_ambiguous(it, "part")


async def test_a_load_gives_an_ensemble_the_model_of_another_repository_until_its_own_is_back(
    both: list[Path], tmp_path: Path
) -> None:
    two = both[0]
    shutil.move(two / "part", tmp_path / "aside")
    async with controlled(*both, namespaces=True) as it:
        await it.load("top_two")
        await it.load("top_three")
        assert await factors(it, "top_two", "top_three", "part") == [3, 3, 3]
        shutil.move(tmp_path / "aside", two / "part")
        await it.load("top_two")
        assert await factors(it, "top_two", "top_three") == [2, 3]
        assert is_ambiguous(it, "part")


async def test_one_model_is_polled_while_its_namesake_is_left_alone(tmp_path: Path) -> None:
    two, three = (tmp_path / name for name in FACTORS)
    write(two, 2)
    write(three, 3)
    async with controlled(two, three, namespaces=True, **OFTEN) as it:
        first, second = ModelId("net", str(two)), ModelId("net", str(three))
        before, other = it.repository.serving(first), it.repository.serving(second)
        write(two, 4)
        await it.until(lambda: it.repository.serving(first) is not before)
        assert it.repository.serving(second) is other
        write(two, 5).write_bytes(b"broken")
        await it.until(lambda: it.repository.stamps()[first] is None)
        assert it.repository.stamps()[second] is not None
        shutil.rmtree(two / "net")
        await it.until(lambda: it.repository.is_ready("net"))
        assert await it.factor() == 3


async def test_a_request_to_load_or_unload_a_name_means_every_model_that_has_it(both: list[Path]) -> None:
    async with controlled(*both, namespaces=True) as it:
        two, three = (ModelId("part", str(path)) for path in both)
        assert refusal(it, "part").message == "Request for unknown model: 'part' is not found"
        assert refusal(it, "part").code is Code.INVALID_ARGUMENT
        await it.load("part")
        assert it.states == {f"{two}:1": "READY", f"{three}:1": "READY"}
        assert is_ambiguous(it, "part")
        await it.load("part", config='{"max_batch_size": 4}')
        assert {served.config.max_batch_size for served in it.repository.served()} == {4}
        await it.unload("part")
        assert it.repository.served() == []
        gone = refusal(it, "part")
        assert isinstance(gone, NotFound)
        assert gone.code is Code.NOT_FOUND
        assert gone.message == "Identifier of model 'part' is not found in global map"


async def test_one_of_two_that_fails_is_told_and_does_not_hinder_the_other(both: list[Path]) -> None:
    write(both[0], 2, name="part").write_bytes(b"broken")
    async with controlled(*both, namespaces=True) as it:
        assert f"load failed for model '{both[0]}::part': " in await it.refusal(it.load("part"))
        assert it.states[f"{both[1]}::part:1"] == "READY"
        assert is_ambiguous(it, "part"), "the one that failed is there"
        write(both[1], 2, name="part").write_bytes(b"broken, too")
        told = await it.refusal(it.load("part"))
        assert [line.split("'")[1] for line in told.splitlines()] == [
            f"{path}::part" for path in sorted(both)
        ]


async def test_an_ensemble_goes_with_its_own_model_and_leaves_the_other(both: list[Path]) -> None:
    async with controlled(*both, namespaces=True) as it:
        await serve(it, "explicit", "top_two", "top_three")
        await it.control.unload("top_two", unload_dependents=True)
        assert await factors(it, "top_three", "part") == [3, 3]
        await it.unload("part")
        suspended = "UNAVAILABLE unloaded: Invalid argument: "
        await it.until(lambda: it.states[f"{both[1]}::top_three:1"].startswith(suspended))
        await it.load("top_three")
        assert await it.factor(name="top_three") == 3


async def test_what_no_repository_of_the_ensemble_has_is_taken_where_it_is_alone(tmp_path: Path) -> None:
    a, b, c = (tmp_path / name for name in "abc")
    ensemble(a, "top", "part")
    model(b, "part", 2)
    c.mkdir()
    async with controlled(a, b, c, namespaces=True, **OFTEN) as it:
        assert await it.factor(name="top") == 2
        model(c, "part", 3)
        await it.until(lambda: it.states[f"{a}::top:1"].startswith("UNAVAILABLE"))
        assert it.states[f"{a}::top:1"] == (
            f"UNAVAILABLE unloaded: Invalid argument: ensemble {a}::top contains models that are not "
            "available or ambiguous: part"
        )
        shutil.rmtree(b / "part")
        await it.until(lambda: it.repository.is_ready("top"))
        assert await it.factor(name="top") == 3
        shutil.rmtree(c / "part")
        await it.until(lambda: not it.repository.is_ready("top"))


async def test_an_ambiguous_step_is_refused_whatever_was_loaded_before(tmp_path: Path) -> None:
    a, b, c = (tmp_path / name for name in "abc")
    ensemble(a, "top", "part")
    for path in (b, c):
        model(path, "part", 2)
    ensemble(b, "inner", "part")
    async with controlled(a, b, c, namespaces=True) as it:
        await it.load("inner")
        assert await it.factor(name="part") == 2, "only what is needed is loaded"
        assert "not available or ambiguous: part" in await it.refusal(it.load("top"))
        assert is_ambiguous(it, "part")


@pytest.mark.parametrize("mode", MODES)
async def test_a_step_can_name_the_repository_of_its_model(both: list[Path], mode: str) -> None:
    two, three = both
    ensemble(two, "crossed", "part", namespace=str(three))
    async with controlled(two, three, mode=mode, namespaces=True) as it:
        await serve(it, mode, "crossed")
        assert await it.factor(name="crossed") == 3
        assert meant_by(it, "crossed") == ["three"]


async def test_a_step_that_names_a_repository_gets_no_model_of_another(both: list[Path]) -> None:
    ensemble(both[0], "crossed", "part", namespace="/nowhere")
    async with controlled(*both, namespaces=True) as it:
        why = await it.refusal(it.load("crossed"))
        assert f"ensemble {both[0]}::crossed contains models that are not available or" in why


async def test_without_the_option_a_step_cannot_name_a_repository(both: list[Path]) -> None:
    ensemble(both[0], "crossed", "part", namespace=str(both[1]))
    async with controlled(*both) as it:
        assert (
            f"step 0 of ensemble 'crossed' has model_namespace '{both[1]}', which needs "
            "--model-namespacing=true"
        ) in await it.refusal(it.load("crossed"))


async def test_ensembles_that_need_each_others_namesakes_are_no_circle(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    model(a, "inner", 2)
    ensemble(a, "outer", "inner")
    model(b, "outer", 3)
    ensemble(b, "inner", "outer")
    for mode in MODES:
        async with controlled(a, b, mode=mode, namespaces=True) as it:
            await serve(it, mode, "outer", "inner")
            assert sorted(it.states.values()) == ["READY"] * 4
            assert it.control.in_use.busy == 0


async def test_an_own_model_that_fails_is_not_replaced_by_another_repositorys(both: list[Path]) -> None:
    two = both[0]
    shutil.rmtree(two / "part")
    async with controlled(*both, namespaces=True, **OFTEN) as it:
        assert await it.factor(name="top_two") == 3
        directory = two / "part" / "1"
        directory.mkdir(parents=True)
        (directory / "model.onnx").write_bytes(b"broken")
        await it.until(lambda: not it.repository.is_ready("top_two"))
        assert f"depends on '{two}::part'" in it.states[f"{two}::top_two:1"]
        model(two, "part", 2)
        await it.until(lambda: it.repository.is_ready("top_two"))
        assert await factors(it, "top_two", "top_three") == [2, 3]


async def test_files_of_a_request_are_for_the_one_model_of_their_name(both: list[Path]) -> None:
    brought = {"config": '{"max_batch_size": 4}', "file:1/model.onnx": times(9).SerializeToString()}
    async with controlled(*both, namespaces=True) as it:
        assert "There are 2 identifiers of model 'part'" in await it.refusal(it.load_with(brought, "part"))
        assert it.states == {}
        await it.load_with(brought, "guest")
        assert await it.factor(name="guest") == 9
        assert it.states == {"guest:1": "READY"}, "no repository has it"
        shutil.rmtree(both[0] / "part")
        await it.load_with(brought, "part")
        assert await it.factor(name="part") == 9
        await it.load("part")
        assert await it.factor(name="part") == 3


async def test_models_of_all_repositories_are_listed_each_with_its_own(both: list[Path]) -> None:
    async with controlled(*both, namespaces=True, load_model=["part"]) as it:
        on_disk = await it.control.names_on_disk()
        assert set(on_disk.values()) == {""}
        found = [
            (Path(known.namespace).name, known.name, entry.state is not None)
            for known, entry in it.repository.index(on_disk)
        ]
        assert found == [
            ("three", "part", True),
            ("three", "top_three", False),
            ("two", "part", True),
            ("two", "top_two", False),
        ]


async def test_a_path_that_is_given_twice_is_one_namespace(both: list[Path]) -> None:
    async with controlled(both[0], both[0] / ".", namespaces=True, mode="none") as it:
        assert await factors(it, "part", "top_two") == [2, 2]


async def requested(it: Scene, name: str) -> None:
    """A request that needs a model waits until it is loaded. Raises its error."""
    loaded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    it.control.on_demand.begin(name, lambda: loaded.set_result(None), loaded.set_exception)
    await loaded


async def test_lazy_mode_loads_a_name_that_is_clear_and_no_other(both: list[Path]) -> None:
    async with controlled(*both, namespaces=True, mode="lazy") as it:
        assert it.control.would_load("top_two")
        assert not it.control.would_load("part")
        with pytest.raises(InvalidRequest, match="There are 2 identifiers of model 'part'"):
            await requested(it, "part")
        assert it.states == {}
        await requested(it, "top_two")
        assert await factors(it, "top_two", "part") == [2, 2]
