"""The event loop of the load generator, and how it waits: sleeping or polling."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

Poll = Literal["sleep", "busy"]


def event_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop of the fastest kind installed, for asyncio.Runner."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


@contextmanager
def waiting(poll: Poll) -> Iterator[None]:
    """Let the running loop poll without sleeping until the context ends, if `poll` is busy."""
    if poll == "sleep":
        yield
        return
    polling = _Polling(asyncio.get_running_loop())
    try:
        yield
    finally:
        polling.end()


class _Polling:
    """A callback that is always ready, so that the loop polls for events with a timeout of 0."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._call_soon = loop.call_soon
        self._handle = loop.call_soon(self._poll_again)

    def end(self) -> None:
        self._handle.cancel()

    def _poll_again(self) -> None:
        self._handle = self._call_soon(self._poll_again)
