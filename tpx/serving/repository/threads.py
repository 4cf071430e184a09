"""The threads that models are loaded in: so many at a time, and one more for each that only waits for another
load."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


class LoadThreads:
    """Not those of the loop: stores and agents may take minutes, and requests need them."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="load")
        self._free = count
        """Below zero: work goes on in threads that were wanted only while others waited."""
        self._running = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    def shutdown(self) -> None:
        """Nothing is being loaded any more."""
        self._pool.shutdown()

    async def run(self, work: Callable[[], T]) -> T:
        """Do it in a thread once one is free."""
        if self._free > 0:
            self._free -= 1
        else:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            await turn
        self._running += 1
        try:
            if self._running <= self._count:
                return await _in(self._pool, work)
            extra = ThreadPoolExecutor(1, thread_name_prefix="load")
            try:
                return await _in(extra, work)
            finally:
                extra.shutdown(wait=False)  # a thread that stays keeps memory of its own
        finally:
            self._running -= 1
            self._free += 1
            self._wake()

    @contextmanager
    def one_more(self) -> Iterator[None]:
        """Meanwhile one of the threads may be doing nothing but wait for whoever is within this."""
        self._free += 1
        self._wake()
        try:
            yield
        finally:
            self._free -= 1

    def _wake(self) -> None:
        while self._free > 0 and self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                self._free -= 1
                turn.set_result(None)


async def _in(pool: ThreadPoolExecutor, work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(pool, work)
