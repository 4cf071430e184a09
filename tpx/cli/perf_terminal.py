"""Output of `tpx perf` while it runs: results on stdout as they arrive, progress on stderr."""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter_ns
from typing import TYPE_CHECKING

from tpx.cli.messages import complain, fitted, terminal_width
from tpx.errors import MeasurementError
from tpx.perf.clients.model import ModelDescription
from tpx.perf.levels import Level
from tpx.perf.observer import LevelProgress, Observer
from tpx.perf.options import SessionSpec
from tpx.perf.report.level_text import level_block
from tpx.perf.report.model import data_line, settings_block
from tpx.perf.results import DataSummary, LevelResult
from tpx.perf.settings import LevelSettings
from tpx.report.strangers import harmless

if TYPE_CHECKING:
    from rich.live import Live

LIVE_INTERVAL_S = 0.5


def tell(text: str) -> None:
    """Print results to stdout. Raises MeasurementError if that fails, as on a full disk."""
    try:
        print(fitted(text, terminal_width()), end="", flush=True)
    except BrokenPipeError:
        raise
    except OSError as exc:
        # otherwise the rest of the buffer would fail again when the interpreter exits
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise MeasurementError(f"cannot write to stdout: {exc.strerror}") from exc


EVERY_STEP = 2
"""Number of -v that logs every step."""


class _Lines(logging.Handler):
    """Writes to the current stderr, which a dashboard on a terminal replaces."""

    def emit(self, record: logging.LogRecord) -> None:
        complain(f"* {self.format(record)}")


@contextmanager
def every_step(verbose: int) -> Iterator[None]:
    """Log every step to stderr until the context ends, if the user asked for it."""
    if verbose < EVERY_STEP:
        yield
        return
    log, lines = logging.getLogger("tpx.perf"), _Lines()
    level = log.level
    log.setLevel(logging.DEBUG)
    log.addHandler(lines)
    try:
        yield
    finally:
        log.removeHandler(lines)
        log.setLevel(level)


class _LiveView:
    """The dashboard of one run, drawn on stderr while a level is measured."""

    def __init__(self, config: SessionSpec) -> None:
        from rich.console import Console  # late: importing rich is a tenth of the start-up time

        from tpx.perf.report.live import Dashboard

        self._console = Console(stderr=True)
        self._dashboard = Dashboard(config)
        self._live: Live | None = None

    def level_started(self, level: Level) -> None:
        from rich.live import Live

        self._dashboard.level_started(level, perf_counter_ns())
        self._live = Live(console=self._console, transient=True, auto_refresh=False, redirect_stdout=False)
        self._live.start()
        self._draw(self._live)

    def progress(self, progress: LevelProgress) -> None:
        self._dashboard.add_progress(progress)
        if self._live is not None:
            self._draw(self._live)

    def level_finished(self, result: LevelResult) -> None:
        """Erase the drawing, and add the level to the table of measured levels."""
        self.hide()
        self._dashboard.level_finished(result, perf_counter_ns())

    def hide(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def print(self, text: str) -> None:
        self._console.print(harmless(text), markup=False, highlight=False)

    def _draw(self, live: "Live") -> None:
        live.update(self._dashboard.text(self._console.width, perf_counter_ns()), refresh=True)


class Terminal(Observer):
    """Prints results as they arrive, and shows progress if stderr is a terminal."""

    def __init__(self, config: SessionSpec) -> None:
        self._config = config
        self._decoupled = False
        self._live: _LiveView | None = None
        if config.output.live and sys.stderr.isatty():
            self._live = _LiveView(config)
        self.progress_interval_s = LIVE_INTERVAL_S if self._live else 0.0
        self.measuring = False
        """True once a level has begun; before that there is nothing to finish."""

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.hide()

    def run_started(self, model: ModelDescription, data: DataSummary, settings: LevelSettings) -> None:
        config = self._config
        if config.inputs.files:
            tell(data_line(data) + "\n")
        self._decoupled = model.decoupled
        tell(settings_block(config, model, asynchronous=settings.asynchronous) + "\n")

    def level_started(self, level: Level) -> None:
        self.measuring = True
        if self._live:
            self._live.level_started(level)

    def progress(self, progress: LevelProgress) -> None:
        if self._live:
            self._live.progress(progress)

    def level_finished(self, result: LevelResult) -> None:
        if self._live:
            self._live.level_finished(result)
        tell(level_block(result, self._config, decoupled=self._decoupled))
        if result.reason:
            complain(result.reason)
        for warning in result.warnings:
            self.notice(warning)

    def notice(self, text: str) -> None:
        if self._live:
            self._live.print(f"WARNING: {text}")
        else:
            complain(f"WARNING: {text}")
