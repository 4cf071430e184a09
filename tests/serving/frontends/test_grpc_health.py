"""Who watches the health of the server: told at once and of every change, at the cost of one look for all."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from tests.serving.virtual_time import run
from tests.waiting import until
from tpx.protocol import messages
from tpx.protocol.grpc.server_call import Method
from tpx.serving.dataplane import DataPlane
from tpx.serving.frontends.grpc_health import GrpcHealth

MANY = 500
SERVING, NOT_SERVING = 1, 2


class Plane:
    """Says how it is, and counts how often it is asked."""

    def __init__(self) -> None:
        self.healthy = True
        self.asked = 0
        self.tasks = None

    def ready(self) -> bool:
        self.asked += 1
        return self.healthy


class Call:
    """Keeps what a watcher is told."""

    def __init__(self) -> None:
        self.told: list[int] = []
        self.over = False
        self.end: Callable[[], None] = lambda: None

    def listen(self, *, on_stall: Callable[[bool], None], on_drain: Callable[[], None]) -> None:
        self.end = on_drain

    def send(self, parts: Any, size: int) -> None:
        self.told.append(messages.HealthCheckResponse.FromString(b"".join(parts)).status)

    def finish(self) -> None:
        self.over = True


def watch_method(plane: Plane) -> Method:
    rpcs = GrpcHealth(cast("DataPlane", plane)).rpcs()
    return next(rpc.method for rpc in rpcs if rpc.method.stream is not None)


async def watching(plane: Plane, count: int) -> tuple[list[Call], list[Any]]:
    """So many calls that watch, and their sinks."""
    method = watch_method(plane)
    assert method.stream is not None
    calls = [Call() for _ in range(count)]
    sinks = [method.stream(cast("Any", call)) for call in calls]
    for sink in sinks:
        sink.message(b"")
    return calls, sinks


def test_all_that_watch_are_told_of_a_change_after_one_look() -> None:
    async def scene() -> None:
        plane = Plane()
        calls, _ = await watching(plane, MANY)
        assert all(call.told == [SERVING] for call in calls)
        plane.healthy = False
        asked = plane.asked
        await until(lambda: calls[0].told == [SERVING, NOT_SERVING])
        assert all(call.told == [SERVING, NOT_SERVING] for call in calls)
        assert plane.asked <= asked + 2
        for call in calls:
            call.end()
        assert all(call.over for call in calls)
        asked = plane.asked
        await asyncio.sleep(60)
        assert plane.asked <= asked + 1, "nobody watches any more"
        assert all(call.told == [SERVING, NOT_SERVING] for call in calls)

    run(scene)


def test_who_has_left_is_not_told_and_nobody_looks_for_nobody() -> None:
    async def scene() -> None:
        plane = Plane()
        calls, sinks = await watching(plane, 3)
        for sink in sinks[1:]:
            sink.gone()
        plane.healthy = False
        await until(lambda: calls[0].told == [SERVING, NOT_SERVING])
        assert calls[1].told == [SERVING]
        sinks[0].gone()
        asked = plane.asked
        await asyncio.sleep(60)
        assert plane.asked == asked
        sinks[0].message(b"")
        again, _ = await watching(plane, 1)
        assert again[0].told == [NOT_SERVING]

    run(scene)
