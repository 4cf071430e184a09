"""Writing the files of a run or a comparison that is over."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tpx.errors import MeasurementError, TpxError
from tpx.perf.report.csv import CsvOptions, composing_files, csv_text
from tpx.perf.report.json import json_text
from tpx.perf.report.junit import junit_text
from tpx.perf.report.markdown import markdown_text
from tpx.perf.report.model import Report
from tpx.report.step_summary import append, step_summary_path

if TYPE_CHECKING:
    from tpx.perf.report.comparison import Compared


class ComparisonFiles(Protocol):
    """Where a comparison is written; None is nowhere."""

    @property
    def json(self) -> Path | None: ...

    @property
    def junit(self) -> Path | None: ...

    @property
    def markdown(self) -> Path | None: ...


def write_files(report: Report, argv: Sequence[str]) -> None:
    """Write the files that were asked for, except those that are written while measuring.

    Raises MeasurementError naming each file that could not be written; the others are there.
    """
    config = report.config
    wanted: list[tuple[Path | None, Callable[[Path], None]]] = [
        (config.output.csv, lambda path: _write_csv(report, path)),
        (config.output.json, lambda path: write_text(path, json_text(report, argv))),
        (config.output.junit, lambda path: write_text(path, junit_text(report))),
        (config.output.markdown, lambda path: write_text(path, markdown_text(report))),
        (
            step_summary_path() if config.output.step_summary else None,
            lambda path: append(path, markdown_text(report)),
        ),
    ]
    if config.output.html is not None or config.output.pdf is not None:
        from tpx.perf.report.page import build  # late: the page takes longer to import than to write
        from tpx.report.html import render, write_html
        from tpx.report.pdf import write_pdf

        page = build(report, argv)
        wanted.append((config.output.html, lambda path: write_html(render(page), path)))
        wanted.append((config.output.pdf, lambda path: write_pdf(page, path)))
    write_each(wanted)


def write_comparison(files: ComparisonFiles, compared: "Compared", document: Mapping[str, object]) -> None:
    """Write what was asked for of a comparison; `document` is its JSON.

    Raises MeasurementError naming each file that could not be written; the others are there.
    """
    from tpx.perf.report.comparison import comparison_junit, comparison_markdown  # late, as the page

    write_each(
        [
            (files.json, lambda path: write_text(path, json.dumps(document, indent=1) + "\n")),
            (files.junit, lambda path: write_text(path, comparison_junit(compared))),
            (files.markdown, lambda path: write_text(path, comparison_markdown(compared))),
        ]
    )


def write_each(wanted: Sequence[tuple[Path | None, Callable[[Path], None]]]) -> None:
    """Write the files that were asked for.

    Raises MeasurementError naming each that could not be written; the others are there.
    """
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
        verbose=config.output.verbose_csv,
        decoupled=report.model.decoupled,
        metrics=config.metrics.collect_metrics,
    )
    write_text(path, csv_text(report.levels, options))
    for beside, text in composing_files(report.levels, path):
        write_text(beside, text)


def write_text(path: Path, text: str) -> None:
    """Write a file. Raises MeasurementError saying why it could not be written, and leaves no half of a new
    one."""
    fresh = not path.exists()
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as exc:
        if fresh:
            path.unlink(missing_ok=True)
        raise MeasurementError(f"cannot write {path}: {exc.strerror}") from exc
