"""The page of a run: one HTML file that needs nothing else."""

from collections.abc import Sequence

from tpx.pages import html
from tpx.perf.report.model import Report
from tpx.perf.report.page import build


def report_page(report: Report, argv: Sequence[str]) -> str:
    """The page of a run that was started with these words."""
    return html.render("perf_report.html.j2", build(report, argv))
