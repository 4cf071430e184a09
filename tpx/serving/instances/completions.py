"""Results on their way from instance threads to the event loop, many per wake-up."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from tpx.serving.turn import Turn

log = logging.getLogger(__name__)

T = TypeVar("T")


class Completions:
    """Collects (callback, result) pairs from any thread and runs the callbacks on the loop.

    A wake-up of the loop costs a system call, so it is made only if none is pending. Threads may finish
    batches of large responses faster than the loop sends them: the rest waits for the next turn.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Callable[[], int] = time.perf_counter_ns
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._done: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._waking = False

    def push(self, callback: Callable[[T], None], result: T) -> None:
        """Queue a result; called from an instance's thread."""
        self._done.append((callback, result))
        if not self._waking:
            self._waking = True
            try:
                self._loop.call_soon_threadsafe(self._drain)
            except RuntimeError:
                log.info("dropped a result that arrived after the server had ended")

    def _drain(self) -> None:
        # cleared first: a later push either wakes the loop again or is popped below
        self._waking = False
        done = self._done
        turn = Turn(self._clock())
        try:
            while done:
                callback, result = done.popleft()
                callback(result)
                if turn.is_over(self._clock()):
                    break
        finally:
            if done and not self._waking:  # the turn is over, or a callback raised
                self._waking = True
                self._loop.call_soon(self._drain)
