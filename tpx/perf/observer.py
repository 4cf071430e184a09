"""The interface for reporting a run's progress, and the figures of a level so far."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter_ns

import numpy as np

from tpx.perf.clients.model import ModelDescription
from tpx.perf.levels import Level
from tpx.perf.loads.base import Load
from tpx.perf.records import elapsed_ns, succeeded
from tpx.perf.results import DataSummary, LevelResult, ServerBreakdown
from tpx.perf.settings import LevelSettings
from tpx.perf.statistics.summaries import rank

WATCHED = (50.0, 90.0, 99.0)
"""Percentiles reported while a level is measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelProgress:
    """Progress of a level; its figures cover the time since the previous report."""

    level: Level
    window: int
    max_windows: int
    throughput_infer_per_s: float
    percentiles_ns: Mapping[float, int]
    """Percentiles of latency; empty if no request succeeded."""
    failed: int
    """Failed requests of the whole level."""
    failures: tuple[str, ...] = ()
    """Kinds of failure, each with the message of the first one."""
    server: ServerBreakdown | None = None
    """The server's own statistics for the last window."""


class Observer:
    """Receives the events of a run; this base class ignores them."""

    progress_interval_s = 0.0
    """Seconds between two calls of `progress`; 0 for none, which costs the load nothing."""

    def run_started(self, model: ModelDescription, data: DataSummary, settings: LevelSettings) -> None:
        """Handle the start of the run: the model is connected and its requests are made."""

    def level_started(self, level: Level) -> None:
        """Handle the start of a level."""

    def progress(self, progress: LevelProgress) -> None:
        """Handle a progress report."""

    def level_finished(self, result: LevelResult) -> None:
        """Handle the result of a level."""

    def notice(self, text: str) -> None:
        """Show a notice to the user; each is sent once."""


SILENT = Observer()


class ProgressMeter:
    """Reports the progress of one load to an observer, each time since the previous report."""

    def __init__(
        self, load: Load, observer: Observer, level: Level, max_windows: int, batch_size: int
    ) -> None:
        self._load = load
        self._observer = observer
        self._level = level
        self._max_windows = max_windows
        self._batch_size = batch_size
        self._at_ns = perf_counter_ns()
        self._index = 0

    def report(self, window: int, server: Callable[[], ServerBreakdown | None] = lambda: None) -> None:
        """Report progress in `window` (0 is the warm-up) if the observer's interval has passed."""
        now_ns = perf_counter_ns()
        passed_ns = now_ns - self._at_ns
        interval_s = self._observer.progress_interval_s
        if not interval_s or passed_ns < interval_s * 1e9:
            return
        good = succeeded(self._load.records.since(self._index))
        self._at_ns, self._index = now_ns, len(self._load.records)
        percentiles_ns: dict[float, int] = {}
        if len(good):
            places = {p: rank(p, len(good)) for p in WATCHED}
            ordered = np.partition(elapsed_ns(good, "intended_ns", "end_ns"), tuple(places.values()))
            percentiles_ns = {p: int(ordered[place]) for p, place in places.items()}
        self._observer.progress(
            LevelProgress(
                level=self._level,
                window=window,
                max_windows=self._max_windows,
                throughput_infer_per_s=len(good) * self._batch_size * 1e9 / passed_ns,
                percentiles_ns=percentiles_ns,
                failed=self._load.failed,
                failures=tuple(f"{f.code}: {f.message}" for f in self._load.failures().values()),
                server=server(),
            )
        )
