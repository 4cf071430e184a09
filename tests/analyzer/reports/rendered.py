"""Reports of a run as HTML pages."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tpx.analyzer.reports.detail import build_detail
from tpx.analyzer.reports.page import build
from tpx.analyzer.reports.view import ReportView
from tpx.analyzer.results.run import Run
from tpx.report import html

REPOSITORY = Path("output")


def view_of(
    run: Run, settings: Mapping[str, object] | None = None, *, export_path: Path = Path(), **choices: Any
) -> ReportView:
    """Return a run as its reports show it, with other choices than its own."""
    return replace(ReportView.of(run, settings, repository=REPOSITORY, export_path=export_path), **choices)


def render(run: Run, settings: Mapping[str, object] | None = None, **choices: Any) -> str:
    """Return the page of a run."""
    return html.render(build(view_of(run, settings, **choices)))


def for_wide_screens(page: str) -> str:
    """Return a page without the second layout of its charts, which narrow screens show."""
    return re.sub(r'<figure class="chart compact">.*?</figure>', "", page, flags=re.DOTALL)


def render_detail(run: Run, name: str, settings: Mapping[str, object] | None = None, **choices: Any) -> str:
    """Return the page of a single configuration."""
    return html.render(build_detail(view_of(run, settings, **choices), name))
