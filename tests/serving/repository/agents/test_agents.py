"""Repository agents and the models that they are told of."""

import asyncio
import json
import os
from pathlib import Path

import pytest

from tests.serving.repository.agents.journal import Journal, asks_for, journals
from tests.serving.repository.controlled import Scene, controlled, times, write
from tests.serving.repository.stores.s3 import ENVIRONMENT, storage
from tpx.protocol.v2 import LoadParameter
from tpx.serving.repository.stores.addresses import StoreAddress, address_of
from tpx.serving.repository.stores.store import StoreRepository


def left(temporary: Path) -> list[Path]:
    """The temporary directories that there are."""
    return list(temporary.iterdir())


LIFE = ["LOAD", "LOAD_COMPLETE", "UNLOAD", "UNLOAD_COMPLETE"]


async def test_an_agent_in_the_directory_is_told_of_a_model(models: Path, journal: Journal) -> None:
    write(models, 2)
    asks_for(models / "net", journals())
    async with controlled(models, agents=journal.agents) as it:
        assert journal.lines == []
        await it.load()
        assert journal.lines == LIFE[:2]
        assert await it.factor() == 2
        await it.unload()
        await it.until(lambda: journal.lines == LIFE)
    assert journal.lines == LIFE


async def test_agents_are_told_in_their_order_and_of_the_end_in_reverse(
    models: Path, journal: Journal
) -> None:
    write(models, 2)
    asks_for(models / "net", journals(id="a "), journals(id="b "))
    async with controlled(models, agents=journal.agents) as it:
        await it.load()
    assert journal.lines == [
        "a LOAD", "b LOAD", "b LOAD_COMPLETE", "a LOAD_COMPLETE",
        "a UNLOAD", "b UNLOAD", "b UNLOAD_COMPLETE", "a UNLOAD_COMPLETE",
    ]  # fmt: skip


async def test_an_agent_refuses_a_model_and_those_behind_it_are_not_asked(
    models: Path, journal: Journal
) -> None:
    write(models, 2)
    refusing = journals(id="b ", fails_at="LOAD")
    asks_for(models / "net", journals(id="a "), refusing, journals(id="c "))
    async with controlled(models, agents=journal.agents) as it:
        assert await it.refusal(it.load()) == (
            "failed to load 'net', failed to poll from model repository: Internal: repository agent "
            "'journal' of model 'net': RuntimeError: I do not want to"
        )
        assert journal.lines == ["a LOAD", "b LOAD", "b LOAD_FAIL", "a LOAD_FAIL"]
    assert len(journal.lines) == 4


async def test_a_model_that_fails_to_load_is_told_and_its_files_are_removed(
    models: Path, journal: Journal, temporary: Path
) -> None:
    write(models, 2, version=1)
    write(models, 2, version=3).write_bytes(b"broken")
    asks_for(models / "net", journals(moves=""), rest="version_policy { all { } }")
    async with controlled(models, agents=journal.agents) as it:
        assert "version 3 is at UNAVAILABLE state" in await it.refusal(it.load())
        await it.until(lambda: journal.lines == ["LOAD", "LOAD_FAIL"])
        await it.until(lambda: not left(temporary))
    assert journal.lines == ["LOAD", "LOAD_FAIL"]


@pytest.mark.parametrize("action", LIFE[1:])
async def test_only_at_load_can_an_agent_fail_a_model(
    models: Path, journal: Journal, action: str, caplog: pytest.LogCaptureFixture
) -> None:
    write(models, 2)
    asks_for(models / "net", journals(id="a "), journals(id="b ", fails_at=action))
    async with controlled(models, agents=journal.agents) as it:
        await it.load()
        assert await it.factor() == 2
    assert sorted(journal.lines) == sorted(f"{name} {told}" for name in "ab" for told in LIFE)
    why = f"repository agent 'journal' fails at {action} of model 'net': RuntimeError: I do not want to"
    assert why in caplog.text


