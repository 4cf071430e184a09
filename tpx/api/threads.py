"""Asynchronous work for callers without an event loop, or with a running one, as in notebooks."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import TypeVar

from tpx.perf.loops import event_loop

T = TypeVar("T")
JOIN_S = 0.2
"""Interval between checks for Ctrl-C, which only the main thread receives."""


def run_in_thread(work: Callable[[asyncio.Event], Coroutine[object, object, T]]) -> T:
    """Run `work` to its end on a new event loop in a new thread.

    Its argument is an event set by Ctrl-C, after which it should end with what it has.
    """
    results: list[T] = []
    failures: list[BaseException] = []
    started: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def carried_out() -> T:
        stop = asyncio.Event()
        started.append((asyncio.get_running_loop(), stop))
        return await work(stop)

    def body() -> None:
        try:
            with asyncio.Runner(loop_factory=event_loop) as runner:
                results.append(runner.run(carried_out()))
        except BaseException as exc:  # noqa: BLE001 (raised again in the caller's thread)
            failures.append(exc)

    thread = threading.Thread(target=body, name="tpx", daemon=True)
    thread.start()
    while thread.is_alive():
        try:
            thread.join(JOIN_S)
        except KeyboardInterrupt:
            for loop, stop in started:
                loop.call_soon_threadsafe(stop.set)
    if failures:
        raise failures[0]
    return results[0]
