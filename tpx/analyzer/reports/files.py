"""Every report of a run, written from the run alone: pages, summaries, single configurations, texts."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from tpx.analyzer.reports.detail import build_detail, detail_path, detailed_names
from tpx.analyzer.reports.json import report_text
from tpx.analyzer.reports.junit import junit_text
from tpx.analyzer.reports.manner import Manner
from tpx.analyzer.reports.markdown import markdown_text
from tpx.analyzer.reports.page import Places, build
from tpx.analyzer.results.run import ModelRun, Run
from tpx.errors import MeasurementError, TpxError
from tpx.report.html import render, write_html
from tpx.report.pdf import write_pdf
from tpx.report.step_summary import append


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFiles:
    """What is wanted, and where; None is not wanted."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenReports:
    """Labels and paths of the files that were written."""

    paths: tuple[tuple[str, Path], ...]


def write_reports(run: Run, files: ReportFiles) -> WrittenReports:
    """Write every report that `files` asks for.

    Raises MeasurementError naming every file that could not be written; the others are there.
    """
    written: list[tuple[str, Path]] = []
    problems: list[str] = []
    for label, path, write in _wanted(run, files):
        try:
            write(path)
            written.append((label, path))
        except TpxError as exc:
            problems.append(str(exc))
    if problems:
        raise MeasurementError("; ".join(problems))
    return WrittenReports(paths=tuple(written))


Write = Callable[[Path], None]


def _wanted(run: Run, files: ReportFiles) -> list[tuple[str, Path, Write]]:
    """What each file is called to the user, where it goes, and what writes it."""
    wanted: list[tuple[str, Path, Write]] = []
    if files.html is not None:
        wanted.append(("Report", files.html, lambda path: _page(run, files, path)))
    if files.pdf is not None:
        wanted.append(("PDF", files.pdf, lambda path: _pdf(run, files, path)))
    link = "" if files.html is None else files.html.name
    texts: list[tuple[str, Path | None, Callable[[], str]]] = [
        ("Markdown", files.markdown, lambda: markdown_text(run, link, files.manner)),
        ("JSON", files.json, lambda: report_text(run)),
        ("JUnit", files.junit, lambda: junit_text(run)),
    ]
    wanted += [(label, path, _text_writer(text)) for label, path, text in texts if path is not None]
    if files.step_summary is not None:
        wanted.append(
            (
                "Step summary",
                files.step_summary,
                lambda path: append(path, markdown_text(run, manner=files.manner)),
            )
        )
    if files.summaries and len(run.models) > 1:
        for model in run.models:
            path = files.export_path / "reports" / "summaries" / model.model / "result_summary.html"
            wanted.append(("Summary", path, _summary_writer(run, model, files)))
    if files.detailed:
        for name in detailed_names(run):
            wanted.append(
                ("Details", files.export_path / detail_path(name), _detail_writer(run, name, files))
            )
    return wanted


def _page(run: Run, files: ReportFiles, path: Path) -> None:
    write_html(render(build(run, _places(run, files, path), files.manner)), path)


def _pdf(run: Run, files: ReportFiles, path: Path) -> None:
    places = Places(repository=files.repository, export_path=files.export_path)
    write_pdf(build(run, places, files.manner, data=False), path)


def _places(run: Run, files: ReportFiles, page: Path, parent: Path | None = None) -> Places:
    """Links lead from the page's own directory, so that the export path can be moved as a whole."""
    names = detailed_names(run) if files.detailed else ()
    return Places(
        repository=files.repository,
        export_path=files.export_path,
        hrefs={name: _href(files.export_path / detail_path(name), page) for name in names},
        parent="" if parent is None else _href(parent, page),
    )


def _href(target: Path, page: Path) -> str:
    return Path(os.path.relpath(target, page.parent)).as_posix()


def _summary_writer(run: Run, model: ModelRun, files: ReportFiles) -> Write:
    alone = replace(run, models=(model,))

    def write(path: Path) -> None:
        places = _places(alone, files, path, files.html)
        write_html(render(build(alone, places, files.manner)), path)

    return write


def _detail_writer(run: Run, name: str, files: ReportFiles) -> Write:
    def write(path: Path) -> None:
        places = Places(
            repository=files.repository,
            export_path=files.export_path,
            parent="" if files.html is None else _href(files.html, path),
        )
        write_html(render(build_detail(run, name, places, files.manner)), path)

    return write


def _text_writer(text: Callable[[], str]) -> Write:
    def write(path: Path) -> None:
        write_html(text(), path)

    return write
