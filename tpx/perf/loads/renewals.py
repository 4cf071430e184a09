"""Making lanes able to send again, in the background of a load."""

import asyncio
from collections.abc import Callable
from functools import partial

from tpx.errors import WireError
from tpx.perf.clients.base import Client, Lane

FIRST_RETRY_S = 0.02
LAST_RETRY_S = 1.0


class Renewals:
    """Renews lanes until it works; `refused` hears of every attempt that failed and says whether to go on."""

    def __init__(self, client: Client, refused: Callable[[WireError], bool]) -> None:
        self._client = client
        self._refused = refused
        self._tasks: set[asyncio.Task[None]] = set()

    def renew(self, lane: Lane, call: object, then: Callable[[], None]) -> None:
        """Renew a lane and go on with `then`."""
        task = asyncio.get_running_loop().create_task(self._renew(lane, call))
        self._tasks.add(task)
        task.add_done_callback(partial(self._done, then))

    async def close(self, patience_s: float) -> None:
        """Wait for those under way, then give them up."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=patience_s)
        for task in self._tasks:
            task.cancel()

    def _done(self, then: Callable[[], None], task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.result()
            then()

    async def _renew(self, lane: Lane, call: object) -> None:
        pause_s = FIRST_RETRY_S
        while True:
            try:
                await self._client.renew(lane, call)
            except WireError as exc:
                if not self._refused(exc):
                    return
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, LAST_RETRY_S)
            else:
                return
