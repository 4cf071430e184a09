"""Tables of a run's report: one row per level, or per part of one."""

from collections.abc import Callable, Iterator

from tpx.perf.objectives import Assessment
from tpx.perf.report.model import Report
from tpx.perf.results import ErrorCount, LevelResult, MemberFigures, ServerBreakdown
from tpx.perf.statistics.latency import LatencySummary
from tpx.report.document import DataTable
from tpx.report.table import R, TableField, count, duration, quantity, table, text

_LOAD: TableField[tuple[LevelResult, object]] = count("Load", lambda pair: pair[0].level.value)


def levels_grid(report: Report) -> DataTable | None:
    """Return one row per level, with its verdict."""
    if not report.levels:
        return None
    inside = report.config.service.service_kind == "inprocess"

    def verdict(result: LevelResult) -> str:
        return result.verdict.words + (", interrupted" if result.interrupted else "")

    return table(
        "levels",
        "Every level; the best one is bold",
        [
            count(report.levels[0].level.kind.text.capitalize(), lambda r: r.level.value),
            quantity("infer/s", lambda r: r.throughput_infer_per_s),
            duration("mean", lambda r: None if r.latency is None else r.latency.mean_ns),
            *(_percentile(p, _of_level) for p in (50.0, 90.0, 95.0, 99.0, 99.9)),
            count("Failed", lambda r: sum(e.count for e in r.errors)),
            quantity(
                f"Client {'and engine ' if inside else ''}busy %", lambda r: r.client_busy * 100, minor=True
            ),
            text("Verdict", verdict, lambda r: r.verdict.flag),
        ],
        report.levels,
        lambda r: "best" if r is report.best else "",
    )


def _of_level(result: LevelResult) -> LatencySummary | None:
    return result.latency


def _of_member(record: tuple[LevelResult, MemberFigures]) -> LatencySummary | None:
    return record[1].latency


def _percentile(percentile: float, of: Callable[[R], LatencySummary | None]) -> TableField[R]:
    def value(record: R) -> float | None:
        latency = of(record)
        return None if latency is None else latency.at(percentile)

    return duration(f"p{percentile:g}", value, minor=percentile in (95.0, 99.9))


_Account = tuple[LevelResult, tuple[int, ServerBreakdown]]
"""A level, and the server's figures of one model at a depth of an ensemble."""


def server_grid(report: Report) -> DataTable | None:
    """Return the server's own statistics of each level, with the models of an ensemble."""
    records = [
        (result, (depth, model))
        for result in report.levels
        if result.server is not None
        for depth, model in _tree(result.server)
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


def _tree(server: ServerBreakdown, depth: int = 0) -> Iterator[tuple[int, ServerBreakdown]]:
    yield depth, server
    for part in server.composing:
        yield from _tree(part, depth + 1)


def members_grid(report: Report) -> DataTable | None:
    """Return the figures of each model when several are measured at once."""
    records: list[tuple[LevelResult, MemberFigures]] = [(r, m) for r in report.levels for m in r.members]
    return table(
        "models",
        "Each model by itself",
        [
            _LOAD,
            text("Model", lambda r: r[1].model),
            quantity("Weight", lambda r: r[1].weight),
            quantity("infer/s", lambda r: r[1].throughput_infer_per_s),
            *(_percentile(p, _of_member) for p in (50.0, 99.0)),
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
        [(result, known) for result in report.levels for known in _known(result)],
    )


def _known(result: LevelResult) -> Iterator[tuple[str, float]]:
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
