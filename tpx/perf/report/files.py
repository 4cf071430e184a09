"""Writes the files of a finished run."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tpx.perf.report.csv import composing_files, csv_text
from tpx.perf.report.json import json_text
from tpx.perf.report.model import Report, load_name, rate, usec
from tpx.perf.results import LevelResult, Verdict
from tpx.report import markdown
from tpx.report.files import OutputFile, step_summary, step_summary_path, text_output, write_each, write_text
from tpx.report.junit import Case, render


def write_files(report: Report, argv: Sequence[str]) -> None:
    """Write the requested files, except those that are written during the measurement.

    Raises MeasurementError naming each file that could not be written; the others are written.
    """
    config, shown = report.config, by_load(report)
    outputs = [
        OutputFile(label="CSV", path=config.output.csv, write=lambda path: _write_csv(report, path)),
        text_output("JSON", config.output.json, lambda: json_text(report, argv)),
        text_output("JUnit", config.output.junit, lambda: junit_text(shown)),
        text_output("Markdown", config.output.markdown, lambda: markdown_text(shown)),
        step_summary(
            step_summary_path() if config.output.step_summary else None, lambda: markdown_text(report)
        ),
    ]
    if config.output.html is not None or config.output.pdf is not None:
        from tpx.perf.report.page import build  # late: importing the page takes longer than writing it
        from tpx.report import html
        from tpx.report.pdf import write_pdf

        page = build(shown, argv)
        outputs.append(text_output("HTML", config.output.html, lambda: html.render(page)))
        outputs.append(
            OutputFile(label="PDF", path=config.output.pdf, write=lambda path: write_pdf(page, path))
        )
    write_each(outputs)


def by_load(report: Report) -> Report:
    """Return the report with its levels sorted by load; a search measures them in another order."""
    return replace(report, levels=tuple(sorted(report.levels, key=lambda r: r.level.value)))


def markdown_text(report: Report) -> str:
    """Return the summary of a run as Markdown."""
    from tpx.perf.report.page import brief  # late, like the page

    return markdown.render(brief(report))


def _write_csv(report: Report, path: Path) -> None:
    config = report.config
    text = csv_text(
        report.levels,
        verbose=config.output.verbose_csv,
        decoupled=report.model.decoupled,
        metrics=config.metrics.collect_metrics,
    )
    write_text(path, text)
    for beside, text in composing_files(report.levels, path):
        write_text(beside, text)


def junit_text(report: Report) -> str:
    """Return the JUnit document.

    A level that is unstable, borderline, over the limit or invalid for its scenario is a failure; one
    with the verdict ERRORS is an error. With objectives, these decide instead of stability and limits.
    """
    cases = [_level(r, report) for r in report.levels] + list(_objectives(report))
    return render(f"tpx perf {report.model.name}", cases, started=report.started, error=report.error)


def _level(result: LevelResult, report: Report) -> Case:
    made = Case(
        suite=report.model.name,
        name=load_name(result.level),
        time_s=sum(w.duration_ns for w in result.windows) / 1e9,
        output=_figures(result),
    )
    if result.interrupted:
        return replace(made, outcome="skipped", message="the run was interrupted")
    if result.verdict is Verdict.ERRORS:
        return replace(made, outcome="error", message=result.reason, kind=result.verdict.value)
    if result.validity is not None and not result.validity.valid:
        broken = "; ".join(f"{c.name}: {c.advice}" for c in result.validity.conditions if not c.kept)
        return replace(made, outcome="failure", message=f"INVALID: {broken}", kind="scenario")
    if not result.meets_limits and not report.config.answers.slo:
        return replace(made, outcome="failure", message=result.reason, kind=result.verdict.value)
    return made


def _objectives(report: Report) -> Iterator[Case]:
    """Yield each objective at the highest load that meets all, or else at the lowest measured load."""
    if not report.config.answers.slo or not report.levels:
        return
    chosen = report.best or min(report.levels, key=lambda r: r.level.value)
    for assessment in chosen.slo:
        text = assessment.objective.text
        made = Case(suite=f"{report.model.name}.slo", name=text)
        if not assessment.met:
            why = f"{text} at {load_name(chosen.level)}: {assessment.outcome.value}, {assessment.reason}"
            made = replace(made, outcome="failure", message=why, kind="slo")
        yield made


def _figures(result: LevelResult) -> str:
    if result.latency is None:
        return f"no successful request, {result.failed} failed"
    return (
        f"throughput {rate(result.throughput_infer_per_s)} infer/sec, "
        f"mean {usec(result.latency.mean_ns)} usec, "
        f"p50 {usec(result.latency.at(50.0))} usec, p99 {usec(result.latency.at(99.0))} usec, "
        f"{result.requests} requests, {result.failed} failed"
    )
