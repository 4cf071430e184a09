"""Finished work on its way from the instances' threads to the event loop, many with one wake-up."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")

_SHARE_S = 0.002
"""Of one turn of the event loop."""


class Completions:
    """Collects (callback, result) pairs from any thread and runs the callbacks on the loop.

    A wake-up of the loop costs a system call: it is made only when none is on its way. Threads may finish
    batches of large answers faster than the loop sends them: those left after a share of time wait for its
    next turn.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._done: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._waking = False

    def push(self, callback: Callable[[T], None], result: T) -> None:
        """Called from an instance's thread."""
        self._done.append((callback, result))
        if not self._waking:
            self._waking = True
            try:
                self._loop.call_soon_threadsafe(self._drain)
            except RuntimeError:
                log.info("something was computed after the server had ended: dropped")

    def _drain(self) -> None:
        # cleared first: a batch that is pushed from now on wakes the loop again or is still popped below
        self._waking = False
        done = self._done
        ends = self._clock() + _SHARE_S
        try:
            while done:
                callback, result = done.popleft()
                callback(result)
                if self._clock() > ends:
                    break
        finally:
            if done and not self._waking:  # the share is used, or a callback has raised
                self._waking = True
                self._loop.call_soon(self._drain)
