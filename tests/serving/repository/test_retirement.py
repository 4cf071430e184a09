"""What is left of a model that was unloaded: nothing."""

import asyncio
import gc
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest

from tests.serving.repository.controlled import ask, controlled, write
from tpx.serving.deferred import Tasks
from tpx.serving.repository.retirement import Retirement

MIB = 1 << 20


async def test_an_unloaded_model_is_freed_though_others_remember_it_and_the_collector_does_not_run(
    tmp_path: Path,
) -> None:
    write(tmp_path, 2)
    async with controlled(tmp_path) as it:
        await it.load()
        model: Any = it.repository.get("net")
        await ask(model)
        session = weakref.ref(model._opened._shared)
        gc.freeze()
        gc.disable()
        try:
            await it.unload()
            await it.until(lambda: it.states == {"net:1": "UNAVAILABLE unloaded"})
            assert session() is None
        finally:
            gc.enable()
        assert model.retired


@pytest.mark.slow
async def test_threads_of_unloaded_models_end(tmp_path: Path) -> None:
    write(tmp_path, 1)
    async with controlled(tmp_path) as it:

        async def cycle() -> None:
            await it.load()
            assert await it.factor() == 1
            await it.unload()
            await it.control.tasks.finish()

        await cycle()
        threads = threading.active_count()
        for _ in range(4):
            await cycle()
        assert threading.active_count() <= threads + 2


def test_what_a_backend_imports_is_not_collected_again(monkeypatch: pytest.MonkeyPatch) -> None:
    retirement = Retirement(Tasks(), lambda _: None)
    new: list[object] = [[]]
    retirement.freeze_imports()
    assert any(each is new for each in gc.get_objects())
    monkeypatch.setattr("sys.modules", {**sys.modules, **{f"backend.{n}": sys for n in range(30)}})
    retirement.freeze_imports()
    assert not any(each is new for each in gc.get_objects())


async def test_a_model_is_closed_only_when_its_last_request_is_answered(tmp_path: Path) -> None:
    write(tmp_path, 2)
    async with controlled(tmp_path) as it:
        await it.load()
        model = it.repository.get("net")
        await it.unload()
        answers = [asyncio.ensure_future(ask(model)) for _ in range(50)]
        await asyncio.sleep(0)
        assert it.control.retirement.draining == [model]
        assert not model.retired
        assert await asyncio.gather(*answers) == [2.0] * 50
        await it.until(lambda: model.retired)
