"""Who may work now, of those who would be too many at once."""

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager


class Admission:
    """So many may be within it at a time, in the order in which they came; and one more for each that only
    waits for another."""

    def __init__(self, count: int) -> None:
        self._free = count
        """Below zero: some are within it that were let in only while others waited."""
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def __aenter__(self) -> None:
        if self._free > 0:
            self._free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._leave()  # it was let in a moment before
            raise

    async def __aexit__(self, *_: object) -> None:
        self._leave()

    @contextmanager
    def one_more(self) -> Iterator[None]:
        """Meanwhile one of those within it may be doing nothing but wait for whoever is within this."""
        self._leave()
        try:
            yield
        finally:
            self._free -= 1

    def _leave(self) -> None:
        self._free += 1
        while self._free > 0 and self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                self._free -= 1
                turn.set_result(None)
