"""Writes the files of a finished run, among them perf_analyzer's CSV and JUnit."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tpx.perf.levels import CONCURRENCY
from tpx.perf.report.json import json_text
from tpx.perf.report.level_text import GPU_FIGURES, composing_in_order, gpu_values, has_response_cache
from tpx.perf.report.model import Report, average_us, load_name, percentile_name, rate, usec
from tpx.perf.results import ClientTimes, LevelResult, ServerBreakdown, Verdict
from tpx.perf.statistics.summaries import LatencySummary, reported_percentiles
from tpx.report.ci import Case, to_junit, to_markdown
from tpx.report.files import OutputFile, step_summary, step_summary_path, text_output, write_each, write_text


def csv_text(
    results: Sequence[LevelResult], *, verbose: bool = False, decoupled: bool = False, metrics: bool = False
) -> str:
    """Return the file's content; only the header if no level met the limits.

    `metrics` adds the columns of the server's metrics to a verbose file.

    Columns and their arithmetic are perf_analyzer's (report_writer.cc): latencies in whole
    microseconds, no quoting.
    """
    rows = _select_rows(results)
    columns = _Columns(rows or results, verbose=verbose, decoupled=decoupled, metrics=metrics)
    lines = [",".join(columns.header())]
    lines += [
        ",".join(map(str, columns.row(r, r.latency, r.client)))
        for r in rows
        if r.latency is not None and r.client is not None
    ]
    return "\n".join(lines) + "\n"


def composing_files(results: Sequence[LevelResult], path: Path) -> Iterator[tuple[Path, str]]:
    """Yield the files of an ensemble's models next to `path`; `NAME_vVERSION.` precedes the file name."""
    rows = _select_rows(results)
    servers = [r.server for r in rows if r.server is not None]
    parts = {(p.model, p.version) for server in servers for p in server.composing}
    caching = any(has_response_cache(server) for server in servers)
    for model, version in sorted(parts):
        names = [_choose_level_column(rows), "Inferences/Second", "Client Send"]
        lines = [",".join([*names, *_list_server_columns(caching=caching), "Client Recv"])]
        for result in rows:
            part = _find_part(result.server, model, version)
            if part is not None and result.server is not None:
                # a composing model has no client: its throughput is its share of the ensemble's
                ensemble_count = result.server.success_count
                share = part.success_count / ensemble_count if ensemble_count else 0.0
                request_us = average_us(part.success_ns, part.success_count)
                between = max(0, request_us - part.accounted_ns // 1000)
                throughput = rate(result.throughput_infer_per_s * share)
                stages = _average_stages(part, caching=caching).values()
                values = [rate(result.level.value), throughput, 0, between, *stages, 0]
                lines.append(",".join(map(str, values)))
        yield path.with_name(f"{model}_v{version}.{path.name}"), "\n".join(lines) + "\n"


def _select_rows(results: Sequence[LevelResult]) -> list[LevelResult]:
    good = [r for r in results if r.meets_limits and r.latency is not None]
    return sorted(good, key=lambda r: r.throughput_infer_per_s)


def _choose_level_column(results: Sequence[LevelResult]) -> str:
    return results[0].level.kind.column if results else CONCURRENCY.column


_NO_SERVER = ServerBreakdown(model="", version="")


def _list_server_columns(*, caching: bool) -> list[str]:
    stages = [name.replace("_", " ").title() for name in _average_stages(_NO_SERVER, caching=caching)]
    return ["Network+Server Send/Recv", *(f"Server {stage}" for stage in stages)]


def _average_stages(server: ServerBreakdown, *, caching: bool) -> dict[str, int]:
    """Return the average of each stage in us; cache stages only with `caching`."""
    stages = server.stages.items()
    return {name: average_us(*stage) for name, stage in stages if caching or not name.startswith("cache")}


class _Columns:
    def __init__(
        self, results: Sequence[LevelResult], *, verbose: bool, decoupled: bool, metrics: bool
    ) -> None:
        servers = [r.server for r in results if r.server is not None]
        self._level = _choose_level_column(results)
        self._percentile = results[0].percentile if results else None
        self._with_server = bool(servers)
        self._caching = any(has_response_cache(s) for s in servers)
        self._verbose, self._decoupled, self._metrics = verbose, decoupled, metrics

    def header(self) -> list[str]:
        names = [self._level, "Inferences/Second"]
        if self._decoupled:
            names.append("Response Throughput")
        names.append("Client Send")
        if self._with_server:
            names += _list_server_columns(caching=self._caching)
        names.append("Client Recv")
        names += [f"{percentile_name(p)} latency" for p in reported_percentiles(self._percentile)]
        if self._verbose:
            if self._percentile is None:
                names.append("Avg latency")
            names += ["request/response", "response wait"]
            if self._metrics:
                names += [title for title, _, _ in GPU_FIGURES]
        return names

    def row(self, result: LevelResult, latency: LatencySummary, client: ClientTimes) -> list[object]:
        values: list[object] = [rate(result.level.value), rate(result.throughput_infer_per_s)]
        if self._decoupled:
            values.append(rate(result.streaming.responses_per_s if result.streaming else 0.0))
        values.append(usec(client.send_ns))
        if self._with_server:
            stages = _average_stages(result.server or _NO_SERVER, caching=self._caching)
            values += [usec(result.network_ns), *stages.values()]
        values.append(usec(client.receive_ns))
        values += [usec(latency.at(p)) for p in reported_percentiles(self._percentile)]
        if self._verbose:
            values += [usec(latency.mean_ns)] if self._percentile is None else []
            values += [usec(client.send_ns + client.receive_ns), usec(client.wait_ns)]
        if self._verbose and self._metrics:
            gpus = result.metrics.gpus if result.metrics is not None else ()
            for _, name, _ in GPU_FIGURES:
                values.append("".join(f"{uuid}:{value};" for uuid, value in gpu_values(gpus, name)))
        return values


def _find_part(server: ServerBreakdown | None, model: str, version: str) -> ServerBreakdown | None:
    parts = composing_in_order(server) if server is not None else []
    return next((p for p in parts if (p.model, p.version) == (model, version)), None)


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

    return to_markdown(brief(report))


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
        f"throughput {rate(result.throughput_infer_per_s)} infer/sec, "
        f"mean {usec(result.latency.mean_ns)} usec, "
        f"p50 {usec(result.latency.at(50.0))} usec, p99 {usec(result.latency.at(99.0))} usec, "
        f"{result.requests} requests, {result.failed} failed"
    )
