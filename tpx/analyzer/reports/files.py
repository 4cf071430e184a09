"""Every report of a run, written from the run alone: pages, summaries, single configurations, texts."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tpx.analyzer.limits import limits_of
from tpx.analyzer.objectives import RankedVariant
from tpx.analyzer.reports.card import verdict_card
from tpx.analyzer.reports.detail import build_detail, detail_path, detailed_names
from tpx.analyzer.reports.grids import configurations_grid
from tpx.analyzer.reports.json import report_text
from tpx.analyzer.reports.page import Places, build, table_context
from tpx.analyzer.reports.plots import Manner
from tpx.analyzer.results.run import ModelRun, Run
from tpx.analyzer.verdict import Finding, Verdict, judge
from tpx.report import junit, markdown
from tpx.report.document import Document, Note, Section, bullets, section
from tpx.report.files import Output, step_summary, text_output, write_each, write_text
from tpx.report.html import render
from tpx.report.junit import Case
from tpx.report.pdf import write_pdf
from tpx.report.text import sparkline

MOST_FAILURES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFiles:
    """Files that a run writes; None is not wanted."""

    export_path: Path
    repository: Path
    """The output repository, whose files the reports name."""
    html: Path | None = None
    pdf: Path | None = None
    markdown: Path | None = None
    json: Path | None = None
    junit: Path | None = None
    step_summary: Path | None = None
    """The file of a CI job that the Markdown is appended to."""
    summaries: bool = True
    """A page for each model of a run over several, where Model Analyzer has it."""
    detailed: bool = True
    """A page for each of the best configurations and the default."""
    manner: Manner | None = None
    """None is as the run says itself."""


def write_reports(run: Run, files: ReportFiles) -> tuple[tuple[str, Path], ...]:
    """Write every report that `files` asks for; return their labels and paths.

    Raises MeasurementError naming every file that could not be written; the others are there.
    """
    return write_each(_outputs(run, files))


def _outputs(run: Run, files: ReportFiles) -> Iterator[Output]:
    manner, link = files.manner, "" if files.html is None else files.html.name
    yield _page("Report", files.html, lambda path: build(run, _places(run, files, path), manner))
    places = Places(repository=files.repository, export_path=files.export_path)
    yield Output(
        label="PDF",
        path=files.pdf,
        write=lambda path: write_pdf(build(run, places, manner, data=False), path),
    )
    yield text_output("Markdown", files.markdown, lambda: markdown_text(run, link, manner), parents=True)
    yield text_output("JSON", files.json, lambda: report_text(run), parents=True)
    yield text_output("JUnit", files.junit, lambda: junit_text(run), parents=True)
    yield step_summary(files.step_summary, lambda: markdown_text(run, manner=manner))
    if files.summaries and len(run.models) > 1:
        for model in run.models:
            yield _summary(replace(run, models=(model,)), files)
    if files.detailed:
        for name in detailed_names(run):
            yield _details(run, name, files)


def _page(label: str, path: Path | None, made: Callable[[Path], Document]) -> Output:
    return Output(
        label=label, path=path, write=lambda place: write_text(place, render(made(place)), parents=True)
    )


def _summary(alone: Run, files: ReportFiles) -> Output:
    """Return the page of one model of several, where Model Analyzer has it."""
    path = files.export_path / "reports" / "summaries" / alone.models[0].model / "result_summary.html"
    return _page(
        "Summary", path, lambda place: build(alone, _places(alone, files, place, files.html), files.manner)
    )


def _details(run: Run, name: str, files: ReportFiles) -> Output:
    path = files.export_path / detail_path(name)
    places = Places(
        repository=files.repository,
        export_path=files.export_path,
        parent="" if files.html is None else _href(files.html, path),
    )
    return _page("Details", path, lambda _: build_detail(run, name, places, files.manner))


def _places(run: Run, files: ReportFiles, page: Path, parent: Path | None = None) -> Places:
    """Return what a page names; links lead from its own directory, so that the export path can be moved."""
    names = detailed_names(run) if files.detailed else ()
    return Places(
        repository=files.repository,
        export_path=files.export_path,
        hrefs={name: _href(files.export_path / detail_path(name), page) for name in names},
        parent="" if parent is None else _href(parent, page),
    )


def _href(target: Path, page: Path) -> str:
    return Path(os.path.relpath(target, page.parent)).as_posix()


def markdown_text(run: Run, link: str = "", manner: Manner | None = None) -> str:
    """Return the summary of a run for the page of a CI job; `link` leads to the whole report."""
    return markdown.render(brief(run, manner or Manner.of(run)), link)


def brief(run: Run, manner: Manner) -> Document:
    """Return each model's verdict, best configurations and failures."""
    provenance = run.started.provenance
    where = ", ".join(
        provenance.host[key] for key in ("Host", "Processor", "GPU") if provenance.host.get(key)
    )
    sections = [part for model in run.models for part in _brief(model, run, manner)]
    return Document(
        product="analyze",
        title=f"Model analysis: {', '.join(run.started.models)}",
        subtitle=f"{where} \u00b7 {provenance.started}",
        notice="" if run.outcome == "complete" else "The run did not come to its end.",
        sections=tuple(sections),
    )


