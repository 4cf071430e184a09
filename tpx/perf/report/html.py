"""The page of a run: one HTML file that needs nothing else."""

from tpx.pages import html
from tpx.perf.report.page import PerfPage


def render_page(page: PerfPage) -> str:
    """The view model laid out as HTML."""
    return html.render("perf_report.html.j2", page)
