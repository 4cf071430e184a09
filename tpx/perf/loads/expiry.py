"""Giving up requests that take longer than `--timeout`, by looking a few times within it."""

import asyncio
from collections.abc import Callable
from time import perf_counter_ns

LOOKS = 10
LONGEST_INTERVAL_S = 0.1


class Expiry:
    """Calls `expire` with the time before which a request that has no answer yet was sent too long ago; never
    where `timeout_s` is 0."""

    def __init__(self, timeout_s: float, expire: Callable[[int], None]) -> None:
        self._timeout_ns = int(timeout_s * 1e9)
        self._interval_s = min(timeout_s / LOOKS, LONGEST_INTERVAL_S)
        self._expire = expire
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        if self._timeout_ns:
            self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._look)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._expire(perf_counter_ns() - self._timeout_ns)
        self.start()
