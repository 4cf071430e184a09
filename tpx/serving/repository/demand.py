"""Models that are loaded when somebody asks for them: who asks waits, and many ask for the same load."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from tpx.errors import Cancelled, NotReady, Overloaded, TpxError
from tpx.serving.repository.tasks import Tasks

log = logging.getLogger(__name__)

_FIRST_PAUSE_NS = 1_000_000_000
_LONGEST_PAUSE_NS = 60_000_000_000
_MOST_FAILURES = 1000
"""Remembered: names come from clients."""
_MOST_WAITING = 10_000


class NotLoaded(NotReady):
    """A model is not there yet, but may be soon: `then` does what it was asked for."""

    def __init__(self, name: str, demand: "Demand") -> None:
        super().__init__(f"Request for unknown model: '{name}' is not loaded")
        self.name = name
        self._demand = demand

    def then(self, work: Callable[[], None], fail: Callable[[TpxError], None]) -> Callable[[], None]:
        """Load it, and call `work` when it serves, or `fail` with the reason why not.

        Returns what calls it off: then `fail` is called at once. Raises Overloaded.
        """
        waiting = _Waiting(work, fail)
        self._demand.begin(self.name, waiting)
        return waiting.off.set


class _Waiting:
    """Somebody who waits, and may stop to."""

    __slots__ = ("fail", "off", "work")

    def __init__(self, work: Callable[[], None], fail: Callable[[TpxError], None]) -> None:
        self.work = work
        self.fail = fail
        self.off = asyncio.Event()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failure:
    error: TpxError
    pause_ns: int
    until_ns: int


class Demand:
    """Begins loads, each once, and lets a model whose load failed rest: twice as long after each failure."""

    def __init__(
        self,
        load: Callable[[str], Coroutine[Any, Any, None]],
        tasks: Tasks,
        wait_s: float,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        """`load` raises TpxError; one without a pause behind it is Overloaded."""
        self._load = load
        self._tasks = tasks
        self._wait_s = wait_s
        self._clock = clock
        self._loads: dict[str, asyncio.Future[TpxError | None]] = {}
        self._failures: dict[str, _Failure] = {}
        self._pins: Counter[str] = Counter()

    def check(self, name: str) -> None:
        """Raises why the model is not there: NotLoaded, or how its last load failed if that was just now."""
        failure = self._failures.get(name)
        if failure is None or name in self._loads:
            raise NotLoaded(name, self)
        left_ns = failure.until_ns - self._clock()
        if left_ns <= 0:
            raise NotLoaded(name, self)
        raise type(failure.error)(
            f"{failure.error.message.rstrip()} (it is tried again in {left_ns / 1e9:.1f} s)",
            code=failure.error.code,
        )

    def begin(self, name: str, waiting: _Waiting) -> None:
        """Load a model for somebody. Raises Overloaded."""
        if self._pins.total() >= _MOST_WAITING:
            raise Overloaded(f"{_MOST_WAITING} requests wait for models to be loaded: ask again later")
        self._tasks.start(self._wait(name, waiting))

    def pinned(self, name: str) -> bool:
        """Whether somebody waits for a model, or was just told that it serves."""
        return self._pins[name] > 0

    def failed(self, name: str) -> bool:
        """Whether the last load of a model failed."""
        return name in self._failures

    def forgive(self, name: str) -> None:
        """It was loaded in another way, or shall be tried again."""
        self._failures.pop(name, None)

    async def _wait(self, name: str, waiting: _Waiting) -> None:
        self._pins[name] += 1
        try:
            error = await self._outcome(name, waiting.off)
            if error is None:
                waiting.work()
            else:
                waiting.fail(error)
        finally:
            self._pins[name] -= 1
            if not self._pins[name]:
                del self._pins[name]

    async def _outcome(self, name: str, off: asyncio.Event) -> TpxError | None:
        load = self._loads.get(name)
        if load is None:
            load = self._loads[name] = asyncio.get_running_loop().create_future()
            self._tasks.start(self._run(name, load))
        called_off = asyncio.get_running_loop().create_task(off.wait())
        try:
            either: set[asyncio.Future[Any]] = {load, called_off}
            await asyncio.wait(either, timeout=self._wait_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            called_off.cancel()
        if off.is_set():
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
            if error is not None and not isinstance(error, Overloaded):
                self._remember(name, error)
            load.set_result(error)

    def _remember(self, name: str, error: TpxError) -> None:
        before = self._failures.pop(name, None)
        pause_ns = _FIRST_PAUSE_NS if before is None else min(2 * before.pause_ns, _LONGEST_PAUSE_NS)
        self._failures[name] = _Failure(error=error, pause_ns=pause_ns, until_ns=self._clock() + pause_ns)
        if len(self._failures) > _MOST_FAILURES:
            del self._failures[next(iter(self._failures))]
