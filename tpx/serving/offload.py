"""Decoding and encoding that takes long: in threads beside the event loop, or on it in short steps.

What runs in a thread lets the interpreter lock go every few milliseconds: it works in pieces. There are few
threads, since each of them competes with the event loop for the lock. Answers about all models are made
on the event loop, which owns what they tell: a step at a time, and once for all requests that wait for one.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from tpx.errors import Cancelled, TpxError

log = logging.getLogger(__name__)

LONG_BYTES = 128 << 10
"""Size of JSON or strings from which decoding takes too long for the event loop."""
COPIED_AT_ONCE_BYTES = 1 << 20
"""Size of tensors from which even a plain copy to or from shared memory takes too long for the event loop."""
_VERY_LONG_BYTES = 2 << 20
_STEP_S = 0.002

_T = TypeVar("_T")


class Offload:
    """Runs work in the order in which it comes: very long decoding, long decoding, and encoding each have a
    thread, so that none of them waits for another."""

    def __init__(self) -> None:
        self._decoding, self._long_decoding, self._encoding = (
            ThreadPoolExecutor(1, thread_name_prefix=f"tpx-{name}")
            for name in ("decode", "decode-long", "encode")
        )

    def decode(
        self, size: int, work: Callable[[], _T], then: Callable[[_T], None], fail: Callable[[TpxError], None]
    ) -> Callable[[], None]:
        """Run `work` on `size` bytes in a thread and pass its result to `then`, or its exception to
        `fail`, on the event loop.

        Returns a function that cancels it, which also calls `fail`.
        """
        return _start(self._long_decoding if size > _VERY_LONG_BYTES else self._decoding, work, then, fail)

    def encode(
        self, work: Callable[[], _T], then: Callable[[_T], None], fail: Callable[[TpxError], None]
    ) -> Callable[[], None]:
        """Run `work` in the thread for responses, in order; otherwise as `decode`."""
        return _start(self._encoding, work, then, fail)

    def close(self) -> None:
        """Accept no more work; running work ends by itself."""
        for pool in (self._decoding, self._long_decoding, self._encoding):
            pool.shutdown(wait=False, cancel_futures=True)


class Postponed(Exception):
    """Raised when a request needs long work first, which `then` does beside the event loop."""

    def __init__(self, offload: Offload, size: int, work: Callable[[], Any]) -> None:
        super().__init__("work that takes long")
        self._offload = offload
        self._size = size
        self._work = work

    def then(self, go_on: Callable[[object], None], fail: Callable[[TpxError], None]) -> Callable[[], None]:
        """Start the work; see `Offload.decode`."""
        return self._offload.decode(self._size, self._work, go_on, fail)


async def in_steps(pieces: Iterable[_T], clock: Callable[[], float] = time.perf_counter) -> list[_T]:
    """Return the pieces, produced one by one; the event loop gets a turn every few milliseconds."""
    made = []
    step_ends = clock() + _STEP_S
    for piece in pieces:
        made.append(piece)
        if clock() > step_ends:
            await asyncio.sleep(0)
            step_ends = clock() + _STEP_S
    return made


class Coalesced(Generic[_T]):
    """Produces a response once for all requests that wait for it.

    Requests that arrive meanwhile get the next one, which covers everything before them.
    """

    def __init__(self, make: Callable[[], Coroutine[object, object, _T]]) -> None:
        self._make = make
        self._making = asyncio.Lock()
        self._next: asyncio.Task[_T] | None = None

    async def get(self) -> _T:
        """Return a response whose production began after this call. Raises its exception."""
        if self._next is None:
            self._next = asyncio.create_task(self._make_next())
        return await asyncio.shield(self._next)

    async def _make_next(self) -> _T:
        async with self._making:
            self._next = None
            return await self._make()


def _start(
    pool: ThreadPoolExecutor,
    work: Callable[[], _T],
    then: Callable[[_T], None],
    fail: Callable[[TpxError], None],
) -> Callable[[], None]:
    off = False

    def done(future: asyncio.Future[_T]) -> None:
        if future.cancelled() or off:
            fail(Cancelled("the request was cancelled"))
            return
        error = future.exception()
        if error is None:
            then(future.result())
        elif isinstance(error, TpxError):
            fail(error)
        else:
            log.error("decoding or encoding failed", exc_info=error)
            fail(TpxError("internal error: see the log of the server"))

    def call_off() -> None:
        nonlocal off
        off = True
        future.cancel()

    future = asyncio.get_running_loop().run_in_executor(pool, work)
    future.add_done_callback(done)
    return call_off
