"""Write every report of a run, from the run alone: pages, summaries, single configurations, text formats."""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from tpx.analyzer.options.measuring import ProfileOutputSpec, reports_in
from tpx.analyzer.reports.detail import build_detail, detail_path, detailed_names
from tpx.analyzer.reports.grids import configurations_grid, users_grid
from tpx.analyzer.reports.json import report_text
from tpx.analyzer.reports.page import build
from tpx.analyzer.reports.recommendation import verdict_card
from tpx.analyzer.reports.view import ModelView, ReportView
from tpx.analyzer.results.measurement import group_name
from tpx.analyzer.verdict import Finding
from tpx.perf.objectives import Compliance
from tpx.report import html, pdf
from tpx.report.ci import Case, to_junit, to_markdown
from tpx.report.document import Document, Note, Section, bullets, section
from tpx.report.files import OutputFile, file_output, step_summary, step_summary_path, write_each
from tpx.report.text import sparkline

MOST_FAILURES = 10


def write_reports(view: ReportView, output: ProfileOutputSpec) -> tuple[tuple[str, Path], ...]:
    """Write every requested report; return labels and paths. Raises MeasurementError naming what failed."""
    return write_each(_iter_outputs(view, output))


def _iter_outputs(view: ReportView, output: ProfileOutputSpec) -> Iterator[OutputFile]:
    run, main = view.run, output.html_path
    link = "" if main is None else main.name

    def file(label: str, path: Path | None, content: Callable[[], str | bytes]) -> OutputFile:
        return file_output(label, path, content, parents=True)

    def page(label: str, path: Path | None, make: Callable[[], Document]) -> OutputFile:
        return file(label, path, lambda: html.render(make()))

    yield page("Report", main, lambda: build(_link_view(view, output, main or Path())))
    yield file("PDF", output.pdf, lambda: pdf.render(build(view, data=False)))
    yield file("Markdown", output.markdown, lambda: markdown_text(view, link))
    yield file("JSON", output.json, lambda: report_text(view))
    yield file("JUnit", output.junit, lambda: junit_text(view))
    yield step_summary(step_summary_path() if output.step_summary else None, lambda: markdown_text(view))
    if not output.skip_summary_reports and len(run.models) > 1:
        # the page of one model of several, at Model Analyzer's path
        for model in run.models:
            alone = replace(view, run=replace(run, models=(model,)))
            path = reports_in(view.export_path) / "summaries" / model.model / "result_summary.html"
            yield page("Summary", path, partial(build, _link_view(alone, output, path, main)))
    if not output.skip_detailed_reports:
        for name in detailed_names(view):
            path = detail_path(view.export_path, name)
            parent = "" if main is None else _make_href(main, path)
            linked = replace(view, hrefs={}, parent=parent)
            yield page("Details", path, partial(build_detail, linked, name))


def _link_view(
    view: ReportView, output: ProfileOutputSpec, page: Path, parent: Path | None = None
) -> ReportView:
    """Return the view of a page, with links relative to it, so that the export path can be moved."""
    names = () if output.skip_detailed_reports else detailed_names(view)
    hrefs = {name: _make_href(detail_path(view.export_path, name), page) for name in names}
    return replace(view, hrefs=hrefs, parent="" if parent is None else _make_href(parent, page))


def _make_href(target: Path, page: Path) -> str:
    return Path(os.path.relpath(target, page.parent)).as_posix()


def markdown_text(view: ReportView, link: str = "") -> str:
    """Return verdicts, best configurations and failures as Markdown; `link` is the URL of the report."""
    started = view.run.started
    host = started.provenance.host
    where = ", ".join(host[key] for key in ("Host", "Processor", "GPU") if host.get(key, "none") != "none")
    document = Document(
        product="analyze",
        title=f"Model analysis: {', '.join(map(group_name, started.models))}",
        subtitle=f"{where} \u00b7 {started.provenance.started}",
        notice="" if view.run.outcome == "complete" else "The run did not come to its end.",
        sections=tuple(part for model in view.models for part in _summarize_model(model)),
    )
    return to_markdown(document, link)


def _summarize_model(view: ModelView) -> Iterator[Section]:
    yield Section(title=view.verdict.model, blocks=(verdict_card(view),))
    if view.verdict.ranking:
        table = configurations_grid("configurations", view)
        ranked = view.verdict.best or view.verdict.ranking[0]
        ordered = ranked.by_load
        tails = sparkline([m.p99_ns for m in ordered if m.p99_ns is not None])
        text = f"`{ranked.name}` from {ordered[0].load} to {ordered[-1].load}: throughput "
        text += f"`{sparkline([m.throughput for m in ordered])}`" + (
            f" \u00b7 p99 `{tails}`" if tails else ""
        )
        yield from section("", table, Note(text=text), users_grid("users", view))
    failures = dict.fromkeys(f"{f.variant} at {f.load}: {f.reason}" for f in view.verdict.run.failures)
    yield from section("", bullets(list(failures)[:MOST_FAILURES]))


def junit_text(view: ReportView) -> str:
    """Return JUnit XML: nothing measured is an error, a missed limit a failure; borderline or undecided is
    skipped.
    """
    cases = [case for model in view.models for case in _iter_cases(model)]
    return to_junit("tpx analyze", cases, started=view.run.started.provenance.started)


def _iter_cases(view: ModelView) -> Iterator[Case]:
    verdict = view.verdict
    text = f"{verdict.sentence}. {verdict.detail}"
    spent_s = sum(m.duration_ns for v in verdict.run.variants for m in v.measurements) / 1e9
    case = Case(suite=view.verdict.model, name="verdict", time_s=spent_s, output=text)
    if verdict.finding is Finding.NOTHING:
        case = replace(case, outcome="error", message=text, kind=verdict.finding.value)
    elif verdict.finding is Finding.NONE_SATISFIES:
        case = replace(case, outcome="failure", message=text, kind=verdict.finding.value)
    elif verdict.finding is Finding.UNDECIDED:
        case = replace(case, outcome="skipped", message=text)
    yield case
    best = verdict.best
    if best is None:
        return
    for limit in view.verdict.limits:
        case = Case(suite=f"{view.verdict.model}.constraints", name=str(limit))
        compliance = limit.compliance(best.figures)
        if compliance is Compliance.VIOLATED:
            missed = f"{best.name}: {limit.miss(best.figures)}"
            case = replace(case, outcome="failure", message=missed, kind="constraint")
        elif compliance is Compliance.UNDECIDED:
            case = replace(case, outcome="skipped", message="borderline: the interval lies on both sides")
        yield case
