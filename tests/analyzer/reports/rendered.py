"""Reports of a run as HTML pages."""

import re
from pathlib import Path

from tpx.analyzer.reports.detail import build_detail
from tpx.analyzer.reports.page import Places, build
from tpx.analyzer.reports.plots import Manner
from tpx.analyzer.results.run import Run
from tpx.report import html


def render(run: Run, places: Places | Path, manner: Manner | None = None) -> str:
    """Return the page of a run; a path is the output repository that its variants are in."""
    if isinstance(places, Path):
        places = Places(repository=places)
    return html.render(build(run, places, manner))


def for_wide_screens(page: str) -> str:
    """Return a page without the second layout of its charts, which narrow screens show."""
    return re.sub(r'<figure class="chart compact">.*?</figure>', "", page, flags=re.DOTALL)


def render_detail(run: Run, name: str, places: Places, manner: Manner | None = None) -> str:
    """Return the page of a single configuration."""
    return html.render(build_detail(run, name, places, manner))
