"""Work that takes longer than the callback that begins it, and nobody waits for: its owner ends it."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

log = logging.getLogger(__name__)


class Tasks:
    """Owns tasks of the running event loop. None is cancelled: what is begun is brought to its end."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._running)

    def start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Begin, and return the task for callers that wait; a failure is logged for those that do not."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._running.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a task failed", exc_info=task.exception())

    async def finish(self) -> None:
        """Wait until none is left, those that others begin meanwhile included."""
        while self._running:
            await asyncio.wait(self._running)
