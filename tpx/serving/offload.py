"""Long decoding and encoding: in threads, or on the event loop in short steps.

Threaded work proceeds in pieces, so that it releases the interpreter lock every few milliseconds. There
are few threads, because each competes with the event loop for the lock. Responses about all models are
built on the event loop, which owns the data: in steps, and once for all requests waiting for the same
one.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Generic, TypeVar

from tpx.errors import Cancelled, TpxError

log = logging.getLogger(__name__)

LONG_BYTES = 128 << 10
"""Minimum size of JSON or strings whose decoding would block the event loop for too long."""
COPIED_AT_ONCE_BYTES = 1 << 20
"""Minimum size of tensors whose plain copy to or from shared memory would block the loop too long."""
_VERY_LONG_BYTES = 2 << 20
_STEP_S = 0.002

_T = TypeVar("_T")


class Offload:
    """Runs work in FIFO order in three threads, for very long decoding, long decoding, and encoding, so
    that these do not delay each other.
    """

    def __init__(self) -> None:
        self._decoding, self._long_decoding, self._encoding = (
            ThreadPoolExecutor(1, thread_name_prefix=f"tpx-{name}")
            for name in ("decode", "decode-long", "encode")
        )

    def decode(
        self, size: int, work: Callable[[], _T], then: Callable[[_T], None], fail: Callable[[TpxError], None]
    ) -> Callable[[], None]:
        """Run `work` on `size` bytes in a thread, then call `then` with its result or `fail` with its
        exception on the event loop.

        Returns a function that cancels the work; `fail` is then called too.
        """
        return _start_work(
            self._long_decoding if size > _VERY_LONG_BYTES else self._decoding, work, then, fail
        )

    def encode(
        self, work: Callable[[], _T], then: Callable[[_T], None], fail: Callable[[TpxError], None]
    ) -> Callable[[], None]:
        """Run `work` in the encoding thread, in FIFO order; otherwise like `decode`."""
        return _start_work(self._encoding, work, then, fail)

    def close(self) -> None:
        """Accept no more work. Running work is not interrupted."""
        for pool in (self._decoding, self._long_decoding, self._encoding):
            pool.shutdown(wait=False, cancel_futures=True)


class Postponed(Exception):
    """Raised when a request first needs long work; `then` starts it in another thread."""

    def __init__(self, offload: Offload, size: int, work: Callable[[], Any]) -> None:
        super().__init__("work that takes long")
        self.then = partial(offload.decode, size, work)
        """Starts the work; see `Offload.decode`."""


async def in_steps(pieces: Iterable[_T], clock: Callable[[], float] = time.perf_counter) -> list[_T]:
    """Return the pieces, produced one by one; yields to the event loop every few milliseconds."""
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


def _start_work(
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
