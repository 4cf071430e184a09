"""The live dashboard of `tpx perf` on a terminal; imported only where one is shown, since rich costs CPU."""

from time import perf_counter_ns

from rich.console import Console
from rich.live import Live

from tpx.perf.levels import Level
from tpx.perf.observer import LevelProgress
from tpx.perf.options import SessionSpec
from tpx.perf.report.live import Dashboard
from tpx.perf.results import LevelResult


class LiveView:
    """The dashboard of one run, drawn on stderr while a level is measured."""

    def __init__(self, config: SessionSpec) -> None:
        self._console = Console(stderr=True)
        self._dashboard = Dashboard(config)
        self._live: Live | None = None

    def level_started(self, level: Level) -> None:
        """Begin to draw."""
        self._dashboard.level_started(level, perf_counter_ns())
        self._live = Live(console=self._console, transient=True, auto_refresh=False, redirect_stdout=False)
        self._live.start()
        self._draw(self._live)

    def progress(self, progress: LevelProgress) -> None:
        """Draw the newest figures."""
        self._dashboard.look(progress)
        if self._live is not None:
            self._draw(self._live)

    def level_finished(self, result: LevelResult) -> None:
        """Clear what was drawn, and keep the level for the table of those measured."""
        self.hide()
        self._dashboard.level_finished(result, perf_counter_ns())

    def hide(self) -> None:
        """Clear what was drawn."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def print(self, text: str) -> None:
        """Print a line above what is drawn."""
        self._console.print(text, markup=False, highlight=False)

    def _draw(self, live: Live) -> None:
        live.update(self._dashboard.text(self._console.width, perf_counter_ns()), refresh=True)
