"""The tables of a run's report: one row per level, or per part of one."""

from collections.abc import Callable, Iterator

from tpx.perf.objectives import Assessment
from tpx.perf.report.level_text import TOKEN_TIMES
from tpx.perf.report.model import Report, percentile_name
from tpx.perf.results import (
    ErrorCount,
    LevelResult,
    MemberFigures,
    ServerBreakdown,
    StreamFigure,
    Streaming,
)
from tpx.perf.statistics.summaries import LatencySummary
from tpx.report.document import DataTable
from tpx.report.table import R, TableField, count, duration, quantity, table, text

_LOAD: TableField[tuple[LevelResult, object]] = count("Load", lambda pair: pair[0].level.value)


def levels_grid(report: Report) -> DataTable | None:
    """Return one row per level, with its verdict."""
    if not report.levels:
        return None
    inside = report.config.service.service_kind == "inprocess"
    shown = (None, 50.0, 90.0, 95.0, 99.0, 99.9)
    latencies: list[TableField[LevelResult]] = [_make_latency_field(p, lambda r: r.latency) for p in shown]

    def verdict(result: LevelResult) -> str:
        return result.verdict.text + (", interrupted" if result.interrupted else "")

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
            text("Verdict", verdict, lambda r: r.verdict.flag),
        ],
        report.levels,
        lambda r: "best" if r is report.best else "",
    )


def _make_latency_field(percentile: float | None, of: Callable[[R], LatencySummary | None]) -> TableField[R]:
    """Return a column of a percentile, or of the mean for None."""

    def value(record: R) -> float | None:
        latency = of(record)
        return None if latency is None else latency.at(percentile)

    name = "mean" if percentile is None else percentile_name(percentile)
    return duration(name, value, minor=percentile in (95.0, 99.9))


_Account = tuple[LevelResult, tuple[int, ServerBreakdown]]
"""A level, and the server's figures of one model at a depth of an ensemble."""


def server_grid(report: Report) -> DataTable | None:
    """Return the server's own statistics of each level, with the models of an ensemble."""
    records = [
        (result, (depth, model))
        for result in report.levels
        if result.server is not None
        for depth, model in _walk_tree(result.server)
    ]

    def each(header: str, total: Callable[[ServerBreakdown], tuple[int, int]]) -> TableField[_Account]:
        def value(record: _Account) -> float | None:
            total_ns, requests = total(record[1][1])
            return total_ns / requests if requests else None

        return duration(header, value)

    return table(
        "server",
        "The server's own account, of each successful request; other clients' are in it too",
        [
            _LOAD,
            text("Model", lambda r: "\u2007\u2007" * r[1][0] + f"{r[1][1].model} {r[1][1].version}"),
            count("Inferences", lambda r: r[1][1].inference_count),
            count("Executions", lambda r: r[1][1].execution_count),
            quantity("Mean batch", lambda r: r[1][1].mean_batch),
            each("Request", lambda model: (model.success_ns, model.success_count)),
            each("Queue", lambda model: model.stages["queue"]),
            each("Input", lambda model: model.stages["compute_input"]),
            each("Infer", lambda model: model.stages["compute_infer"]),
            each("Output", lambda model: model.stages["compute_output"]),
        ],
        records,
    )


def _walk_tree(server: ServerBreakdown, depth: int = 0) -> Iterator[tuple[int, ServerBreakdown]]:
    yield depth, server
    for part in server.composing:
        yield from _walk_tree(part, depth + 1)


def tokens_grid(report: Report) -> DataTable | None:
    """Return the tokens of each level of a language model, and its goodput."""
    records = [(r, r.streaming) for r in report.levels if r.streaming is not None and r.streaming.units]

    def length(name: str) -> Callable[[tuple[LevelResult, Streaming]], float | None]:
        return lambda r: None if (found := r[1].figure(name)) is None else found.mean

    goodput: TableField[tuple[LevelResult, Streaming]] = quantity(
        "Goodput/s", lambda r: None if r[0].goodput is None else r[0].goodput.per_s.value
    )
    cached: TableField[tuple[LevelResult, Streaming]] = quantity(
        "Cached %", lambda r: r[1].cached_units / max(r[1].prompt_units, 1) * 100
    )
    return table(
        "tokens",
        "Tokens: speed is that of one user, the inverse of the inter-token latency's p50",
        [
            _LOAD,
            quantity("Output/s", lambda r: r[1].units_per_s),
            quantity("Speed/s", lambda r: r[1].user_units_per_s),
            *([goodput] if any(r.goodput is not None for r, _ in records) else []),
            quantity("Prompt, mean", length("input_tokens")),
            quantity("Output, mean", length("output_tokens")),
            *([cached] if any(stream.cached_units for _, stream in records) else []),
        ],
        records,
    )


def token_times_grid(report: Report) -> DataTable | None:
    """Return the times of each level of a language model."""
    records = [
        (result, figure)
        for result in report.levels
        if result.streaming is not None
        for name in TOKEN_TIMES
        if (figure := result.streaming.figure(name)) is not None
    ]
    shown = (None, 50.0, 90.0, 95.0, 99.0)
    times: list[TableField[tuple[LevelResult, StreamFigure]]] = [
        _make_latency_field(p, lambda r: r[1].summary) for p in shown
    ]
    return table(
        "token-times",
        "Times of streamed responses",
        [_LOAD, text("Time", lambda r: TOKEN_TIMES[r[1].name]), *times],
        records,
    )


def members_grid(report: Report) -> DataTable | None:
    """Return the figures of each model when several are measured at once."""
    records: list[tuple[LevelResult, MemberFigures]] = [(r, m) for r in report.levels for m in r.members]
    latencies: list[TableField[tuple[LevelResult, MemberFigures]]] = [
        _make_latency_field(p, lambda r: r[1].latency) for p in (50.0, 99.0)
    ]
    return table(
        "models",
        "Each model by itself",
        [
            _LOAD,
            text("Model", lambda r: r[1].model),
            quantity("Weight", lambda r: r[1].weight),
            quantity("infer/s", lambda r: r[1].throughput_infer_per_s),
            *latencies,
            count("Requests", lambda r: r[1].requests),
            count("Failed", lambda r: r[1].failed),
        ],
        records,
    )


def metrics_grid(report: Report) -> DataTable | None:
    """Return the figures of the server's metrics page during each level."""
    return table(
        "metrics",
        "Scraped from the server while it was measured",
        [_LOAD, text("Metric", lambda r: r[1][0]), quantity("Value", lambda r: r[1][1])],
        [(result, known) for result in report.levels for known in _iter_metrics(result)],
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
    records: list[tuple[LevelResult, Assessment]] = [(r, a) for r in report.levels for a in r.slo]
    return table(
        "objectives",
        "Objectives, at every level",
        [
            _LOAD,
            text("Objective", lambda r: r[1].objective.text),
            text("Outcome", lambda r: r[1].outcome.value, lambda r: "ok" if r[1].met else "bad"),
            text("Why", lambda r: r[1].reason, wraps=True),
        ],
        records,
    )


def errors_grid(report: Report) -> DataTable | None:
    """Return the failed requests of each level by kind."""
    records: list[tuple[LevelResult, ErrorCount]] = [(r, e) for r in report.levels for e in r.errors]
    return table(
        "errors",
        "Failed requests",
        [
            _LOAD,
            count("Requests", lambda r: r[1].count),
            text("Code", lambda r: r[1].code),
            text("First message", lambda r: r[1].message, wraps=True),
        ],
        records,
    )
