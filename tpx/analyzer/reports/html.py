"""The report page of a run."""

from pathlib import Path

from tpx.analyzer.reports.page import build
from tpx.analyzer.results.run import Run
from tpx.pages import html


def render(run: Run, repository: Path) -> str:
    """The page of a run whose variants lie in the output repository `repository`."""
    return html.render("analyze_report.html.j2", build(run, repository))
