"""Loads under a memory limit: which models make room, and what is said when none can; and permits."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.serving.repository.controlled import Scene, ask, controlled, write
from tpx.serving.model_id import ModelId
from tpx.serving.repository.memory import Candidate, Permits, plan_eviction

SIZE = 1000_000


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpx.serving.repository.memory._IDLE_WITHIN_S", 0.4)


def put(repository: Path, *names: str, size_bytes: int = SIZE, factor: float = 2) -> None:
    """Models whose files have this size; a process that does not seem to grow holds them by their files."""
    for name in names:
        file = write(repository, factor, name=name)
        with (file.parent / "weights.bin").open("wb") as padding:
            padding.truncate(size_bytes - file.stat().st_size)


def limited(repository: Path, models: int, **settings: Any) -> Any:
    """Control with room for so many models of the usual size."""
    settings = {"resident": lambda: 0, **settings}
    return controlled(repository, model_memory_limit=models * SIZE, **settings)


def serving(it: Scene) -> list[str]:
    return sorted(model.name for model in it.repository.served())


def candidate(name: str, size_bytes: int, used_ns: int) -> Candidate:
    return Candidate(model=ModelId(name), size_bytes=size_bytes, used_ns=used_ns)


def test_the_least_recently_used_go_and_no_more_than_needed() -> None:
    models = [candidate("a", 10, 3), candidate("b", 10, 1), candidate("c", 0, 0), candidate("d", 10, 2)]
    assert [c.model.name for c in plan_eviction(models, 10) or []] == ["b"]
    assert [c.model.name for c in plan_eviction(models, 11) or []] == ["b", "d"]
    assert plan_eviction(models, 31) is None
    assert plan_eviction(models, 0) == []


async def test_the_model_that_was_not_used_for_the_longest_time_makes_room(tmp_path: Path) -> None:
    put(tmp_path, "one", "two", "three")
    async with limited(tmp_path, 2) as it:
        await it.load("one")
        await it.load("two")
        await it.factor(name="one")
        await it.load("three")
        assert serving(it) == ["one", "three"]
        assert it.states["two:1"] == "UNAVAILABLE unloaded"


async def test_a_model_that_computes_is_never_unloaded_for_another(tmp_path: Path) -> None:
    put(tmp_path, "one", "two")
    async with limited(tmp_path, 1) as it:
        await it.load("one")
        model = it.repository.get("one")
        model.in_flight += 1
        why = await it.refusal(it.load("two"))
        assert serving(it) == ["one"]
        assert (
            "version 1 is at UNAVAILABLE state: Resource exhausted: model 'two' needs 1,000,000 bytes, "
            "and of --model-memory-limit=1000000 0 are free; unloading idle models would not "
            "free enough"
        ) in why
        model.in_flight -= 1
        await it.load("two")
        assert serving(it) == ["two"]


async def test_a_load_waits_a_moment_for_a_model_to_be_idle(tmp_path: Path) -> None:
    put(tmp_path, "one", "two")
    async with limited(tmp_path, 1) as it:
        await it.load("one")
        model = it.repository.get("one")
        model.in_flight += 1

        def done() -> None:
            model.in_flight -= 1

        asyncio.get_running_loop().call_later(0.2, done)
        await it.load("two")
        assert serving(it) == ["two"]


async def test_what_is_larger_than_the_limit_unloads_nothing_and_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path, "one")
    put(tmp_path, "huge", size_bytes=3 * SIZE)
    async with limited(tmp_path, 2) as it:
        await it.load("one")
        assert "model 'huge' needs 3,000,000 bytes" in await it.refusal(it.load("huge"))
        assert serving(it) == ["one"]
    assert "no room: model 'huge' needs 3,000,000 bytes" in caplog.text


async def test_what_the_process_grows_by_counts_and_is_known_the_next_time(tmp_path: Path) -> None:
    put(tmp_path, "one", "two", "grows")
    loads: list[str] = []
    held = iter([0, 0, 0, 0, 0, int(1.5 * SIZE)])
    async with limited(tmp_path, 2, resident=lambda: next(held)) as it:
        await it.load("one")
        await it.load("two")
        # by its file it would fit behind one of them; it turns out to need the room of both
        await it.load("grows")
        loads.append(",".join(serving(it)))
    assert loads == ["grows"]


async def test_what_grows_beyond_the_limit_is_unloaded_again(tmp_path: Path) -> None:
    put(tmp_path, "one", "grows")
    held = iter([0, 0, 0, 5 * SIZE])
    async with limited(tmp_path, 2, resident=lambda: next(held, 0)) as it:
        await it.load("one")
        assert "model 'grows' needs 5,000,000 bytes" in await it.refusal(it.load("grows"))
        assert serving(it) == ["one"]
        # measured once, it is not loaded in vain again
        assert "model 'grows' needs 5,000,000 bytes" in await it.refusal(it.load("grows"))


async def test_a_swap_needs_room_for_both_and_a_refused_one_leaves_the_old(tmp_path: Path) -> None:
    put(tmp_path, "one", factor=2)
    async with limited(tmp_path, 1) as it:
        await it.load("one")
        put(tmp_path, "one", factor=3)
        assert "model 'one' needs 1,000,000 bytes" in await it.refusal(it.load("one"))
        assert await it.factor(name="one") == 2


async def test_an_ensemble_goes_with_the_model_that_it_is_made_of(tmp_path: Path) -> None:
    put(tmp_path, "part", "other")
    ensemble = tmp_path / "whole"
    (ensemble / "1").mkdir(parents=True)
    (ensemble / "config.pbtxt").write_text(
        "platform: 'ensemble' max_batch_size: 4 "
        "input [{ name: 'x' data_type: TYPE_FP32 dims: [ 2 ] }] "
        "output [{ name: 'y' data_type: TYPE_FP32 dims: [ 2 ] }] "
        "ensemble_scheduling { step [{ model_name: 'part' model_version: -1 "
        "input_map { key: 'x' value: 'x' } output_map { key: 'y' value: 'y' } }] }"
    )
    async with limited(tmp_path, 1) as it:
        await it.load("whole")
        assert serving(it) == ["part", "whole"]
        assert await ask(it.repository.get("whole")) == 2
        await it.load("other")
        assert serving(it) == ["other"]


async def test_many_loads_at_once_stay_under_the_limit(tmp_path: Path) -> None:
    names = [f"m{number}" for number in range(8)]
    put(tmp_path, *names)
    most: list[int] = []
    async with limited(tmp_path, 3) as it:

        async def load(name: str) -> None:
            await it.load(name)
            most.append(len(it.repository.served()))

        await asyncio.gather(*(load(name) for name in names))
    assert max(most) == 3


def test_the_memory_of_this_process_is_seen() -> None:
    """In a process of its own: this one may give memory of earlier tests back at the same moment."""
    script = """
