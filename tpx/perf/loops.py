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
    call_soon, polling = asyncio.get_running_loop().call_soon, True

    def poll_again() -> None:
        """Be always ready, so that the loop polls for events with a timeout of 0."""
        if polling:
            call_soon(poll_again)

    poll_again()
    try:
        yield
    finally:
        polling = False