def _brief(model: ModelRun, run: Run, manner: Manner) -> Iterator[Section]:
    verdict = judge(model, run.started.goals)
    context = table_context(verdict, run, {}, manner)
    yield Section(title=model.model, blocks=(verdict_card(verdict, run, gpus=context.gpus),))
    if verdict.ranking:
        table = configurations_grid("configurations", verdict.ranking, context)
        yield from section("", table, _curve(verdict.best or verdict.ranking[0]))
    failures = dict.fromkeys(f"{f.variant} at {f.load}: {f.reason}" for f in model.failures)
    yield from section("", bullets(list(failures)[:MOST_FAILURES]))


def _curve(ranked: RankedVariant) -> Note:
    ordered = sorted(ranked.ordered, key=lambda m: (m.load.batch_size, m.load.value))
    tails = sparkline([m.latency.p99_ns for m in ordered if m.latency.p99_ns is not None])
    p99 = f" \u00b7 p99 `{tails}`" if tails else ""
    through = sparkline([m.throughput for m in ordered])
    return Note(
        text=f"`{ranked.name}` from {ordered[0].load} to {ordered[-1].load}: throughput `{through}`{p99}"
    )


def junit_text(run: Run) -> str:
    """Return the document.

    A model without a measurement is an error, a constraint that the recommended configuration misses a
    failure, a constraint of which nothing is certain is skipped.
    """
    cases = [case for model in run.models for case in _model(model, run)]
    return junit.render("tpx analyze", cases, started=run.started.provenance.started)


def _model(model: ModelRun, run: Run) -> Iterator[Case]:
    verdict = judge(model, run.started.goals)
    text = f"{verdict.sentence}. {verdict.detail}"
    spent_s = sum(m.duration_ns for v in model.variants for m in v.measurements) / 1e9
    case = Case(suite=model.model, name="verdict", time_s=spent_s, output=text)
    if verdict.finding is Finding.NOTHING:
        case = replace(case, outcome="error", message=text, kind=verdict.finding.value)
    elif verdict.finding is Finding.NONE_SATISFIES:
        case = replace(case, outcome="failure", message=text, kind=verdict.finding.value)
    yield case
    yield from _constraints(verdict, run)


def _constraints(verdict: Verdict, run: Run) -> Iterator[Case]:
    if verdict.best is None:
        return
    for limit in limits_of(run.started.goals, verdict.model):
        case = Case(suite=f"{verdict.model}.constraints", name=str(limit))
        standing = limit.standing(verdict.best.figures)
        if standing == "missed":
            missed = f"{verdict.best.name}: {limit.miss(verdict.best.figures)}"
            case = replace(case, outcome="failure", message=missed, kind="constraint")
        elif standing == "borderline":
            case = replace(case, outcome="skipped", message="borderline: the interval lies on both sides")
        yield case
