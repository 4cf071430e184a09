"""Load on demand: a request for a model that is not loaded starts its load and waits for it."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from tpx.errors import Cancelled, NotReady, Overloaded, TpxError
from tpx.serving.repository.retirement import Tasks

log = logging.getLogger(__name__)

_FIRST_PAUSE_NS = 1_000_000_000
_LONGEST_PAUSE_NS = 60_000_000_000
_MOST_FAILURES = 1000
"""Maximum number of failures remembered; bounded because names come from clients."""
_MOST_WAITING = 10_000


class NotLoaded(NotReady):
    """Raised for a model that is not loaded yet: call `then` to load it and continue the request."""

    def __init__(self, name: str, on_demand: "LoadOnDemand") -> None:
        super().__init__(f"Request for unknown model: '{name}' is not loaded")
        self.name = name
        self._on_demand = on_demand

    def then(self, work: Callable[[], None], fail: Callable[[TpxError], None]) -> Callable[[], None]:
        """Load the model, then call `work`, or `fail` with the error.

        Returns a function that cancels the wait; `fail` is then called without waiting for the load.
        Raises Overloaded.
        """
        return self._on_demand.begin(self.name, work, fail)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failure:
    error: TpxError
    pause_ns: int
    until_ns: int


class LoadOnDemand:
    """Shares one load among all requests for a model; after a failure it pauses, twice as long each time."""

    def __init__(
        self,
        load: Callable[[str], Coroutine[object, object, None]],
        tasks: Tasks,
        wait_s: float,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        """`load` raises TpxError. Overloaded causes no pause."""
        self._load = load
        self._tasks = tasks
        self._wait_s = wait_s
        self._clock = clock
        self._loads: dict[str, asyncio.Future[TpxError | None]] = {}
        self._failures: dict[str, _Failure] = {}
        self._waiting: Counter[str] = Counter()

    def check(self, name: str) -> None:
        """Raise NotLoaded, or the error of the last load while the pause after it lasts."""
        failure = self._failures.get(name)
        left_ns = 0 if failure is None else failure.until_ns - self._clock()
        if failure is None or name in self._loads or left_ns <= 0:
            raise NotLoaded(name, self)
        raise type(failure.error)(
            f"{failure.error.message.rstrip()} (it is tried again in {left_ns / 1e9:.1f} s)",
            code=failure.error.code,
        )

    def begin(
        self, name: str, work: Callable[[], None], fail: Callable[[TpxError], None]
    ) -> Callable[[], None]:
        """Implement NotLoaded.then."""
        if self._waiting.total() >= _MOST_WAITING:
            raise Overloaded(f"{_MOST_WAITING} requests wait for models to be loaded: ask again later")
        called_off = asyncio.Event()
        self._tasks.start(self._wait(name, work, fail, called_off))
        return called_off.set

    def pinned(self, name: str) -> bool:
        """Return True if a request waits for this model or is about to be submitted to it."""
        return self._waiting[name] > 0

    def failed(self, name: str) -> bool:
        """Return True if the last load of this model failed."""
        return name in self._failures

    def forgive(self, name: str) -> None:
        """Forget the failure of a model that has been loaded in another way."""
        self._failures.pop(name, None)

    async def _wait(
        self, name: str, work: Callable[[], None], fail: Callable[[TpxError], None], called_off: asyncio.Event
    ) -> None:
        self._waiting[name] += 1
        try:
            error = await self._outcome(name, called_off)
            if error is None:
                work()
            else:
                fail(error)
        finally:
            self._waiting[name] -= 1
            if not self._waiting[name]:
                del self._waiting[name]

    async def _outcome(self, name: str, called_off: asyncio.Event) -> TpxError | None:
        load = self._loads.get(name)
        if load is None:
            load = self._loads[name] = asyncio.get_running_loop().create_future()
            self._tasks.start(self._run(name, load))
        off = asyncio.get_running_loop().create_task(called_off.wait())
        try:
            either: set[asyncio.Future[Any]] = {load, off}
            await asyncio.wait(either, timeout=self._wait_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            off.cancel()
        if called_off.is_set():
            return Cancelled(f"the client went away while model '{name}' was being loaded")
        if load.done():
            return load.result()
        return NotReady(
            f"model '{name}' is still being loaded after {self._wait_s:g} s (--lazy-load-timeout-secs): ask "
            "again later"
        )

    async def _run(self, name: str, load: "asyncio.Future[TpxError | None]") -> None:
        error: TpxError | None = NotReady(f"model '{name}' could not be loaded: see the log of the server")
        try:
            await self._load(name)
            error = None
            self.forgive(name)
        except TpxError as exc:
            error = exc
        finally:
            del self._loads[name]
            # Overloaded is temporary: retry at the next request
            if error is not None and not isinstance(error, Overloaded):
                self._remember(name, error)
            load.set_result(error)

    def _remember(self, name: str, error: TpxError) -> None:
        before = self._failures.pop(name, None)
        pause_ns = _FIRST_PAUSE_NS if before is None else min(2 * before.pause_ns, _LONGEST_PAUSE_NS)
        self._failures[name] = _Failure(error=error, pause_ns=pause_ns, until_ns=self._clock() + pause_ns)
        if len(self._failures) > _MOST_FAILURES:
            del self._failures[next(iter(self._failures))]
