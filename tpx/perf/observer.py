"""Reporting the progress of a run: the seam to what shows it, and the figures of a level until now."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter_ns

import numpy as np

from tpx.perf.clients.model import ModelDescription
from tpx.perf.levels import Level
from tpx.perf.loads.base import Load
from tpx.perf.records import Rows, succeeded
from tpx.perf.results import DataSummary, LevelResult, ServerBreakdown
from tpx.perf.settings import LevelSettings
from tpx.perf.statistics.latency import rank

WATCHED = (50.0, 90.0, 99.0)
"""Percentiles that are reported while a level is measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelProgress:
    """A look at a level that is being measured; the figures are those of the time since the last look."""

    level: Level
    window: int
    max_windows: int
    throughput_infer_per_s: float
    percentiles_ns: Mapping[float, int]
    """Percentiles of latency; empty where no request succeeded."""
    failed: int
    """Failed requests of the whole level."""
    failures: tuple[str, ...] = ()
    """The kinds of failure, each with the first one's words."""
    server: ServerBreakdown | None = None
    """The server's own account of the last window."""


class Observer:
    """Hears about a run as it happens; this one ignores everything."""

    progress_interval_s = 0.0
    """Seconds between two calls of `progress`; 0 for none, which costs the load nothing."""

    def run_started(self, model: ModelDescription, data: DataSummary, settings: LevelSettings) -> None:
        """Hear what the model is and that its requests are made; the levels follow by these settings."""

    def level_started(self, level: Level) -> None:
        """Hear that a level begins."""

    def progress(self, progress: LevelProgress) -> None:
        """Hear how a level goes."""

    def level_finished(self, result: LevelResult) -> None:
        """Hear what became of a level."""

    def notice(self, text: str) -> None:
        """Hear something that the user should know, once."""


SILENT = Observer()


class ProgressMeter:
    """Reports the progress of one load to an observer, each time since the report before."""

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
        """Tell how it goes in a window, 0 of a warm-up, if it is time to."""
        now_ns = perf_counter_ns()
        elapsed_ns = now_ns - self._at_ns
        interval_s = self._observer.progress_interval_s
        if not interval_s or elapsed_ns < interval_s * 1e9:
            return
        good = succeeded(self._load.records.since(self._index))
        self._at_ns, self._index = now_ns, len(self._load.records)
        self._observer.progress(
            LevelProgress(
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
