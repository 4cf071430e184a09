"""Poll mode: the repositories as they are on disk."""

import asyncio
import shutil
from pathlib import Path

import pytest

from tests.serving.repository.controlled import controlled, write
from tpx.errors import UsageError
from tpx.serving.model_id import ModelId

OFTEN = {"mode": "poll", "poll_s": 0.02}


async def test_what_appears_is_loaded_what_changes_reloaded_what_goes_unloaded(tmp_path: Path) -> None:
    write(tmp_path, 2)
    async with controlled(tmp_path, **OFTEN) as it:
        assert await it.factor() == 2
        before = it.repository.get("net")
        write(tmp_path, 5, name="other")
        await it.until(lambda: it.repository.is_ready("other"))
        assert it.repository.get("net") is before
        write(tmp_path, 3)
        await it.until(lambda: it.repository.get("net") is not before)
        assert await it.factor() == 3
        shutil.rmtree(tmp_path / "other")
        await it.until(lambda: list(it.states) == ["net:1"])
        write(tmp_path, 6, name="other")
        await it.until(lambda: it.repository.is_ready("other"))
        assert await it.factor(name="other") == 6


async def test_a_model_that_is_broken_goes_on_serving_until_it_is_whole_again(tmp_path: Path) -> None:
    path = write(tmp_path, 2)
    async with controlled(tmp_path, **OFTEN) as it:
        before = it.repository.get("net")
        path.write_bytes(b"broken")
        await it.until(lambda: it.repository.stamps() == {ModelId("net"): None})
        assert it.repository.get("net") is before
        assert it.states == {"net:1": "READY"}
        write(tmp_path, 3)
        await it.until(lambda: it.repository.get("net") is not before)
        assert await it.factor() == 3


async def test_a_model_that_failed_at_startup_is_loaded_once_it_can_be(tmp_path: Path) -> None:
    write(tmp_path, 2).write_bytes(b"broken")
    async with controlled(tmp_path, **OFTEN) as it:
        assert it.repository.failures() == ["net"]
        write(tmp_path, 3)
        await it.until(lambda: it.states == {"net:1": "READY"})


async def test_a_model_that_is_still_being_written_waits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with controlled(tmp_path, mode="poll", poll_s=1000, settle_s=0.3) as it:
        path = write(tmp_path, 2)
        whole = path.read_bytes()
        path.write_bytes(whole[:50])
        looking = asyncio.create_task(it.control.poll())
        for size in range(1, len(whole)):
            path.write_bytes(whole[:size])
            await asyncio.sleep(0.01)
            if looking.done():
                break
        await looking
        path.write_bytes(whole)
        assert it.states == {}
        await it.control.poll()
        assert it.states == {"net:1": "READY"}
    assert "failed" not in caplog.text


async def test_a_repository_that_cannot_be_read_unloads_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "repository"
    write(place, 2)
    async with controlled(place, **OFTEN) as it:
        place.rename(tmp_path / "away")
        await it.until(lambda: "failed to poll the model repositories" in caplog.text)
        assert it.states == {"net:1": "READY"}
        (tmp_path / "away").rename(place)
        write(place, 3)
        before = it.repository.get("net")
        await it.until(lambda: it.repository.get("net") is not before)
        assert await it.factor() == 3


async def test_a_name_that_becomes_ambiguous_is_unloaded_until_it_is_not(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    write(one, 2)
    two.mkdir()
    async with controlled(one, two, mode="poll", poll_s=1000) as it:
        write(two, 3)
        write(one, 7, name="other")
        for _ in range(2):
            await it.control.poll()
            assert set(it.states) == {"net:-", "other:1"}
            assert it.states["other:1"] == "READY"
            assert it.states["net:-"].startswith("UNAVAILABLE model appears in two or more repositories: ")
            assert not it.repository.is_ready("net")
            assert it.repository.all_ready()
        shutil.rmtree(one / "net")
        await it.control.poll()
        assert await it.factor() == 3
        assert it.repository.all_ready()


async def test_polling_every_0_seconds_looks_at_the_start_alone(tmp_path: Path) -> None:
    write(tmp_path, 2)
    async with controlled(tmp_path, mode="poll", poll_s=0) as it:
        assert it.states == {"net:1": "READY"}
        assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_repository_that_is_missing_at_the_start_is_served_once_it_is_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    here, later = tmp_path / "here", tmp_path / "later"
    write(here, 2)
    with pytest.raises(UsageError, match="cannot read model repository"):
        async with controlled(here, later, mode="poll", poll_s=1000):
            pass
    async with controlled(here, later, mode="poll", poll_s=1000, exit_on_error=False) as it:
        assert f"cannot read model repository '{later}'" in caplog.text
        assert await it.factor() == 2
        assert not it.repository.all_ready()
        write(later, 3, name="other")
        await it.control.poll()
        assert await it.factor(name="other") == 3
        assert it.repository.all_ready()


async def test_a_repository_that_is_missing_at_the_start_can_be_loaded_from_later(tmp_path: Path) -> None:
    async with controlled(tmp_path / "later", exit_on_error=False) as it:
        assert not it.repository.all_ready()
        assert await it.control.names_on_disk() == {}
        assert not it.repository.all_ready()
        write(tmp_path / "later", 2)
        await it.load()
        assert await it.factor() == 2
        assert list(await it.control.names_on_disk()) == [ModelId("net")]
        assert it.repository.all_ready()


async def test_a_name_that_is_ambiguous_from_the_beginning_is_loaded_when_it_is_not(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    write(one, 2)
    write(two, 3)
    async with controlled(one, two, mode="poll", poll_s=1000) as it:
        assert it.states["net:-"].startswith("UNAVAILABLE model appears in two or more repositories: ")
        shutil.rmtree(two / "net")
        await it.control.poll()
        assert it.states == {"net:1": "READY"}
