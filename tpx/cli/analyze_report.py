"""`tpx analyze report`: the reports of a finished run again, of all of it or of single configurations."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from tpx.analyzer.options.file import read_yaml
from tpx.analyzer.options.values import words
from tpx.analyzer.reports.export import CsvFiles, write_csv
from tpx.analyzer.reports.html import render
from tpx.analyzer.results.journal import read_last_run
from tpx.analyzer.results.run import Run
from tpx.cli.analyze_runs import journal_of
from tpx.errors import UsageError
from tpx.options import Option, build, given_in_argv, given_in_mapping, nearest
from tpx.pages.html import write_html, write_pdf

_RUN = "Run"
_WHAT = "What is written"


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
        tuple[str, ...], Option("html, pdf, csv", ("-o",), _WHAT, "FORMAT,FORMAT", comma=True, read=words)
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
            if name not in WRITERS:
                why = ": charts are in the HTML page, as SVG" if name == "png" else nearest(name, WRITERS)
                known = ", ".join(WRITERS)
                raise UsageError(f"--output-formats: there is no '{name}'{why} (there are: {known})")


def report(argv: Sequence[str]) -> int:
    """`tpx analyze report`: 0 when every report is written."""
    config = _read(argv)
    path = journal_of(config.checkpoint_directory or config.export_path)
    run = Run.from_records(read_last_run(path))
    if not config.report_model_configs:
        _write(run, config, config.export_path, "report")
        return 0
    _check_names(run, config.report_model_configs)
    for name in config.report_model_configs:
        place = config.export_path / "reports" / "detailed" / name
        _write(_only(run, name), config, place, "detailed_report")
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


def _write(run: Run, config: ReportConfig, place: Path, name: str) -> None:
    for written in dict.fromkeys(config.output_formats):
        for path in WRITERS[written](run, place, name):
            print(f"Report: {path}")


def _page(run: Run) -> str:
    repository = run.started.settings.get("output_model_repository_path", "output_model_repository")
    return render(run, Path(str(repository)))


def _html(run: Run, place: Path, name: str) -> tuple[Path, ...]:
    write_html(_page(run), place / f"{name}.html")
    return (place / f"{name}.html",)


def _pdf(run: Run, place: Path, name: str) -> tuple[Path, ...]:
    write_pdf(_page(run), place / f"{name}.pdf")
    return (place / f"{name}.pdf",)


def _csv(run: Run, place: Path, name: str) -> tuple[Path, ...]:
    settings = run.started.settings
    whole = name == "report"
    return write_csv(
        run,
        CsvFiles(
            directory=place / "results" if whole else place,
            inference=str(settings.get("filename_model_inference", "metrics-model-inference.csv")),
            gpu=str(settings.get("filename_model_gpu", "metrics-model-gpu.csv")),
            server_only=str(settings.get("filename_server_only", "metrics-server-only.csv")),
            with_memory=bool(settings.get("collect_cpu_metrics", False)),
        ),
    )


Writer = Callable[[Run, Path, str], tuple[Path, ...]]
WRITERS: Mapping[str, Writer] = {"html": _html, "pdf": _pdf, "csv": _csv}
"""Format -> what writes a run into a directory under a name, and returns the files."""