from tpx.serving.heap import tree_resident_bytes
before = tree_resident_bytes()
block = bytearray(50 << 20)
print(tree_resident_bytes() - before)
"""
    grown = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, check=True)
    assert int(grown.stdout) > 40 << 20


@pytest.mark.parametrize("mode", ["none", "poll"])
def test_a_limit_without_a_way_back_is_refused(tmp_path: Path, mode: str) -> None:
    from tests.serving.live import serving as server
    from tpx.errors import UsageError

    with (
        pytest.raises(UsageError, match="--model-memory-limit needs --model-control-mode=lazy or explicit"),
        server(tmp_path, model_control_mode=mode, model_memory_limit=1),
    ):
        pass


async def test_what_a_model_loads_while_it_is_being_loaded_is_not_its_own(tmp_path: Path) -> None:
    put(tmp_path, "outer", "inner", size_bytes=1000)
    resident = 0
    async with limited(tmp_path, 3, resident=lambda: resident) as it:
        loader, loop = it.control.loads.loader, asyncio.get_running_loop()
        load = loader.load

        async def load_inner() -> None:
            async with it.control.loads.one_more():
                await it.load("inner")

        def growing(source: Any, *args: Any) -> Any:
            nonlocal resident
            resident += SIZE // 2
            if source.name == "outer":
                asyncio.run_coroutine_threadsafe(load_inner(), loop).result(10)
                resident += SIZE // 4
            return load(source, *args)

        loader.load = growing
        await it.load("outer")
        sizes = {served.model_id.name: size for served, (size, _) in it.control._memory._sizes.items()}
        assert sizes == {"outer": 3 * SIZE // 4, "inner": SIZE // 2}


async def test_permits_are_given_in_the_order_of_requests_and_lent_to_one_more() -> None:
    permits, within, may_leave = Permits(2), list[int](), asyncio.Event()

    async def visit(number: int) -> None:
        async with permits:
            within.append(number)
            await may_leave.wait()

    visits = [asyncio.ensure_future(visit(number)) for number in range(5)]
    await asyncio.sleep(0)
    assert within == [0, 1]
    async with permits.one_more():
        await asyncio.sleep(0)
        assert within == [0, 1, 2]
    may_leave.set()
    await asyncio.gather(*visits)
    assert within == [0, 1, 2, 3, 4]


async def test_a_cancelled_wait_for_a_permit_keeps_nobody_out() -> None:
    permits = Permits(1)

    async def visit() -> None:
        async with permits:
            await asyncio.sleep(0)

    async with permits:
        early, late = asyncio.ensure_future(visit()), asyncio.ensure_future(visit())
        await asyncio.sleep(0)
        early.cancel()
        await asyncio.wait([early])
    late.cancel()  # its turn has come, and it does not know yet
    await asyncio.wait([late])
    assert early.cancelled()
    assert late.cancelled()
    await asyncio.wait_for(visit(), 5)
