"""The report pages of a run: of all of it, of one model, of one configuration."""

from pathlib import Path

from tpx.analyzer.reports.manner import Manner
from tpx.analyzer.reports.page import Places, build
from tpx.analyzer.results.run import Run
from tpx.report import html


def render(run: Run, places: Places | Path, manner: Manner | None = None) -> str:
    """The page of a run; a path is the output repository that its variants lie in."""
    if isinstance(places, Path):
        places = Places(repository=places)
    return html.render("analyze_report.html.j2", build(run, places, manner))