async def test_a_model_that_is_loaded_again_unchanged_calls_nobody(models: Path, journal: Journal) -> None:
    write(models, 2)
    asks_for(models / "net", journals(moves=""))
    async with controlled(models, agents=journal.agents) as it:
        await it.load()
        before = it.repository.get("net")
        await it.load()
        assert it.repository.get("net") is before
        assert journal.lines == LIFE[:2]
        asks_for(models / "net", journals(moves=""))  # touched, but the same
        await it.load()
        assert it.repository.get("net") is before
        write(models, 3)
        await it.load()
        assert await it.factor() == 3
        await it.until(lambda: len(journal.lines) == 6)
        assert journal.lines == [*LIFE[:2], "LOAD", "LOAD_COMPLETE", "UNLOAD", "UNLOAD_COMPLETE"] or (
            journal.lines == [*LIFE[:2], "LOAD", "UNLOAD", "LOAD_COMPLETE", "UNLOAD_COMPLETE"]
        )
    assert len(journal.lines) == 8


async def test_a_model_that_is_replaced_answers_meanwhile_and_leaves_nothing(
    models: Path, journal: Journal, temporary: Path
) -> None:
    write(models, 1)
    asks_for(models / "net", journals(moves=""))
    async with controlled(models, agents=journal.agents) as it:
        await it.load()
        done = asyncio.Event()
        answers = asyncio.create_task(_ask_until(it, done))
        for factor in range(2, 12):
            write(models, factor)
            await it.load()
            assert await it.factor() == factor
        done.set()
        seen = await answers
        assert seen == sorted(seen)
        await it.until(lambda: len(left(temporary)) == 1)
    assert [journal.lines.count(action) for action in LIFE] == [11] * 4
    assert left(temporary) == []


async def _ask_until(it: Scene, done: asyncio.Event) -> list[float]:
    seen = []
    while not done.is_set():
        seen.append(await it.factor())
        await asyncio.sleep(0)
    return seen


async def test_a_failed_replacement_leaves_the_model_and_its_agents_as_they_were(
    models: Path, journal: Journal, temporary: Path
) -> None:
    path = write(models, 2)
    asks_for(models / "net", journals(moves=""))
    async with controlled(models, agents=journal.agents) as it:
        await it.load()
        path.write_bytes(b"broken")
        await it.refusal(it.load())
        await it.until(lambda: journal.lines == [*LIFE[:2], "LOAD", "LOAD_FAIL"])
        assert await it.factor() == 2
        await it.until(lambda: len(left(temporary)) == 1)
    assert journal.lines == [*LIFE[:2], "LOAD", "LOAD_FAIL", *LIFE[2:]]
    assert left(temporary) == []


async def test_what_an_agent_makes_is_loaded_with_versions_that_were_not_there(
    models: Path, journal: Journal, temporary: Path
) -> None:
    write(models, 7, version=4).parent.rename(models / "net" / "4.hidden")
    asks_for(models / "net", journals(moves="4.hidden", releases="yes"))
    async with controlled(models, agents=journal.agents) as it:
        await it.load()
        assert list(it.states) == ["net:4"]
        assert await it.factor() == 7
        config = it.repository.get("net").config
        assert [agent.name for agent in config.model_repository_agents.agents] == ["journal"]
        assert left(temporary) == []  # this agent removes them once they are loaded


async def test_what_is_in_flight_is_answered_between_unload_and_its_end(
    models: Path, journal: Journal
) -> None:
    write(models, 2)
    asks_for(models / "net", journals(waits_at="UNLOAD"))
    async with controlled(models, agents=journal.agents) as it:
        await it.load()
        model = it.repository.get("net")
        await it.unload()
        await it.until(lambda: journal.lines == LIFE[:3])
        assert not model.retired
        assert it.states == {"net:1": "UNLOADING"}
        journal.gate.touch()
    assert journal.lines == LIFE


