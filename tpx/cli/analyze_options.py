"""Options of the `tpx analyze` commands, separate from the code that executes them: help imports only
these.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tpx.analyzer.options import ProfileSpec
from tpx.analyzer.options.file import check_options, collect_options
from tpx.analyzer.options.measuring import JOURNAL
from tpx.analyzer.reports.charts import Plot
from tpx.analyzer.values import Reader, from_yaml_text, mapping, read_fields, truth, within, words
from tpx.analyzer.verdict import plural
from tpx.cli.messages import complain
from tpx.errors import UsageError
from tpx.options import Options, build, nearest, option
from tpx.sources import config_file, doubtful_variables, values_of

_RUN = "Run"
_WHAT = "Reports"
ENDINGS = {"html": "html", "pdf": "pdf", "csv": "csv", "markdown": "md", "json": "json", "junit": "xml"}
"""File suffix by format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedConfiguration:
    """A configuration to report, with its own plots if it has any."""

    name: str
    plots: tuple[Plot, ...] = ()


def read_names(value: Any) -> tuple[ReportedConfiguration, ...]:
    """Parse `a,b`, or a list of names and of `name: {plots: ...}`."""
    found: list[ReportedConfiguration] = []
    for item in value if isinstance(value, list) else [value]:
        if not isinstance(item, Mapping):
            found += [ReportedConfiguration(name=name) for name in words(item)]
            continue
        for name, own in item.items():
            with within(str(name)):
                settings = read_fields(own or {}, "plots of a configuration", {"plots": read_plots})
                found.append(ReportedConfiguration(name=str(name), **settings))
    return tuple(found)


def read_plots(value: Any) -> tuple[Plot, ...]:
    """Parse a map from names of plots to their title, axes, and whether they are monotonic."""
    return tuple(_parse_plot(name, own) for name, own in mapping(value, "plots").items())


def _parse_plot(name: str, value: Any) -> Plot:
    with within(name):
        readers: dict[str, Reader] = {"title": str, "x_axis": str, "y_axis": str, "monotonic": truth}
        own = read_fields(value, f"title, x_axis and y_axis of plot '{name}'", readers)
        lacking = [key for key in ("x_axis", "y_axis") if key not in own]
        if lacking:
            raise ValueError(f"missing: {lacking[0]}")
    return Plot(**{"title": name, **own})


class ReportConfig(Options):
    """Run, configurations and formats to report."""

    config_file: Path | None = config_file("-f", section=_RUN)
    export_path: Path = option(
        Path(), "export path of the run; its reports are written there too", "-e", section=_RUN, metavar="DIR"
    )
    checkpoint_directory: Path | None = option(
        None,
        "directory of its run.jsonl, if that is not in the export path",
        "-s",
        section=_RUN,
        metavar="DIR",
    )
    report_model_configs: tuple[ReportedConfiguration, ...] = option(
        (),
        "configurations of one model to report in detail (default: the whole run)",
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
        "plots of single configurations, instead of those of the mode",
        section=_WHAT,
        metavar="{NAME: {title: T, x_axis: TAG, y_axis: TAG}}",
        parse=from_yaml_text(read_plots),
        read=read_plots,
    )
    mode: Literal["online", "offline"] | None = option(
        None,
        "focus of the reports: online (latency and memory) or offline (throughput and batch sizes) "
        "(default: that of the run)",
        section=_WHAT,
        metavar="online|offline",
    )
    always_report_gpu_metrics: bool = option(
        False, "report GPU metrics for cpu_only models too", "--always_report-gpu-metrics", section=_WHAT
    )

    def __post_init__(self) -> None:
        if not self.output_formats:
            raise UsageError(f"--output-formats names none (there are: {', '.join(ENDINGS)})")
        for name in self.output_formats:
            if name not in ENDINGS:
                why = ": charts are in the HTML page, as SVG" if name == "png" else nearest(name, ENDINGS)
                known = ", ".join(ENDINGS)
                raise UsageError(f"--output-formats: there is no '{name}'{why} (there are: {known})")


_REPOSITORY = "Repository"
_CONFIRM = "Confirmation"


class ApplyConfig(Options):
    """Configuration to apply, and its repository."""

    configuration: str | None = option(
        None,
        "configuration to apply (default: the recommended one)",
        section=_RUN,
        metavar="CONFIGURATION",
        positional=True,
    )
    export_path: Path = option(
        Path(), "export path of the run, its results, or its run.jsonl", "-e", section=_RUN, metavar="PATH"
    )
    model: str | None = option(None, "model to apply, if the run has several", section=_RUN, metavar="NAME")
    model_repository: Path | None = option(
        None, "repository to write to (default: that of the run)", "-m", section=_REPOSITORY, metavar="DIR"
    )
    force: bool = option(
        False, "apply even if the model has changed since it was measured", section=_REPOSITORY
    )
    yes: bool = option(False, "write without asking", "-y", section=_CONFIRM)
    dry_run: bool = option(False, "show the difference, write nothing", section=_CONFIRM)


class RollbackConfig(Options):
    """Models whose previous configuration is restored."""

    models: tuple[str, ...] = option(
        (),
        "models to roll back; with -e those of the run, else what can be rolled back is listed",
        section="Arguments",
        metavar="MODEL",
        positional=True,
        completes="models",
    )
    export_path: Path | None = option(
        None,
        "run that was applied: its export path, results, or run.jsonl",
        "-e",
        section=_RUN,
        metavar="PATH",
    )
    model_repository: Path | None = option(
        None,
        "repository of these models (default: that of the run)",
        "-m",
        section=_REPOSITORY,
        metavar="DIR",
    )
    force: bool = option(
        False, "even if the configuration was changed after it was applied", section=_REPOSITORY
    )
    yes: bool = option(False, "write without asking", "-y", section=_CONFIRM)
    dry_run: bool = option(False, "show the difference, write nothing", section=_CONFIRM)


def read_with_warnings(argv: Sequence[str]) -> ProfileSpec | None:
    """Return the options of a run; warn on stderr about each that has no effect. None if they are shown."""
    config = read_or_show(argv)
    if config is None:
        return None
    for line in check_options(config).warnings:
        complain(f"warning: {line}")
    return config


def read_or_show(argv: Sequence[str]) -> ProfileSpec | None:
    """Return the options of a run that may lack some; None if the user wanted to see them only."""
    given = collect_options(argv, os.environ)
    for line in doubtful_variables("analyze", os.environ, ProfileSpec, ReportConfig):
        complain(f"warning: {line}")
    shown = values_of(given).get("show_config", False)
    if shown:
        from tpx.cli.show_config import describe_options  # late: it needs yaml

        print(describe_options(ProfileSpec, given), end="")
    config = build(ProfileSpec, values_of(given))
    return None if shown else config


def journal_of(path: Path) -> Path:
    """Return the run.jsonl that a path leads to: the path itself, or below it, also in `results` of an
    export path.
    """
    places = (path, path / JOURNAL, path / "results" / JOURNAL, path / "checkpoints" / JOURNAL)
    for place in places:
        if place.is_file():
            return place
    raise UsageError(
        f"{path}: no run found, neither {JOURNAL} nor results/{JOURNAL}: name the --export-path of "
        "`tpx analyze profile`, or the journal itself"
    )


def show_written(written: Sequence[tuple[str, Path]]) -> None:
    """Print a line per report; of reports of single configurations only their number and directory."""
    details = [path for label, path in written if label == "Details"]
    for label, path in written:
        if label != "Details":
            print(f"{label}: {path}")
    if details:
        print(f"Details: {details[0].parent.parent} ({plural(len(details), 'configuration')})")
