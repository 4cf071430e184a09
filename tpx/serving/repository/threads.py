"""The threads that models are loaded in: so many at a time, and one more for each that only waits for another
load."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import TypeVar

from tpx.serving.repository.admission import Admission

T = TypeVar("T")


class LoadThreads:
    """Not those of the loop: stores and agents may take minutes, and requests need them."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="load")
        self._admission = Admission(count)
        self._running = 0

    def shutdown(self) -> None:
        """Nothing is being loaded any more."""
        self._pool.shutdown()

    async def run(self, work: Callable[[], T]) -> T:
        """Do it in a thread once one is free."""
        async with self._admission:
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

    def one_more(self) -> AbstractContextManager[None]:
        """Meanwhile one of the threads may be doing nothing but wait for whoever is within this."""
        return self._admission.one_more()


async def _in(pool: ThreadPoolExecutor, work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(pool, work)
