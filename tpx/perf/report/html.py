"""The page of a run: one HTML file that needs nothing else."""

from tpx.perf.report.page import PerfPage
from tpx.report import html


def render_page(page: PerfPage) -> str:
    """The view model laid out as HTML."""
    return html.render("perf_report.html.j2", page)