async def test_poll_mode_asks_agents_again_when_files_change_and_only_then(
    models: Path, journal: Journal
) -> None:
    write(models, 2)
    asks_for(models / "net", journals(moves=""))
    async with controlled(models, agents=journal.agents, mode="poll", poll_s=0.02) as it:
        assert await it.factor() == 2
        before = it.repository.get("net")
        config = models / "net" / "config.pbtxt"
        os.utime(config, (1, 1))
        stamps = it.repository.stamps()
        await it.until(lambda: it.repository.stamps() != stamps)
        await it.control.poll()
        assert it.repository.get("net") is before
        assert journal.lines == LIFE[:2]
        write(models, 3)
        await it.until(lambda: it.repository.get("net") is not before)
        assert await it.factor() == 3
    assert sorted(journal.lines) == sorted(LIFE * 2)


async def test_agents_see_the_files_that_a_request_brings(
    models: Path, journal: Journal, temporary: Path
) -> None:
    agents = [{"name": "journal", "parameters": {"moves": "1/model.onnx.hidden"}}]
    parameters: dict[str, LoadParameter] = {
        "config": json.dumps({"model_repository_agents": {"agents": agents}}),
        "file:1/model.onnx.hidden": times(5).SerializeToString(),
    }
    async with controlled(models, agents=journal.agents) as it:
        await it.load_with(parameters)
        assert await it.factor() == 5
        assert len(left(temporary)) == 2
        await it.unload()
        await it.until(lambda: not left(temporary))
        parameters["file:1/model.onnx.hidden"] = b"broken"
        await it.refusal(it.load_with(parameters))
        await it.until(lambda: not left(temporary))
    assert journal.lines == [*LIFE, "LOAD", "LOAD_FAIL"]


@pytest.mark.slow
async def test_agents_see_all_versions_of_a_model_in_an_object_store(
    models: Path, journal: Journal, temporary: Path
) -> None:
    write(models, 2, version=1)
    write(models, 3, version=2)
    asks_for(models / "net", journals(moves="1/model.onnx 2/model.onnx"))
    with storage() as bucket:
        bucket.upload(models, "zoo")
        place = address_of(f"{bucket.url}/zoo")
        assert isinstance(place, StoreAddress)
        repository = StoreRepository(place, ENVIRONMENT, models)
        async with controlled(repository, agents=journal.agents) as it:
            await it.load()
            assert list(it.states) == ["net:2"]
            assert await it.factor() == 3
            await it.load()
            assert journal.lines == LIFE[:2]
            await it.until(lambda: len(left(temporary)) == 2)
    assert journal.lines == LIFE
    assert left(temporary) == []


async def test_when_the_process_ends_at_once_no_files_stay(
    models: Path, journal: Journal, temporary: Path
) -> None:
    write(models, 2)
    asks_for(models / "net", journals(moves=""))
    async with controlled(models, agents=journal.agents) as it:
        await it.load()
        assert len(left(temporary)) == 1
        it.control.abandon()
        assert left(temporary) == []


async def test_an_agent_that_there_is_not_is_told_with_line_and_the_nearest(
    models: Path, journal: Journal
) -> None:
    write(models, 2)
    asks_for(models / "net", 'name: "jurnal"')
    async with controlled(models, agents=journal.agents) as it:
        reason = await it.refusal(it.load())
        assert reason.partition("Invalid argument: ")[2] == (
            "unable to find repository agent 'jurnal' of model_repository_agents.agents (tpx has: "
            "checksum, decrypt, journal) (did you mean 'journal'?) "
            f"({models}/net/config.pbtxt:2: model_repository_agents.agents[0])"
        )
    assert journal.lines == []


async def test_ensembles_have_no_agents(models: Path, journal: Journal) -> None:
    (models / "sum" / "1").mkdir(parents=True)
    steps = 'step [{ model_name: "net" model_version: -1 input_map { key: "x" value: "x" }'
    steps += ' output_map { key: "y" value: "y" } }]'
    tensor = "data_type: TYPE_FP32 dims: [ 2 ]"
    rest = f'input [{{ name: "x" {tensor} }}] output [{{ name: "y" {tensor} }}] max_batch_size: 8'
    rest += f' platform: "ensemble" ensemble_scheduling {{ {steps} }}'
    asks_for(models / "sum", journals(), rest=rest)
    async with controlled(models, agents=journal.agents) as it:
        reason = await it.refusal(it.load("sum"))
        assert "model_repository_agents are for models with files, ensemble 'sum' has none" in reason
