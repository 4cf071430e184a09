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
from typing import Generic, TypeVar

from tpx.errors import Cancelled, TpxError
from tpx.protocol.memory_budget import MemoryBudget
from tpx.protocol.v2 import DecodedRequest

log = logging.getLogger(__name__)

LONG_BYTES = 128 << 10
"""Minimum size of JSON or strings whose decoding would block the event loop for too long."""
COPIED_AT_ONCE_BYTES = 1 << 20
"""Minimum size of tensors whose plain copy to or from shared memory would block the loop too long."""
_VERY_LONG_BYTES = 2 << 20
_STEP_S = 0.002

_T = TypeVar("_T")


class Offload:
    """Runs work in FIFO order in four threads, for long and very long decoding and encoding, so that these
    do not delay each other. More would not be faster, because work on JSON and strings holds the
    interpreter lock. Outputs that wait to be encoded are charged to the memory budget.
    """

    def __init__(self, budget: MemoryBudget | None = None) -> None:
        self._budget = budget or MemoryBudget()
        self._decoding, self._long_decoding, self._encoding, self._long_encoding = (
            ThreadPoolExecutor(1, thread_name_prefix=f"tpx-{name}")
            for name in ("decode", "decode-long", "encode", "encode-long")
        )

    @property
    def limit_bytes(self) -> int:
        """Bytes that encoded outputs may have: all that the memory budget has."""
        return self._budget.limit_bytes

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
        self,
        size: int,
        work: Callable[[], _T],
        then: Callable[[_T], None],
        fail: Callable[[TpxError], None],
        *,
        alone: bool = False,
    ) -> None:
        """Run `work` on outputs of `size` bytes in FIFO order, like `decode`; very long work in another
        thread if it is `alone`, which means that no other work must keep its order.

        The bytes are charged until it has ended. Without memory for them, `fail` is called at once with
        Overloaded.
        """
        budget = self._budget
        if size and not budget.admit_answer(size):
            fail(budget.overload())
            return
        budget.take(size)
        pool = self._long_encoding if alone and size > _VERY_LONG_BYTES else self._encoding
        _start_work(pool, work, then, fail, ended=lambda: budget.take(-size))

    def close(self) -> None:
        """Accept no more work. Running work is not interrupted."""
        for pool in (self._decoding, self._long_decoding, self._encoding, self._long_encoding):
            pool.shutdown(wait=False, cancel_futures=True)


Start = Callable[[Callable[[DecodedRequest], None], Callable[[TpxError], None]], Callable[[], None]]
"""Starts work that calls its first argument with the request, or the second with the error. Returns a
function that cancels it; the second is then called too.
"""


class Postponed(Exception):
    """Raised when a request first needs long work in another thread, or must wait; `then` starts that."""

    def __init__(self, then: Start) -> None:
        super().__init__("work that takes long")
        self.then = then

    @classmethod
    def for_decoding(cls, offload: Offload, size: int, work: Callable[[], DecodedRequest]) -> "Postponed":
        """Return the exception for work as in `Offload.decode`."""
        return cls(partial(offload.decode, size, work))


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
    ended: Callable[[], None] | None = None,
) -> Callable[[], None]:
    """Run `work` in a thread; call `ended`, if given, after `then` or `fail`."""
    off = False

    def done(future: asyncio.Future[_T]) -> None:
        try:
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
        finally:
            if ended is not None:
                ended()

    def call_off() -> None:
        nonlocal off
        off = True
        future.cancel()

    future = asyncio.get_running_loop().run_in_executor(pool, work)
    future.add_done_callback(done)
    return call_off
