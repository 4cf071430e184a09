"""Writes the files of a finished run, among them perf_analyzer's CSV and JUnit."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tpx.perf.levels import CONCURRENCY
from tpx.perf.objectives import STREAM_FIGURES
from tpx.perf.report.json import json_text
from tpx.perf.report.level_text import GPU_FIGURES, gpu_values
from tpx.perf.report.model import Report, average_us, load_name, percentile_name, rate, throughput, usec
from tpx.perf.results import LevelResult, ServerBreakdown, Streaming, Verdict
from tpx.perf.statistics.summaries import reported_percentiles
from tpx.report.ci import Case, to_junit, to_markdown
from tpx.report.digits import latency
from tpx.report.files import OutputFile, file_output, step_summary, step_summary_path, write_each, write_file


def csv_text(
    results: Sequence[LevelResult], *, verbose: bool = False, decoupled: bool = False, metrics: bool = False
) -> str:
    """Return the file's content; only the header if no level met the limits.

    `metrics` adds the columns of the server's metrics to a verbose file.

    Columns and their arithmetic are perf_analyzer's (report_writer.cc): latencies in whole
    microseconds, no quoting.
    """
    rows = _select_rows(results)
    shown = rows or results
    servers = [r.server for r in shown if r.server is not None]
    percentile = shown[0].percentile if shown else None
    latencies = [r.latency for r in rows if r.latency is not None]
    clients = [r.client for r in rows if r.client is not None]
    columns: dict[str, Sequence[object]] = {
        _choose_level_column(shown): [rate(r.level.value) for r in rows],
        "Inferences/Second": [rate(r.throughput_infer_per_s) for r in rows],
    }
    if decoupled:
        through = [r.streaming.responses_per_s if r.streaming else 0.0 for r in rows]
        columns["Response Throughput"] = list(map(rate, through))
    columns["Client Send"] = [usec(c.send_ns) for c in clients]
    if servers:
        caching = any(s.caches_responses for s in servers)
        stages = [_average_stages(r.server or _NO_SERVER, caching=caching) for r in rows]
        columns["Network+Server Send/Recv"] = [usec(r.network_ns) for r in rows]
        for name in _average_stages(_NO_SERVER, caching=caching):
            columns[name] = [averages[name] for averages in stages]
    columns["Client Recv"] = [usec(c.receive_ns) for c in clients]
    for p in reported_percentiles(percentile):
        columns[f"{percentile_name(p)} latency"] = [usec(each.at(p)) for each in latencies]
    columns |= _build_token_columns([r.streaming for r in rows])
    if verbose and percentile is None:
        columns["Avg latency"] = [usec(each.mean_ns) for each in latencies]
    if verbose:
        columns["request/response"] = [usec(c.send_ns + c.receive_ns) for c in clients]
        columns["response wait"] = [usec(c.wait_ns) for c in clients]
    for title, name, _ in GPU_FIGURES if verbose and metrics else ():
        gpus = [gpu_values(r.metrics.gpus if r.metrics else (), name) for r in rows]
        columns[title] = ["".join(f"{uuid}:{value};" for uuid, value in values) for values in gpus]
    lines = [columns, *zip(*columns.values(), strict=True)]
    return "\n".join(",".join(map(str, line)) for line in lines) + "\n"


def _build_token_columns(found: Sequence[Streaming | None]) -> dict[str, Sequence[object]]:
    """Return the columns of a language model; none unless every level has its tokens."""
    streams = [stream for stream in found if stream is not None and stream.units]
    if not streams or len(streams) < len(found):
        return {}
    columns: dict[str, Sequence[object]] = {"Output Tokens/Second": [rate(s.units_per_s) for s in streams]}
    for name in ("ttft", "itl"):
        figures = [stream.figure(name) for stream in streams]
        for p in (None, 50.0, 99.0):
            title = f"{'Avg' if p is None else percentile_name(p)} {STREAM_FIGURES[name]}"
            columns[title] = ["" if f is None else usec(f.summary.at(p)) for f in figures]
    return columns


def composing_files(results: Sequence[LevelResult], path: Path) -> Iterator[tuple[Path, str]]:
    """Yield the files of an ensemble's models next to `path`; `NAME_vVERSION.` precedes the file name."""
    rows = _select_rows(results)
    servers = [r.server for r in rows if r.server is not None]
    parts = {(p.model, p.version) for server in servers for p in server.composing}
    caching = any(server.caches_responses for server in servers)
    for model, version in sorted(parts):
        names = [_choose_level_column(rows), "Inferences/Second", "Client Send", "Network+Server Send/Recv"]
        lines = [",".join([*names, *_average_stages(_NO_SERVER, caching=caching), "Client Recv"])]
        found = [(r, r.server, p) for r in rows if r.server is not None for p in r.server.composing]
        for result, ensemble, part in found:
            if (part.model, part.version) == (model, version):
                # a composing model has no client: its throughput is its share of the ensemble's
                share = part.success_count / ensemble.success_count if ensemble.success_count else 0.0
                request_us = average_us(part.success_ns, part.success_count)
                between = max(0, request_us - part.accounted_ns // 1000)
                through = rate(result.throughput_infer_per_s * share)
                stages = _average_stages(part, caching=caching).values()
                values = [rate(result.level.value), through, 0, between, *stages, 0]
                lines.append(",".join(map(str, values)))
        yield path.with_name(f"{model}_v{version}.{path.name}"), "\n".join(lines) + "\n"


def _select_rows(results: Sequence[LevelResult]) -> list[LevelResult]:
    good = [r for r in results if r.meets_limits and r.latency is not None and r.client is not None]
    return sorted(good, key=lambda r: r.throughput_infer_per_s)


def _choose_level_column(results: Sequence[LevelResult]) -> str:
    return results[0].level.kind.column if results else CONCURRENCY.column


_NO_SERVER = ServerBreakdown(model="", version="")


def _average_stages(server: ServerBreakdown, *, caching: bool) -> dict[str, int]:
    """Return the average of each stage in us by its column; cache stages only with `caching`."""
    return {
        f"Server {name.replace('_', ' ').title()}": average_us(*stage)
        for name, stage in server.stages.items()
        if caching or not name.startswith("cache")
    }


def write_files(report: Report, argv: Sequence[str]) -> None:
    """Write the requested files, except those that are written during the measurement.

    Raises MeasurementError naming each file that could not be written; the others are written.
    """
    config = report.config
    shown = replace(report, levels=report.by_load)

    def write_csv(path: Path) -> None:
        text = csv_text(
            report.levels,
            verbose=config.output.verbose_csv,
            decoupled=report.model.decoupled,
            metrics=config.metrics.collect_metrics,
        )
        for place, content in ((path, text), *composing_files(report.levels, path)):
            write_file(place, content)

    outputs = [
        OutputFile(label="CSV", path=config.output.csv, write=write_csv),
        file_output("JSON", config.output.json, lambda: json_text(report, argv)),
        file_output("JUnit", config.output.junit, lambda: junit_text(shown)),
        file_output("Markdown", config.output.markdown, lambda: markdown_text(shown)),
        step_summary(
            step_summary_path() if config.output.step_summary else None, lambda: markdown_text(shown)
        ),
    ]
    if config.output.html is not None or config.output.pdf is not None:
        from tpx.perf.report.page import build  # late: importing the page takes longer than writing it
        from tpx.report import html, pdf

        page = build(shown, argv)
        outputs.append(file_output("HTML", config.output.html, lambda: html.render(page)))
        outputs.append(file_output("PDF", config.output.pdf, lambda: pdf.render(page), parents=True))
    write_each(outputs)


def markdown_text(report: Report) -> str:
    """Return the summary of a run as Markdown."""
    from tpx.perf.report.page import brief  # late, like the page

    return to_markdown(brief(report))


def junit_text(report: Report) -> str:
    """Return the JUnit document.

    A level that is unstable, borderline or over the limit is a failure; one
    with the verdict ERRORS is an error. With objectives, these decide instead of stability and limits.
    """
    cases = [_build_level_case(r, report) for r in report.levels] + list(_iter_objective_cases(report))
    return to_junit(f"tpx perf {report.model.name}", cases, started=report.started, error=report.error)


def _build_level_case(result: LevelResult, report: Report) -> Case:
    made = Case(
        suite=report.model.name,
        name=load_name(result.level),
        time_s=sum(w.duration_ns for w in result.windows) / 1e9,
        output=_describe_figures(result),
    )
    if result.interrupted:
        return replace(made, outcome="skipped", message="the run was interrupted")
    if result.verdict is Verdict.ERRORS:
        return replace(made, outcome="error", message=result.reason, kind=result.verdict.value)
    if not result.meets_limits and not report.config.answers.slo:
        return replace(made, outcome="failure", message=result.reason, kind=result.verdict.value)
    return made


def _iter_objective_cases(report: Report) -> Iterator[Case]:
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


def _describe_figures(result: LevelResult) -> str:
    if result.latency is None:
        return f"no successful request, {result.failed} failed"
    return (
        f"{throughput(result)}, mean {latency(result.latency.mean_ns)}, "
        f"p50 {latency(result.latency.at(50.0))}, p99 {latency(result.latency.at(99.0))}, "
        f"{result.requests:,} requests, {result.failed:,} failed"
    )
