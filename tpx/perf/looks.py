"""How a load goes, told to whoever watches it as often as he wants to know."""

from collections.abc import Callable
from time import perf_counter_ns

import numpy as np

from tpx.perf.latency import rank
from tpx.perf.levels import Level
from tpx.perf.loads.base import Load
from tpx.perf.observer import Observer, Progress
from tpx.perf.records import Rows, succeeded
from tpx.perf.results import ServerBreakdown

WATCHED = (50.0, 90.0, 99.0)
"""Percentiles that are told while a level is measured."""


def nothing_known() -> ServerBreakdown | None:
    """The server's account of a window that is not over."""
    return None


class Looks:
    """Looks at one load; each of them is about the time since the one before."""

    def __init__(
        self, load: Load, observer: Observer, level: Level, *, max_windows: int, batch_size: int
    ) -> None:
        self._load = load
        self._observer = observer
        self._level = level
        self._max_windows = max_windows
        self._batch_size = batch_size
        self._at_ns = perf_counter_ns()
        self._index = 0

    def look(self, window: int, server: Callable[[], ServerBreakdown | None] = nothing_known) -> None:
        """Tell how it goes in a window, 0 of a warm-up, if it is time to."""
        now_ns = perf_counter_ns()
        elapsed_ns = now_ns - self._at_ns
        interval_s = self._observer.progress_interval_s
        if not interval_s or elapsed_ns < interval_s * 1e9:
            return
        good = succeeded(self._load.records.since(self._index))
        self._at_ns, self._index = now_ns, len(self._load.records)
        self._observer.progress(
            Progress(
                level=self._level,
                window=window,
                max_windows=self._max_windows,
                throughput_infer_per_s=len(good) * self._batch_size * 1e9 / elapsed_ns,
                percentiles_ns=_percentiles(good),
                failed=self._load.failed,
                failures=tuple(f"{f.code}: {f.message}" for f in self._load.failures().values()),
                server=server(),
            )
        )


def _percentiles(rows: Rows) -> dict[float, int]:
    if not len(rows):
        return {}
    places = {p: rank(p, len(rows)) for p in WATCHED}
    ordered = np.partition(rows["end_ns"] - rows["intended_ns"], tuple(places.values()))
    return {p: int(ordered[place]) for p, place in places.items()}
