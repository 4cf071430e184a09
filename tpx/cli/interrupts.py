"""Ctrl-C, and signals from supervisors, which end a run or a server and may arrive twice."""

import asyncio
import logging
import signal
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")
ENDING = (signal.SIGINT, signal.SIGTERM)
SAME_NS = 100_000_000
"""A second signal within this time is a duplicate: some programs signal a child and its process group."""


class ServerSignals:
    """SIGTERM or SIGINT shuts the server down; a second SIGINT ends it at once, a second SIGTERM does not."""

    def __init__(self, on_now: Callable[[], None], clock: Callable[[], int] = time.monotonic_ns) -> None:
        self.stop = asyncio.Event()
        self._on_now = on_now
        self._clock = clock
        self._interrupted_ns: int | None = None

    def watch(self) -> None:
        """Handle signals on the running event loop."""
        for number in ENDING:
            asyncio.get_running_loop().add_signal_handler(number, self.heard, number)

    def heard(self, number: signal.Signals) -> None:
        """Handle a signal."""
        if number is signal.SIGINT:
            now_ns, earlier_ns = self._clock(), self._interrupted_ns
            self._interrupted_ns = now_ns
            if earlier_ns is not None and now_ns - earlier_ns >= SAME_NS:
                log.warning("Signal (%d) received again: exiting at once", number)
                self._on_now()
        if self.stop.is_set():
            return
        hint = " Press Ctrl-C again to end at once." if number is signal.SIGINT else ""
        log.info("Signal (%d) received.%s", number, hint)
        self.stop.set()


def until_interrupted(polled: Iterable[T]) -> Iterator[T]:
    """Yield what is polled until Ctrl-C raises KeyboardInterrupt, also if a library swallows that: Ray does,
    now and then, in a callback.
    """
    interrupted = False

    def interrupt(_number: int, _frame: object) -> None:
        nonlocal interrupted
        interrupted = True
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        for value in polled:
            if interrupted:
                raise KeyboardInterrupt
            yield value
    finally:
        signal.signal(signal.SIGINT, before)


class Interrupts:
    """Ctrl-C during a run: the first lets measurements in progress finish and writes results; the one after
    the last of `notices` ends the run at once.

    The first also ends it at once if nothing has begun.
    """

    def __init__(
        self,
        begun: Callable[[], bool],
        notice: Callable[[str], None],
        clock: Callable[[], int] = time.monotonic_ns,
        notices: Iterable[str] = ("interrupted: finishing this level; press Ctrl-C again to stop at once",),
    ) -> None:
        self.stop = asyncio.Event()
        self.at_once = False
        self._begun = begun
        self._notice = notice
        self._notices = iter(notices)
        self._clock = clock
        self._last_signal_ns = -SAME_NS

    async def run(self, work: Coroutine[object, object, T]) -> T | None:
        """Return the result of `work`, or None if it was ended at once. Signals are handled meanwhile."""
        running, loop = asyncio.ensure_future(work), asyncio.get_running_loop()
        for number in ENDING:
            loop.add_signal_handler(number, self.interrupt, running)
        try:
            return await running
        except asyncio.CancelledError:
            if not self.at_once:
                raise
            return None
        finally:
            for number in ENDING:
                loop.remove_signal_handler(number)

    def interrupt(self, work: "asyncio.Future[Any]") -> None:
        now_ns = self._clock()
        if now_ns - self._last_signal_ns < SAME_NS:
            return
        self._last_signal_ns = now_ns
        notice = next(self._notices, "") if self._begun() else ""
        if notice:
            self._notice(notice)
        else:
            self.at_once = True
            work.cancel()
        self.stop.set()
