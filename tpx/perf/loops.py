"""The event loop that everything of the load generator runs on."""

import asyncio


def event_loop() -> asyncio.AbstractEventLoop:
    """A new event loop of the fastest kind that this machine has, for asyncio.Runner."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
