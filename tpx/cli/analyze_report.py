"""`tpx analyze report`: the reports of a finished run again, of all of it or of single configurations."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from tpx.analyzer.options.file import read_yaml
from tpx.analyzer.options.values import words
from tpx.analyzer.reports.detail import render_detail
from tpx.analyzer.reports.export import CsvFiles, write_csv
from tpx.analyzer.reports.files import ReportFiles, write_reports
from tpx.analyzer.reports.page import Places
from tpx.analyzer.results.journal import read_last_run
from tpx.analyzer.results.run import Run
from tpx.cli.analyze_runs import journal_of, show_written
from tpx.errors import UsageError
from tpx.options import Option, build, given_in_argv, given_in_mapping, nearest
from tpx.pages.html import write_html, write_pdf

_RUN = "Run"
_WHAT = "What is written"
ENDINGS = {"html": "html", "pdf": "pdf", "csv": "csv", "markdown": "md", "json": "json", "junit": "xml"}
"""Format -> how its files end."""


def read_names(value: Any) -> tuple[str, ...]:
    """`a,b`, or a list of names; Model Analyzer's form with plots of each configuration is told apart."""
    items = value if isinstance(value, list) else [value]
    if any(isinstance(item, Mapping) for item in items):
        raise ValueError("expected names: the plots of a configuration are fixed in tpx's reports")
    return words(value)


def read_plots(value: Any) -> tuple[str, ...]:
    """Model Analyzer's own plots, which there are none of."""
    if value:
        raise ValueError(
            "plots are not supported by this version of tpx: its reports have plots of their own"
        )
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportConfig:
    """Which run, which configurations, in which formats."""

    config_file: Annotated[
        Path | None, Option("YAML file with these options as keys", ("-f",), _RUN, "FILE")
    ] = None
    export_path: Annotated[
        Path, Option("export path of the run, where its reports are written too", ("-e",), _RUN, "DIR")
    ] = Path()
    checkpoint_directory: Annotated[
        Path | None,
        Option("directory of its run.jsonl, where that is not in the export path", ("-s",), _RUN, "DIR"),
    ] = None
    report_model_configs: Annotated[
        tuple[str, ...],
        Option(
            "configurations of one model, each with a detailed report; the whole run without it",
            ("-n",),
            _WHAT,
            "NAME,NAME",
            comma=True,
            read=read_names,
        ),
    ] = ()
    output_formats: Annotated[
        tuple[str, ...],
        Option(
            "html, pdf, csv, markdown, json, junit", ("-o",), _WHAT, "FORMAT,FORMAT", comma=True, read=words
        ),
    ] = ("html",)
    plots: Annotated[
        tuple[str, ...],
        Option("tpx's reports have plots of their own", (), _WHAT, parse=read_plots, read=read_plots),
    ] = ()
    mode: Annotated[
        Literal["online", "offline"], Option("reports show both sides", (), _WHAT, inert=True)
    ] = "online"
    always_report_gpu_metrics: Annotated[
        bool,
        Option(
            "reports have GPU columns wherever there is a GPU",
            ("--always_report-gpu-metrics",),
            _WHAT,
            inert=True,
        ),
    ] = False

    def __post_init__(self) -> None:
        for name in self.output_formats:
            if name not in ENDINGS:
                why = ": charts are in the HTML page, as SVG" if name == "png" else nearest(name, ENDINGS)
                known = ", ".join(ENDINGS)
                raise UsageError(f"--output-formats: there is no '{name}'{why} (there are: {known})")


def report(argv: Sequence[str]) -> int:
    """`tpx analyze report`: 0 when every report is written."""
    config = _read(argv)
    path = journal_of(config.checkpoint_directory or config.export_path)
    run = Run.from_records(read_last_run(path))
    if config.report_model_configs:
        _write_detailed(run, config)
    else:
        _write_whole(run, config)
    return 0


