"""The tables of a run's report: one row per level, or per part of one."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from tpx.perf.report.level_text import TOKEN_TIMES
from tpx.perf.report.model import Report, percentile_name
from tpx.perf.results import LevelResult, MemberFigures, ServerBreakdown, StreamFigure, Streaming
from tpx.perf.statistics.summaries import LatencySummary
from tpx.report.document import Cell, DataTable, TableRow
from tpx.report.table import R, TableField, count, duration, quantity, table, text


def levels_grid(report: Report) -> DataTable | None:
    """Return one row per level, with its verdict."""
    if not report.levels:
        return None
    inside = report.config.service.service_kind == "inprocess"
    shown = (None, 50.0, 90.0, 95.0, 99.0, 99.9)
    latencies: list[TableField[LevelResult]] = [_latency_field(p, lambda r: r.latency) for p in shown]
    return table(
        "levels",
        "Every level; the best one is bold",
        [
            count(report.levels[0].level.kind.text.capitalize(), lambda r: r.level.value),
            quantity("infer/s", lambda r: r.throughput_infer_per_s),
            *latencies,
            count("Failed", lambda r: r.failed),
            quantity(
                f"Client {'and engine ' if inside else ''}busy %", lambda r: r.client_busy * 100, minor=True
            ),
            text(
                "Verdict",
                lambda r: r.verdict.text + ", interrupted" * r.interrupted,
                lambda r: r.verdict.flag,
            ),
        ],
        report.levels,
        lambda r: TableRow(emphasis="best" if r is report.best else ""),
    )


def _latency_field(percentile: float | None, of: Callable[[R], LatencySummary | None]) -> TableField[R]:
    """Return a column of a percentile, or of the mean for None."""

    def value(record: R) -> float | None:
        latency = of(record)
        return None if latency is None else latency.at(percentile)

    name = "mean" if percentile is None else percentile_name(percentile)
    return duration(name, value, minor=percentile in (95.0, 99.9))


def _split_levels(
    key: str,
    caption: str,
    report: Report,
    parts: Callable[[LevelResult], Iterable[R]],
    fields: Iterable[TableField[R]],
) -> DataTable | None:
    """Return a table with one row per part of each level, which begins with the level's load."""

    def read(field: TableField[R], record: tuple[LevelResult, R]) -> Cell:
        return field.cell(record[1])

    load: TableField[tuple[LevelResult, R]] = count("Load", lambda record: record[0].level.value)
    columns = [load, *(TableField(column=field.column, cell=partial(read, field)) for field in fields)]
    return table(key, caption, columns, [(r, part) for r in report.levels for part in parts(r)])


def server_grid(report: Report) -> DataTable | None:
    """Return the server's own statistics of each level, with the models of an ensemble."""

    def each(header: str, total: Callable[[ServerBreakdown], tuple[int, int]]) -> TableField[_ModelAt]:
        def value(record: _ModelAt) -> float | None:
            total_ns, requests = total(record[1])
            return total_ns / requests if requests else None

        return duration(header, value)

    return _split_levels(
        "server",
        "The server's own account, of each successful request; other clients' are in it too",
        report,
        lambda r: [] if r.server is None else r.server.walk(),
        [
            text("Model", lambda m: "\u2007\u2007" * m[0] + f"{m[1].model} {m[1].version}"),
            count("Inferences", lambda m: m[1].inference_count),
            count("Executions", lambda m: m[1].execution_count),
            quantity("Mean batch", lambda m: m[1].mean_batch),
            each("Request", lambda model: (model.success_ns, model.success_count)),
            each("Queue", lambda model: model.stages["queue"]),
            each("Input", lambda model: model.stages["compute_input"]),
            each("Infer", lambda model: model.stages["compute_infer"]),
            each("Output", lambda model: model.stages["compute_output"]),
        ],
    )


_ModelAt = tuple[int, ServerBreakdown]
"""The depth of a model in an ensemble, and the server's figures of it."""


