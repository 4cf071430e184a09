"""Writing the files of a run that is over."""

from collections.abc import Callable, Sequence
from pathlib import Path

from tpx.errors import MeasurementError, TpxError
from tpx.pages.html import write_html, write_pdf
from tpx.perf.report.csv import CsvOptions, composing_files, csv_text
from tpx.perf.report.html import report_page
from tpx.perf.report.json import json_text
from tpx.perf.report.junit import junit_text
from tpx.perf.report.markdown import markdown_text
from tpx.perf.report.model import Report


def write_files(report: Report, argv: Sequence[str]) -> None:
    """Write all that was asked for but what was written while measuring.

    Raises MeasurementError naming each file that could not be written; the others are there.
    """
    config = report.config
    wanted: list[tuple[Path | None, Callable[[Path], None]]] = [
        (config.csv, lambda path: _write_csv(report, path)),
        (config.json, lambda path: _write(path, json_text(report, argv))),
        (config.junit, lambda path: _write(path, junit_text(report))),
        (config.markdown, lambda path: _write(path, markdown_text(report))),
    ]
    if config.html is not None or config.pdf is not None:
        page = report_page(report, argv)
        wanted.append((config.html, lambda path: write_html(page, path)))
        wanted.append((config.pdf, lambda path: write_pdf(page, path)))
    problems = []
    for path, write in wanted:
        try:
            if path is not None:
                write(path)
        except TpxError as exc:
            problems.append(str(exc))
    if problems:
        raise MeasurementError("; ".join(problems))


def _write_csv(report: Report, path: Path) -> None:
    config = report.config
    options = CsvOptions(
        verbose=config.verbose_csv, decoupled=report.model.decoupled, metrics=config.collect_metrics
    )
    _write(path, csv_text(report.levels, options))
    for beside, text in composing_files(report.levels, path):
        _write(beside, text)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as exc:
        raise MeasurementError(f"cannot write {path}: {exc.strerror}") from exc
