"""The event loop that everything of the load generator runs on, and how it waits: asleep or polling."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

Poll = Literal["sleep", "busy"]


def event_loop() -> asyncio.AbstractEventLoop:
    """A new event loop of the fastest kind that this machine has, for asyncio.Runner."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


@contextmanager
def waiting(poll: Poll) -> Iterator[None]:
    """Let the running loop poll without sleeping until the context ends, where `poll` is busy."""
    if poll == "sleep":
        yield
        return
    polling = _Polling(asyncio.get_running_loop())
    try:
        yield
    finally:
        polling.end()


class _Polling:
    """A callback that is always ready: a loop that has one asks for events with a timeout of 0."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._call_soon = loop.call_soon
        self._handle = loop.call_soon(self._turn)

    def end(self) -> None:
        self._handle.cancel()

    def _turn(self) -> None:
        self._handle = self._call_soon(self._turn)
