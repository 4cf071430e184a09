"""`tpx analyze report`: write the reports of a finished run again, whole or for single configurations.

`tpx analyze compare A B`: the differences between two runs, and an exit code for CI.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from tpx.analyzer.comparison import AnalysisComparison, compare_runs
from tpx.analyzer.options import ProfileSpec
from tpx.analyzer.options.file import FORMER
from tpx.analyzer.options.measuring import CONFIGURATIONS, ProfileOutputSpec, results_in
from tpx.analyzer.reports.detail import build_detail, detail_path
from tpx.analyzer.reports.files import write_reports
from tpx.analyzer.reports.tables import write_csv
from tpx.analyzer.reports.view import ReportView
from tpx.analyzer.results.journal import read_last_run
from tpx.analyzer.results.run import Run
from tpx.argv import from_argv
from tpx.cli.analyze_options import ENDINGS, ReportConfig, journal_of, show_written
from tpx.cli.comparing import AnalyzeCompareConfig, named_runs, report_comparison, sides
from tpx.errors import UsageError
from tpx.options import build, fields_of, nearest
from tpx.perf.compare import difference_json
from tpx.perf.report.comparison import Against, Compared
from tpx.report import html, pdf
from tpx.report.files import write_file
from tpx.sources import read_file, read_flags, values_of


def report(argv: Sequence[str]) -> int:
    """`tpx analyze report`: return 0 if all reports were written."""
    config = _read_options(argv)
    path = journal_of(config.checkpoint_directory or config.export_path)
    run = Run.from_records(read_last_run(path))
    if "pdf" in config.output_formats:
        pdf.require_typst()
    (_write_variant_reports if config.report_model_configs else _write_run_reports)(
        _make_view(run, config), config
    )
    return 0


def _make_view(run: Run, config: ReportConfig) -> ReportView:
    """Return the view of the command's options; the run's own options are the defaults."""
    own = run.started.settings
    repository = Path(own.get("output_model_repository_path") or config.export_path / CONFIGURATIONS)
    overrides: dict[str, object] = {"mode": config.mode} if config.mode else {}
    if config.always_report_gpu_metrics:
        overrides["always_report_gpu_metrics"] = True
    view = ReportView.of(run, overrides, repository=repository, export_path=config.export_path)
    return replace(view, plots=config.plots)


def _read_options(argv: Sequence[str]) -> ReportConfig:
    given = values_of(read_flags(ReportConfig, argv, "analyze", os.environ))
    others = {field.name for field in fields_of(ProfileSpec)}  # both commands may share one file
    others -= {field.name for field in fields_of(ReportConfig)}
    in_file = read_file(ReportConfig, given.get("config_file"), others, FORMER)
    return build(ReportConfig, {**values_of(in_file), **given})


def _select_variant(run: Run, name: str) -> Run:
    """Return the part of the run about one configuration and the default it is compared with."""
    models = []
    for model in run.models:
        if any(variant.variant.name == name for variant in model.variants):
            kept = tuple(v for v in model.variants if v.variant.name == name or v.variant.is_default)
            models.append(replace(model, variants=kept))
    return replace(run, models=tuple(models))


def _write_run_reports(view: ReportView, config: ReportConfig) -> None:
    """Write every report of the run in these formats, to the places that `profile` uses."""
    place, wanted = config.export_path, set(config.output_formats)
    pages = dict.fromkeys(("skip_summary_reports", "skip_detailed_reports"), "html" not in wanted)
    files = {name: place / f"report.{ENDINGS[name]}" for name in wanted - {"csv"}}
    show_written(write_reports(view, build(ProfileOutputSpec, {**files, **pages})))
    if "csv" in wanted:
        for path in write_csv(view, results_in(place)):
            print(f"Report: {path}")


def _write_variant_reports(view: ReportView, config: ReportConfig) -> None:
    """Write a report of each configuration in these formats."""
    models = {v.variant.name: model.model for model in view.run.models for v in model.measured}
    for wanted in config.report_model_configs:
        if wanted.name not in models:
            near = nearest(wanted.name, models)
            raise UsageError(f"--report-model-configs: the run has not measured '{wanted.name}'{near}")
    concerned = sorted({models[wanted.name] for wanted in config.report_model_configs})
    if len(concerned) > 1:
        raise UsageError(
            f"--report-model-configs: configurations of one model at a time, not of {', '.join(concerned)}"
        )
    lacking = sorted(set(config.output_formats) - {"html", "pdf", "csv"})
    if lacking:
        raise UsageError(
            f"--output-formats {lacking[0]} covers a whole run: leave out --report-model-configs"
        )
    for wanted in config.report_model_configs:
        own = replace(view, plots=wanted.plots or view.plots)
        for written in dict.fromkeys(config.output_formats):
            for path in _write_variant(own, wanted.name, written):
                print(f"Report: {path}")


def _write_variant(view: ReportView, name: str, written: str) -> tuple[Path, ...]:
    place = detail_path(view.export_path, name).parent
    if written == "csv":
        return write_csv(replace(view, run=_select_variant(view.run, name)), place)
    path = place / f"detailed_report.{written}"
    render = html.render if written == "html" else pdf.render
    write_file(path, render(build_detail(view, name)), parents=True)
    return (path,)


NAMES_SHOWN = 5


def compare(argv: Sequence[str]) -> int:
    """Print the differences; return 5 if anything regressed, 7 if undecided, else 0."""
    config = from_argv(AnalyzeCompareConfig, argv)
    paths = sides(config.runs, config.baseline)
    before, after = ([Run.from_records(read_last_run(journal_of(path))) for path in side] for side in paths)
    found = compare_runs(before, after, config.comparison.strictness)
    if not found.pairs:
        raise UsageError(
            f"{' and '.join(map(named_runs, paths))} have no configuration in common under the same load"
        )
    compared = Compared(pairs=tuple(_group_differences(found)), strictness=config.comparison.strictness)
    differences: list[dict[str, object]] = difference_json([pair.difference for pair in found.pairs])
    pairs: list[dict[str, object]] = [
        {
            "model": p.model,
            "configurations": [p.before, p.after],
            "best": bool(p.role),
            "recommended": p.role == "recommended",
            **difference,
        }
        for p, difference in zip(found.pairs, differences, strict=True)
    ]
    document: dict[str, object] = {
        "schema": 1,
        "compare": pairs,
        "only_before": found.only_before,
        "only_after": found.only_after,
    }
    return report_comparison(compared, config.comparison, document, everything=config.all)


def _group_differences(found: AnalysisComparison) -> Iterator[Against]:
    """Yield the differences by configuration, and last what only one run has."""
    for (before, after, role), pairs in groupby(
        found.pairs, key=lambda pair: (pair.before, pair.after, pair.role)
    ):
        name = before if before == after else f"{before} -> {after}"
        yield Against(
            title=f"{name} ({role})" if role else name,
            differences=tuple(pair.difference for pair in pairs),
            important=bool(role),
        )
    left_out = tuple(
        f"only in the {which} run: {', '.join(names[:NAMES_SHOWN])}" + ", ..." * (len(names) > NAMES_SHOWN)
        for names, which in ((found.only_before, "first"), (found.only_after, "second"))
        if names
    )
    if left_out:
        yield Against(title="Not compared", differences=(), left_out=left_out)
