"""`tpx analyze report`: the reports of a finished run again, of all of it or of single configurations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from tpx.analyzer.options import ProfileSpec
from tpx.analyzer.options.file import read_yaml
from tpx.analyzer.reports.detail import build_detail
from tpx.analyzer.reports.files import ReportFiles, write_reports
from tpx.analyzer.reports.page import Places
from tpx.analyzer.reports.plots import Manner, Plot
from tpx.analyzer.reports.tables import CsvFiles, write_csv
from tpx.analyzer.results.journal import read_last_run
from tpx.analyzer.results.run import Run
from tpx.analyzer.values import from_yaml_text, mapping, truth, words
from tpx.cli.analyze_runs import journal_of, show_written
from tpx.errors import UsageError
from tpx.options import build, fields_of, given_in_argv, given_in_mapping, nearest, option
from tpx.report.files import write_text
from tpx.report.html import render
from tpx.report.pdf import require_typst, write_pdf

_RUN = "Run"
_WHAT = "What is written"
ENDINGS = {"html": "html", "pdf": "pdf", "csv": "csv", "markdown": "md", "json": "json", "junit": "xml"}
"""Format -> how its files end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A configuration to report, with its own plots where it has any."""

    name: str
    plots: tuple[Plot, ...] = ()


def read_names(value: Any) -> tuple[Wanted, ...]:
    """`a,b`, or a list of names and of `name: {plots: ...}`."""
    found: list[Wanted] = []
    for item in value if isinstance(value, list) else [value]:
        if not isinstance(item, Mapping):
            found += [Wanted(name=name) for name in words(item)]
            continue
        for name, own in item.items():
            settings = mapping({} if own is None else own, "plots of a configuration")
            strange = sorted(settings.keys() - {"plots"})
            if strange:
                raise ValueError(f"{name}: unknown key '{strange[0]}' (a configuration has: plots)")
            found.append(Wanted(name=str(name), plots=read_plots(settings.get("plots", {}))))
    return tuple(found)


def read_plots(value: Any) -> tuple[Plot, ...]:
    """Names of plots with their title, axes, and whether they are monotonic."""
    return tuple(_plot(name, own) for name, own in mapping(value, "plots").items())


def _plot(name: str, value: Any) -> Plot:
    own = mapping(value, f"title, x_axis and y_axis of plot '{name}'")
    known = ("title", "x_axis", "y_axis", "monotonic")
    for key in own:
        if key not in known:
            raise ValueError(
                f"{name}: unknown key '{key}'{nearest(key, known)} (there are: {', '.join(known)})"
            )
    lacking = [key for key in known[1:3] if key not in own]
    if lacking:
        raise ValueError(f"{name}: missing: {lacking[0]}")
    return Plot(
        name=name,
        title=str(own.get("title", name)),
        x_axis=str(own["x_axis"]),
        y_axis=str(own["y_axis"]),
        monotonic=truth(own.get("monotonic", False)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportConfig:
    """Which run, which configurations, in which formats."""

    config_file: Path | None = option(
        None, "YAML file with these options as keys", "-f", section=_RUN, metavar="FILE"
    )
    export_path: Path = option(
        Path(), "export path of the run, where its reports are written too", "-e", section=_RUN, metavar="DIR"
    )
    checkpoint_directory: Path | None = option(
        None,
        "directory of its run.jsonl, where that is not in the export path",
        "-s",
        section=_RUN,
        metavar="DIR",
    )
    report_model_configs: tuple[Wanted, ...] = option(
        (),
        "configurations of one model, each with a detailed report; the whole run without it",
        "-n",
        section=_WHAT,
        metavar="NAME,NAME",
        parse=read_names,
        read=read_names,
    )
    output_formats: tuple[str, ...] = option(
        ("html",),
        "html, pdf, csv, markdown, json, junit",
        "-o",
        section=_WHAT,
        metavar="FORMAT,FORMAT",
        comma=True,
        read=words,
    )
    plots: tuple[Plot, ...] | None = option(
        None,
        "plots of single configurations, in the place of those of the mode",
        section=_WHAT,
        metavar="{NAME: {title: T, x_axis: TAG, y_axis: TAG}}",
        parse=from_yaml_text(read_plots),
        read=read_plots,
    )
    mode: Literal["online", "offline"] | None = option(
        None,
        "what reports look at: online latency and memory, offline throughput and batches (that of the "
        "run when not given)",
        section=_WHAT,
        metavar="online|offline",
    )
    always_report_gpu_metrics: bool = option(
        False,
        "show figures of GPUs also of models that are cpu_only",
        "--always_report-gpu-metrics",
        section=_WHAT,
    )

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
    if "pdf" in config.output_formats:
        require_typst()
    if config.report_model_configs:
        _write_detailed(run, config)
    else:
        _write_whole(run, config)
    return 0


def _manner(run: Run, config: ReportConfig) -> Manner:
    """As the run says, where the command says nothing else."""
    own = Manner.of(run)
    return Manner(
        mode=config.mode or own.mode,
        gpus_of_all=own.gpus_of_all or config.always_report_gpu_metrics,
        plots=config.plots,
    )


def _read(argv: Sequence[str]) -> ReportConfig:
    given = given_in_argv(ReportConfig, argv)
    path = given.get("config_file")
    if path is not None:
        own = {field.name for field in fields_of(ReportConfig)}
        others = {field.name for field in fields_of(ProfileSpec)} - own  # one file may be for both commands
        content = {k: value for k, value in read_yaml(path).items() if str(k).replace("-", "_") not in others}
        base = given_in_mapping(ReportConfig, content, source=str(path))
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
        manner=_manner(run, config),
        summaries="html" in wanted,
        detailed="html" in wanted,
    )
    show_written(write_reports(run, files))
    if "csv" in wanted:
        for path in write_csv(run, CsvFiles.of(run.started.settings, place / "results", files.manner)):
            print(f"Report: {path}")


def _write_detailed(run: Run, config: ReportConfig) -> None:
    """A report of each configuration in these formats."""
    _check_names(run, [wanted.name for wanted in config.report_model_configs])
    lacking = sorted(set(config.output_formats) - {"html", "pdf", "csv"})
    if lacking:
        raise UsageError(f"--output-formats {lacking[0]} is of a whole run: leave --report-model-configs out")
    manner = _manner(run, config)
    for wanted in config.report_model_configs:
        own = replace(manner, plots=wanted.plots or manner.plots)
        for written in dict.fromkeys(config.output_formats):
            for path in _write_one(run, wanted.name, written, own, config):
                print(f"Report: {path}")


def _write_one(run: Run, name: str, written: str, manner: Manner, config: ReportConfig) -> tuple[Path, ...]:
    place = config.export_path / "reports" / "detailed" / name
    if written == "csv":
        return write_csv(_only(run, name), CsvFiles.of(run.started.settings, place, manner))
    places = Places(repository=_repository(run), export_path=config.export_path)
    path = place / f"detailed_report.{written}"
    document = build_detail(run, name, places, manner)
    if written == "html":
        write_text(path, render(document), parents=True)
    else:
        write_pdf(document, path)
    return (path,)


def _repository(run: Run) -> Path:
    return Path(str(run.started.settings.get("output_model_repository_path", "output_model_repository")))