def _read(argv: Sequence[str]) -> ReportConfig:
    given = given_in_argv(ReportConfig, argv)
    path = given.get("config_file")
    if path is not None:
        base = given_in_mapping(ReportConfig, read_yaml(path), source=str(path))
        given = {**base, **given}
    return build(ReportConfig, given)


def _check_names(run: Run, names: Sequence[str]) -> None:
    """Raise UsageError for a configuration that was not measured, and for those of several models."""
    models = {v.variant.name: model.model for model in run.models for v in model.measured}
    for name in names:
        if name not in models:
            near = nearest(name, models)
            raise UsageError(f"--report-model-configs: the run has not measured '{name}'{near}")
    concerned = sorted({models[name] for name in names})
    if len(concerned) > 1:
        raise UsageError(
            f"--report-model-configs: configurations of one model at a time, not of {', '.join(concerned)}"
        )


def _only(run: Run, name: str) -> Run:
    """The run as far as one configuration goes, beside the default that it is compared with."""
    models = []
    for model in run.models:
        if any(variant.variant.name == name for variant in model.variants):
            kept = tuple(v for v in model.variants if v.variant.name == name or v.variant.is_default)
            models.append(replace(model, variants=kept))
    return replace(run, models=tuple(models))


def _write_whole(run: Run, config: ReportConfig) -> None:
    """Every report of the run, in these formats, where `profile` writes them."""
    place, wanted = config.export_path, set(config.output_formats)

    def named(name: str) -> Path | None:
        return place / f"report.{ENDINGS[name]}" if name in wanted else None

    files = ReportFiles(
        export_path=place,
        repository=_repository(run),
        html=named("html"),
        pdf=named("pdf"),
        markdown=named("markdown"),
        json=named("json"),
        junit=named("junit"),
        summaries="html" in wanted,
        detailed="html" in wanted,
    )
    written = write_reports(run, files)
    for note in written.notes:
        print(f"note: {note}", file=sys.stderr)
    show_written(written)
    if "csv" in wanted:
        for path in write_csv(run, _csv_files(run, place / "results")):
            print(f"Report: {path}")


def _write_detailed(run: Run, config: ReportConfig) -> None:
    """A report of each configuration in these formats."""
    _check_names(run, config.report_model_configs)
    lacking = sorted(set(config.output_formats) - {"html", "pdf", "csv"})
    if lacking:
        raise UsageError(f"--output-formats {lacking[0]} is of a whole run: leave --report-model-configs out")
    for name in config.report_model_configs:
        place = config.export_path / "reports" / "detailed" / name
        for written in dict.fromkeys(config.output_formats):
            for path in _write_one(run, name, written, place, config.export_path):
                print(f"Report: {path}")


def _write_one(run: Run, name: str, written: str, place: Path, export_path: Path) -> tuple[Path, ...]:
    if written == "csv":
        return write_csv(_only(run, name), _csv_files(run, place))
    page = render_detail(run, name, Places(repository=_repository(run), export_path=export_path))
    path = place / f"detailed_report.{written}"
    if written == "pdf":
        write_pdf(page, path)
    else:
        write_html(page, path)
    return (path,)


def _repository(run: Run) -> Path:
    return Path(str(run.started.settings.get("output_model_repository_path", "output_model_repository")))


def _csv_files(run: Run, directory: Path) -> CsvFiles:
    settings = run.started.settings
    return CsvFiles(
        directory=directory,
        inference=str(settings.get("filename_model_inference", "metrics-model-inference.csv")),
        gpu=str(settings.get("filename_model_gpu", "metrics-model-gpu.csv")),
        server_only=str(settings.get("filename_server_only", "metrics-server-only.csv")),
        with_memory=bool(settings.get("collect_cpu_metrics", False)),
        inference_fields=tuple(settings.get("inference_output_fields", ())),
        gpu_fields=tuple(settings.get("gpu_output_fields", ())),
        server_fields=tuple(settings.get("server_output_fields", ())),
    )
