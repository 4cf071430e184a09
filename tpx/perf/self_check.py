"""The load generator watching itself: whether what it measured is the server, or itself."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter_ns
from typing import Any

import numpy as np
import numpy.typing as npt

from tpx.perf.latency import rank
from tpx.perf.records import Rows
from tpx.perf.results import ClientCheck

PROBE_S = 0.01
TIMER_GRID_NS = 1_000_000
"""Event loops round their timers to milliseconds; lateness below that says nothing."""
BUSY_SHARE = 0.9
"""Share of its processor above which the client is what limits a level."""
STRAINED_SHARE = 0.5
"""Below this a client that is late has been kept waiting by something else."""
NOTICED_LAG_NS = 1_000_000
LAG_OF_LATENCY = 0.25
"""A lag is part of what was measured once it is this share of the median latency."""


class LoopProbe:
    """Looks a hundred times a second how long the event loop lets due things wait: a timer beyond its
    resolution, or a callback that is ready."""

    def __init__(self) -> None:
        self._seen: list[tuple[int, int]] = []
        self._due_ns = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._arm()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Look away while a window is summed up, which holds the loop up on purpose."""
        self.stop()
        try:
            yield
        finally:
            self.start()

    def p99_ns(self, start_ns: int, end_ns: int) -> int:
        """The lag that one look in a hundred exceeded between two times; 0 where there was no look."""
        lags = [lag for at, lag in self._seen if start_ns <= at <= end_ns]
        return _p99(np.asarray(lags, np.int64))

    def _arm(self) -> None:
        self._due_ns = perf_counter_ns() + int(PROBE_S * 1e9)
        self._timer = asyncio.get_running_loop().call_later(PROBE_S, self._ring)

    def _ring(self) -> None:
        now_ns = perf_counter_ns()
        late_ns = max(0, now_ns - self._due_ns - TIMER_GRID_NS)
        asyncio.get_running_loop().call_soon(self._turned, now_ns, late_ns)

    def _turned(self, rang_ns: int, late_ns: int) -> None:
        now_ns = perf_counter_ns()
        self._seen.append((now_ns, max(late_ns, now_ns - rang_ns)))
        if self._timer is not None:
            self._arm()


def slip_p99_ns(rows: Rows) -> int:
    """How late one request in a hundred was sent, or later."""
    return _p99(rows["start_ns"] - rows["intended_ns"])


def _p99(values: npt.NDArray[Any]) -> int:
    """Return the value that one in a hundred exceeds; 0 of none. np.quantile would import numpy.ma."""
    if not len(values):
        return 0
    at = rank(99.0, len(values))
    return int(np.partition(values, at)[at])


def client_bound(check: ClientCheck, median_latency_ns: int) -> str:
    """Why the client and not the server limited a level; empty where it did not."""
    if check.cpu_share > BUSY_SHARE:
        return f"the client was busy {check.cpu_share * 100:.0f}% of the time"
    if check.cpu_share < STRAINED_SHARE:
        return ""
    if check.slip_p99_ns > max(NOTICED_LAG_NS, median_latency_ns):
        return (
            f"the client was busy {check.cpu_share * 100:.0f}% of the time and sent requests late "
            f"(p99 {check.slip_p99_ns / 1e6:.1f} ms)"
        )
    if check.loop_lag_p99_ns > max(NOTICED_LAG_NS, LAG_OF_LATENCY * median_latency_ns):
        return (
            f"the client was busy {check.cpu_share * 100:.0f}% of the time and its event loop lagged "
            f"(p99 {check.loop_lag_p99_ns / 1e6:.1f} ms), which is part of the latencies"
        )
    return ""
