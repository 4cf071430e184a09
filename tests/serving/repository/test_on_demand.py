"""Loads that requests begin: each once, waited for a while, and not again too soon after a failure."""

import asyncio
from collections.abc import Callable

import pytest

from tests.serving.virtual_time import run
from tpx.errors import InvalidRequest, NotReady, Overloaded, TpxError
from tpx.serving.deferred import NotLoaded, Tasks
from tpx.serving.model_id import ModelId
from tpx.serving.repository.in_use import ModelsInUse
from tpx.serving.repository.on_demand import LoadOnDemand


class Scene:
    """Loads on demand that the test ends."""

    def __init__(self, wait_s: float = 5) -> None:
        self.now_ns = 0
        self.tasks = Tasks()
        self.loads: list[tuple[str, asyncio.Future[None]]] = []
        self.told: list[str] = []
        self.in_use = ModelsInUse()
        self.on_demand = LoadOnDemand(self._load, self.tasks, self.in_use, wait_s, lambda: self.now_ns)

    async def _load(self, name: str) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.loads.append((name, future))
        await future

    def ask(self, name: str, who: str) -> Callable[[], None]:
        with pytest.raises(NotLoaded) as caught:
            self.on_demand.check(name)
        return caught.value.then(
            lambda: self.told.append(f"{who} served"),
            lambda error: self.told.append(f"{who} {error.message}"),
        )

    async def end(self, error: TpxError | None = None) -> None:
        """End the load that was begun last."""
        await asyncio.sleep(0.01)
        future = self.loads[-1][1]
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
        await self.tasks.finish()

    def refusal(self, name: str) -> str:
        with pytest.raises(TpxError) as caught:
            self.on_demand.check(name)
        return "" if isinstance(caught.value, NotLoaded) else caught.value.message


def test_all_who_ask_wait_for_one_load() -> None:
    async def scene() -> None:
        it = Scene()
        for who in "abc":
            it.ask("net", who)
        await it.end()
        assert it.told == ["a served", "b served", "c served"]
        assert [name for name, _ in it.loads] == ["net"]
        assert not it.in_use.holds(ModelId("net"))

    run(scene)


def test_a_model_is_in_use_until_those_who_waited_are_served() -> None:
    async def scene() -> None:
        it = Scene()
        seen = []
        with pytest.raises(NotLoaded) as caught:
            it.on_demand.check("net")
        caught.value.then(lambda: seen.append(it.in_use.holds(ModelId("net"))), lambda _: None)
        await it.end()
        assert seen == [True]
        assert not it.in_use.holds(ModelId("net"))

    run(scene)


def test_a_failure_is_told_to_all_and_the_pause_doubles() -> None:
    async def scene() -> None:
        it = Scene()
        it.ask("net", "a")
        it.ask("net", "b")
        await it.end(NotReady("no such file"))
        assert it.told == ["a no such file", "b no such file"]
        assert it.refusal("net") == "no such file (it is tried again in 1.0 s)"
        assert "net" in it.on_demand.failures
        it.now_ns += 1_000_000_000
        it.ask("net", "c")
        await it.end(NotReady("still none"))
        assert it.refusal("net") == "still none (it is tried again in 2.0 s)"
        it.now_ns += 2_000_000_000
        it.ask("net", "d")
        await it.end()
        assert it.told[-1] == "d served"
        assert it.refusal("net") == ""
        assert "net" not in it.on_demand.failures

    run(scene)


def test_the_pause_ends_at_a_minute_and_with_a_load_by_other_means() -> None:
    async def scene() -> None:
        it = Scene()
        for _ in range(10):
            it.ask("net", "a")
            await it.end(NotReady("no"))
            it.now_ns += 60_000_000_000
        it.ask("net", "a")
        await it.end(NotReady("no"))
        assert it.refusal("net") == "no (it is tried again in 60.0 s)"
        it.on_demand.failures.pop("net")
        assert it.refusal("net") == ""

    run(scene)


def test_want_of_room_is_followed_by_no_pause() -> None:
    async def scene() -> None:
        it = Scene()
        it.ask("net", "a")
        await it.end(Overloaded("no room"))
        assert it.told == ["a no room"]
        assert it.refusal("net") == ""

    run(scene)


def test_a_wait_is_bounded_and_the_load_goes_on() -> None:
    async def scene() -> None:
        it = Scene(wait_s=60)
        it.ask("net", "a")
        await asyncio.sleep(61)
        assert it.told == [
            "a model 'net' is still being loaded after 60 s (--lazy-load-timeout-secs): ask again later"
        ]
        it.ask("net", "b")
        await it.end()
        assert it.told[1:] == ["b served"]
        assert len(it.loads) == 1

    run(scene)


def test_who_went_away_is_not_served() -> None:
    async def scene() -> None:
        it = Scene()
        call_off = it.ask("net", "a")
        it.ask("net", "b")
        await asyncio.sleep(0.01)
        call_off()
        await asyncio.sleep(0.01)
        assert it.told == ["a the client went away while model 'net' was being loaded"]
        await it.end()
        assert it.told[1:] == ["b served"]

    run(scene)


def test_names_of_failures_are_not_remembered_without_end() -> None:
    async def scene() -> None:
        it = Scene()

        async def fail(name: str) -> None:
            raise InvalidRequest(name)

        on_demand = LoadOnDemand(fail, it.tasks, it.in_use, 1, lambda: 0)
        for number in range(1100):
            with pytest.raises(NotLoaded) as caught:
                on_demand.check(f"m{number}")
            caught.value.then(lambda: None, lambda _: None)
        await it.tasks.finish()
        assert len(on_demand.failures) == 1000
        assert "m1099" in on_demand.failures

    run(scene)
