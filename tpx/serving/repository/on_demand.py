"""Loads that requests begin, in lazy mode: one for all requests, with pauses after failures."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial

from tpx.errors import Cancelled, NotReady, Overloaded, TpxError
from tpx.serving.deferred import NotLoaded, Tasks
from tpx.serving.repository.in_use import ModelsInUse

_FIRST_PAUSE_NS = 1_000_000_000
_LONGEST_PAUSE_NS = 60_000_000_000
_MOST_FAILURES = 1000
"""Maximum number of failures remembered; bounded because names come from clients."""
_MOST_WAITING = 10_000


@dataclass(eq=False)
class LoadOnDemand:
    """Shares one load among all requests for a model; after a failure it pauses, twice as long each time."""

    _load: Callable[[str], Coroutine[object, object, None]]
    """Raises TpxError. Overloaded causes no pause."""
    _tasks: Tasks
    _in_use: ModelsInUse
    _wait_s: float
    _clock: Callable[[], int] = time.perf_counter_ns

    def __post_init__(self) -> None:
        self._loads: dict[str, asyncio.Future[TpxError | None]] = {}
        self.failures: dict[str, tuple[TpxError, int, int]] = {}
        """Error of the last load, pause after it, and end of the pause, by model."""

    def check(self, name: str) -> None:
        """Raise NotLoaded, or the error of the last load while the pause after it lasts."""
        error, _, until_ns = self.failures.get(name, (None, 0, 0))
        left_ns = until_ns - self._clock()
        if error is None or name in self._loads or left_ns <= 0:
            what = f"Request for unknown model: '{name}' is not loaded"
            raise NotLoaded(what, partial(self.begin, name))
        raise type(error)(
            f"{error.message.rstrip()} (it is tried again in {left_ns / 1e9:.1f} s)", code=error.code
        )

    def begin(
        self, name: str, work: Callable[[], None], fail: Callable[[TpxError], None]
    ) -> Callable[[], None]:
        """Load the model, then call `work`, or `fail` with the error.

        Returns a function that cancels the wait; `fail` is then called without waiting for the load.
        Raises Overloaded.
        """
        if self._in_use.awaited.total() >= _MOST_WAITING:
            raise Overloaded(f"{_MOST_WAITING} requests wait for models to be loaded: ask again later")
        off: asyncio.Future[TpxError | None] = asyncio.get_running_loop().create_future()
        self._tasks.start(self._wait_for_load(name, work, fail, off))
        return lambda: None if off.done() else off.set_result(None)

    async def _wait_for_load(
        self,
        name: str,
        work: Callable[[], None],
        fail: Callable[[TpxError], None],
        off: "asyncio.Future[TpxError | None]",
    ) -> None:
        with self._in_use.awaiting(name):
            load = self._loads.get(name)
            if load is None:
                load = self._loads[name] = asyncio.get_running_loop().create_future()
                self._tasks.start(self._run_load(name, load))
            await asyncio.wait([load, off], timeout=self._wait_s, return_when=asyncio.FIRST_COMPLETED)
            error: TpxError | None = None
            if off.done():
                error = Cancelled(f"the client went away while model '{name}' was being loaded")
            elif load.done():
                error = load.result()
            else:
                error = NotReady(
                    f"model '{name}' is still being loaded after {self._wait_s:g} s "
                    "(--lazy-load-timeout-secs): ask again later"
                )
            if error is None:
                work()
            else:
                fail(error)

    async def _run_load(self, name: str, load: "asyncio.Future[TpxError | None]") -> None:
        error: TpxError | None = NotReady(f"model '{name}' could not be loaded: see the log of the server")
        try:
            await self._load(name)
            error = None
        except TpxError as exc:
            error = exc
        finally:
            del self._loads[name]
            _, pause_ns, _ = self.failures.pop(name, (None, 0, 0))
            # Overloaded is temporary: retry at the next request
            if error is not None and not isinstance(error, Overloaded):
                pause_ns = min(2 * pause_ns, _LONGEST_PAUSE_NS) or _FIRST_PAUSE_NS
                self.failures[name] = error, pause_ns, self._clock() + pause_ns
                if len(self.failures) > _MOST_FAILURES:
                    del self.failures[next(iter(self.failures))]
            load.set_result(error)
