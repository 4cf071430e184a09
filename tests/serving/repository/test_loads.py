"""Threads of the event loop are for requests: what control of models does for long takes none of them."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.serving.repository.controlled import controlled
from tpx.errors import ConfigError
from tpx.serving.deferred import Tasks
from tpx.serving.model_id import ModelId
from tpx.serving.repository.loading import reason_of
from tpx.serving.repository.loads import LoadGroup, in_load_thread
from tpx.serving.repository.memory import Permits
from tpx.serving.repository.records import Loaded
from tpx.serving.repository.retirement import Retirement


async def test_models_that_take_long_to_end_take_no_thread_that_requests_need() -> None:
    class Slow:
        """A version that ends when the test says so."""

        def __init__(self) -> None:
            self.may_end = threading.Event()

        def close(self) -> None:
            assert self.may_end.wait(10)

    loop, tasks = asyncio.get_running_loop(), Tasks()
    loop.set_default_executor(ThreadPoolExecutor(1))
    retirement = Retirement(tasks, lambda _: None)
    ended = [Slow() for _ in range(4)]
    slow: list[Any] = [Loaded(served=one, fingerprint=None, ownership=None) for one in ended]  # type: ignore[arg-type]
    retirement.close_unused(slow)
    await asyncio.sleep(0)
    assert await asyncio.wait_for(loop.run_in_executor(None, lambda: "free"), 5) == "free"
    assert len(tasks) == 4
    for one in ended:
        one.may_end.set()
    await tasks.finish()
    retirement.shutdown()


async def test_a_look_that_takes_long_takes_no_thread_that_requests_need(tmp_path: Path) -> None:
    found = threading.Event()

    def look() -> None:
        assert found.wait(10)

    loop = asyncio.get_running_loop()
    async with controlled(tmp_path) as it:
        loop.set_default_executor(ThreadPoolExecutor(1))
        loads = [
            asyncio.ensure_future(it.control.loads.load(ModelId(name), look, LoadGroup(lambda _: None)))
            for name in ("store", "agent", "disk")
        ]
        await asyncio.sleep(0)
        assert await asyncio.wait_for(loop.run_in_executor(None, lambda: "free"), 5) == "free"
        assert it.control.in_use.busy == 3
        found.set()
        for refused in await asyncio.gather(*loads, return_exceptions=True):
            assert "failed to poll" in str(refused)


async def test_a_load_that_waits_for_another_admits_it_and_no_thread_stays() -> None:
    permits, loop = Permits(1), asyncio.get_running_loop()
    used: list[threading.Thread] = []

    async def ask(depth: int) -> None:
        async with permits.one_more():
            await in_load_thread(permits, lambda: load(depth))

    def load(depth: int) -> None:
        used.append(threading.current_thread())
        if depth:
            asyncio.run_coroutine_threadsafe(ask(depth - 1), loop).result(10)

    await in_load_thread(permits, lambda: load(2))
    assert len(used) == 3
    for thread in used:
        thread.join(10)
        assert not thread.is_alive()


async def test_loads_that_nobody_waits_for_within_a_load_share_the_permits_there_are() -> None:
    permits = Permits(1)
    events: list[str] = []
    others = threading.Event()

    def load() -> None:
        events.append("begins")
        others.wait(0.01)  # time for another one to begin
        events.append("ends")

    async with permits.one_more():
        await in_load_thread(permits, lambda: None)
    await asyncio.gather(*(in_load_thread(permits, load) for _ in range(3)))
    assert events == ["begins", "ends"] * 3


def test_a_reason_is_bounded_and_a_lack_of_memory_is_no_internal_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reason = reason_of(ConfigError(f"dims [ {'1, ' * 100_000}]"))
    assert reason.startswith("Invalid argument: dims [ 1, ")
    assert len(reason) < 11_000
    assert reason_of(MemoryError()).startswith("Unavailable: not enough memory")
    assert not caplog.records
