"""Answers that come later: tasks on the event loop, and requests that wait for their model."""

import asyncio
import logging
from collections.abc import Callable, Coroutine

from tpx.errors import NotReady, TpxError

log = logging.getLogger(__name__)


class NotLoaded(NotReady):
    """Raised for a model that is not loaded yet, or not yet known to a frontend process.

    `then` starts that and calls its first argument, or the second with the error. It returns a function that
    cancels the wait; the second is then called too.
    """

    def __init__(
        self,
        message: str,
        then: Callable[[Callable[[], None], Callable[[TpxError], None]], Callable[[], None]],
    ) -> None:
        super().__init__(message)
        self.then = then


class Tasks:
    """Owner of tasks on the running event loop. Tasks are never canceled: each runs to its end."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._running)

    def start(self, work: Coroutine[object, object, None]) -> "asyncio.Task[None]":
        """Start a task and return it, for callers that wait. Failures are logged for callers that do not."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._finish_task)
        return task

    def _finish_task(self, task: "asyncio.Task[None]") -> None:
        self._running.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a task failed", exc_info=task.exception())

    async def finish(self) -> None:
        """Wait until no task is left, including tasks started meanwhile."""
        while self._running:
            await asyncio.wait(self._running)
