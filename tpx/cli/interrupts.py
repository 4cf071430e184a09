"""Ctrl-C, and whoever supervises: what asks a run of `tpx perf` to end, and what it means to ask twice."""

import asyncio
import signal
import time
from collections.abc import Callable
from typing import Any

ENDING = (signal.SIGINT, signal.SIGTERM)
SAME_NS = 100_000_000
"""Some programs give a signal to their child and to its whole group: what comes so soon is the same one."""


class Interrupts:
    """The first one lets what has `begun` end, and its results be written; the second ends the run at once.
    So does the first where nothing has begun."""

    def __init__(
        self,
        begun: Callable[[], bool],
        notice: Callable[[str], None],
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.stop = asyncio.Event()
        self.at_once = False
        self._begun = begun
        self._notice = notice
        self._clock = clock
        self._heard_ns = -SAME_NS

    def watch(self, work: "asyncio.Future[Any]") -> None:
        """Listen for signals while `work` is done."""
        for number in ENDING:
            asyncio.get_running_loop().add_signal_handler(number, self.interrupt, work)

    def unwatch(self) -> None:
        """Listen no more."""
        for number in ENDING:
            asyncio.get_running_loop().remove_signal_handler(number)

    def interrupt(self, work: "asyncio.Future[Any]") -> None:
        now_ns = self._clock()
        if now_ns - self._heard_ns < SAME_NS:
            return
        self._heard_ns = now_ns
        if self._begun() and not self.stop.is_set():
            self._notice("interrupted: finishing this level; press Ctrl-C again to stop at once")
        else:
            self.at_once = True
            work.cancel()
        self.stop.set()