def tokens_grid(report: Report) -> DataTable | None:
    """Return the tokens of each level of a language model, and its goodput."""
    cached = any(r.streaming.cached_units for r in report.levels if r.streaming is not None)

    def streamed(header: str, value: Callable[[Streaming], float | None]) -> TableField[LevelResult]:
        return quantity(header, lambda r: None if r.streaming is None else value(r.streaming))

    def mean(name: str, stream: Streaming) -> float | None:
        found = stream.figure(name)
        return None if found is None else found.mean

    return _split_levels(
        "tokens",
        "Tokens: speed is that of one user, the inverse of the inter-token latency's p50",
        report,
        lambda r: [r] if r.streaming is not None and r.streaming.units else [],
        [
            streamed("Output/s", lambda s: s.units_per_s),
            streamed("Speed/s", lambda s: s.user_units_per_s),
            quantity("Goodput/s", lambda r: None if r.goodput is None else r.goodput.per_s.value),
            streamed("Prompt, mean", partial(mean, "input_tokens")),
            streamed("Output, mean", partial(mean, "output_tokens")),
            streamed("Cached %", lambda s: s.cached_units / max(s.prompt_units, 1) * 100 if cached else None),
        ],
    )


def token_times_grid(report: Report) -> DataTable | None:
    """Return the times of each level of a language model."""

    def times(result: LevelResult) -> Iterator[StreamFigure]:
        stream = result.streaming
        if stream is not None:
            yield from filter(None, map(stream.figure, TOKEN_TIMES))

    shown = (None, 50.0, 90.0, 95.0, 99.0)
    latencies: list[TableField[StreamFigure]] = [_latency_field(p, lambda f: f.summary) for p in shown]
    return _split_levels(
        "token-times",
        "Times of streamed responses",
        report,
        times,
        [text("Time", lambda f: TOKEN_TIMES[f.name]), *latencies],
    )


def members_grid(report: Report) -> DataTable | None:
    """Return the figures of each model when several are measured at once."""
    latencies: list[TableField[MemberFigures]] = [
        _latency_field(p, lambda m: m.latency) for p in (50.0, 99.0)
    ]
    return _split_levels(
        "models",
        "Each model by itself",
        report,
        lambda r: r.members,
        [
            text("Model", lambda m: m.model),
            quantity("Weight", lambda m: m.weight),
            quantity("infer/s", lambda m: m.throughput_infer_per_s),
            *latencies,
            count("Requests", lambda m: m.requests),
            count("Failed", lambda m: m.failed),
        ],
    )


def metrics_grid(report: Report) -> DataTable | None:
    """Return the figures of the server's metrics page during each level."""
    return _split_levels(
        "metrics",
        "Scraped from the server while it was measured",
        report,
        _iter_metrics,
        [text("Metric", lambda named: named[0]), quantity("Value", lambda named: named[1])],
    )


def _iter_metrics(result: LevelResult) -> Iterator[tuple[str, float]]:
    metrics = result.metrics
    if metrics is None:
        return
    figures = [
        ("server's processor %", metrics.cpu_utilization, 100.0),
        ("server's memory MiB", metrics.memory_used_bytes, 2.0**-20),
        ("mean batch", metrics.mean_batch, 1.0),
    ]
    for gpu in metrics.gpus:
        figures.append((f"{gpu.uuid} utilization %", gpu.utilization, 100.0))
        figures.append((f"{gpu.uuid} power W", gpu.power_w, 1.0))
        figures.append((f"{gpu.uuid} memory MiB", gpu.memory_used_bytes, 2.0**-20))
    for series in metrics.series:
        counted = series.per_s is not None
        figures.append((series.name + " per s" * counted, series.per_s if counted else series.mean, 1.0))
    yield from ((name, value * factor) for name, value, factor in figures if value is not None)


def objectives_grid(report: Report) -> DataTable | None:
    """Return the outcome of each objective at each level."""
    return _split_levels(
        "objectives",
        "Objectives, at every level",
        report,
        lambda r: r.slo,
        [
            text("Objective", lambda a: a.objective.text),
            text("Outcome", lambda a: a.outcome.value, lambda a: "ok" if a.met else "bad"),
            text("Why", lambda a: a.reason, wraps=True),
        ],
    )


def errors_grid(report: Report) -> DataTable | None:
    """Return the failed requests of each level by kind."""
    return _split_levels(
        "errors",
        "Failed requests",
        report,
        lambda r: r.errors,
        [
            count("Requests", lambda e: e.count),
            text("Code", lambda e: e.code),
            text("First message", lambda e: e.message, wraps=True),
        ],
    )
