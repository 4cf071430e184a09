"""Telling whoever watches a run how it goes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from tpx.perf.clients.model import ModelDescription
from tpx.perf.levels import Level
from tpx.perf.results import DataSummary, LevelResult, ServerBreakdown
from tpx.perf.settings import LevelSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A look at a level that is being measured; the figures are those of the time since the last look."""

    level: Level
    window: int
    max_windows: int
    throughput_infer_per_s: float
    percentiles_ns: Mapping[float, int]
    """Of latency; empty where no request succeeded."""
    failed: int
    """Of the whole level."""
    failures: tuple[str, ...] = ()
    """The kinds of failure, each with the first one's words."""
    server: ServerBreakdown | None = None
    """The server's own account of the last window."""


class Observer(Protocol):
    """Hears about a run as it happens."""

    progress_interval_s: float
    """Seconds between two calls of `progress`; 0 for none, which costs the load nothing."""

    def run_started(self, model: ModelDescription, data: DataSummary, settings: LevelSettings) -> None:
        """The server has said what the model is, and its requests are made; the levels follow, each by these
        settings."""

    def level_started(self, level: Level) -> None: ...

    def progress(self, progress: Progress) -> None: ...

    def level_finished(self, result: LevelResult) -> None: ...

    def notice(self, text: str) -> None:
        """Something that the user should know, once."""


class Silent:
    """An Observer that does nothing."""

    progress_interval_s = 0.0

    def run_started(self, model: ModelDescription, data: DataSummary, settings: LevelSettings) -> None:
        """Nobody listens."""

    def level_started(self, level: Level) -> None:
        """Nobody listens."""

    def progress(self, progress: Progress) -> None:
        """Nobody listens."""

    def level_finished(self, result: LevelResult) -> None:
        """Nobody listens."""

    def notice(self, text: str) -> None:
        """Nobody listens."""


SILENT = Silent()
