"""Finished batches on their way from the instances' threads to the event loop, many with one wake-up."""

import asyncio
from collections import deque
from collections.abc import Callable

from tpx.serving.batch import Batch


class Completions:
    """Collects (callback, batch) pairs from any thread and runs the callbacks on the loop.

    A wake-up of the loop costs a system call: it is made only when none is on its way.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._done: deque[tuple[Callable[[Batch], None], Batch]] = deque()
        self._waking = False

    def push(self, callback: Callable[[Batch], None], batch: Batch) -> None:
        """Called from an instance's thread."""
        self._done.append((callback, batch))
        if not self._waking:
            self._waking = True
            self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        # cleared first: a batch that is pushed from now on wakes the loop again or is still popped below
        self._waking = False
        done = self._done
        while done:
            callback, batch = done.popleft()
            callback(batch)
