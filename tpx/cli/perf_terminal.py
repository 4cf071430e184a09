"""What a user of `tpx perf` sees while it runs: results on stdout as they come, how it goes on stderr."""

import os
import sys
from time import perf_counter_ns

from rich.console import Console
from rich.live import Live

from tpx.errors import MeasurementError
from tpx.perf.clients.model import ModelDescription
from tpx.perf.observer import Progress
from tpx.perf.options import PerfConfig
from tpx.perf.report.console import data_line, settings_block
from tpx.perf.report.level_text import Shown, level_block
from tpx.perf.report.live import Dashboard
from tpx.perf.results import DataSummary, LevelResult
from tpx.perf.settings import Level, LevelSettings

LIVE_INTERVAL_S = 0.5


def tell(text: str) -> None:
    """Results go to stdout. Raises MeasurementError where it takes nothing more, as on a full disk."""
    try:
        print(text, end="", flush=True)
    except BrokenPipeError:
        raise
    except OSError as exc:
        # what is left in the buffer would fail again when the interpreter ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise MeasurementError(f"cannot write to stdout: {exc.strerror}") from exc


class Terminal:
    """An Observer that prints results as they come, and where stderr is a terminal shows how it goes."""

    def __init__(self, config: PerfConfig) -> None:
        self._config = config
        self._settings = config.level_settings
        self._shown = Shown(protocol=config.protocol, verbose=config.verbose > 0)
        self._console = Console(stderr=True)
        self._dashboard = Dashboard(config)
        self._live: Live | None = None
        shows = self._console.is_terminal and config.shows_live
        self.progress_interval_s = LIVE_INTERVAL_S if shows else 0.0
        self.measuring = False
        """Whether a level has begun: before that there is nothing to finish."""

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        self._hide()

    def run_started(self, model: ModelDescription, data: DataSummary, settings: LevelSettings) -> None:
        config = self._config
        if config.data_files:
            tell(data_line(data) + "\n")
        self._settings = settings
        self._shown = Shown(
            protocol=config.protocol,
            with_engine=settings.with_engine,
            polls=settings.poll == "busy",
            decoupled=model.decoupled,
            verbose=config.verbose > 0,
        )
        tell(settings_block(config, model, asynchronous=settings.asynchronous) + "\n")

    def level_started(self, level: Level) -> None:
        self.measuring = True
        if self.progress_interval_s:
            self._dashboard.level_started(level, perf_counter_ns())
            self._live = Live(
                console=self._console, transient=True, auto_refresh=False, redirect_stdout=False
            )
            self._live.start()
            self._show()

    def progress(self, progress: Progress) -> None:
        self._dashboard.look(progress)
        self._show()

    def level_finished(self, result: LevelResult) -> None:
        self._hide()
        self._dashboard.level_finished(result, perf_counter_ns())
        tell(level_block(result, self._shown))
        if result.reason:
            print(result.reason, file=sys.stderr, flush=True)
        for warning in result.warnings:
            self.notice(warning)
        if self._config.explain:
            from tpx.perf.answers.explain import explain  # late

            tell(explain(result, self._settings) + "\n")

    def notice(self, text: str) -> None:
        if self._live is not None:
            self._live.console.print(f"WARNING: {text}", markup=False, highlight=False)
        else:
            print(f"WARNING: {text}", file=sys.stderr, flush=True)

    def _show(self) -> None:
        if self._live is not None:
            text = self._dashboard.text(self._console.width, perf_counter_ns())
            self._live.update(text, refresh=True)

    def _hide(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
