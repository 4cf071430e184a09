"""The report of a run as a `Document`, with its tables: one row per level, or per part of one."""

import os
import platform
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from tpx import __version__
from tpx.options import fields_of
from tpx.perf.objectives import Assessment, Compliance, Objective
from tpx.perf.options import SessionSpec
from tpx.perf.report.level_text import TOKEN_TIMES, waited_before
from tpx.perf.report.model import Report, answers_text, level_name, load_name, percentile_name, throughput
from tpx.perf.report.plots import breakdown_picture, curve, spectrum, speeds, timeline
from tpx.perf.results import (
    ErrorCount,
    LevelResult,
    MemberFigures,
    ServerBreakdown,
    StreamFigure,
    Streaming,
    Verdict,
)
from tpx.perf.statistics.intervals import Interval
from tpx.perf.statistics.summaries import LatencySummary
from tpx.report.digits import latency, rounded
from tpx.report.document import (
    DataTable,
    Document,
    Group,
    Note,
    Section,
    Statement,
    Tile,
    bullets,
    code,
    fact_groups,
    section,
)
from tpx.report.html import chart_picture
from tpx.report.table import R, TableField, count, duration, quantity, table, text
from tpx.report.text import sparkline

_PARTS = (
    "The mean latency of each level in parts that add up to it. The server's parts are its own statistics."
)
_SPECTRUM = "Latency over a logarithmic percentile axis. A line ends where too few requests lie beyond it."
_METHOD = (
    "A request counts in the window in which its answer ends. The figures of a level are those of its last "
    "steady windows taken as one; throughput counts inferences of successful requests. Intervals consider "
    "that requests depend on each other."
)


def build(report: Report, argv: Sequence[str]) -> Document:
    """Return the report of a run; `argv` is its command line."""
    levels, config, answers = report.levels, report.config, answers_text(report).strip("\n")
    best = report.best or max(levels, key=lambda r: r.throughput_infer_per_s, default=None)
    sections = [
        Section(blocks=(replace(conclude(report), tiles=() if best is None else _build_tiles(best)),)),
        *section("Objectives", objectives_grid(report)),
        *(section("Findings", code(answers)) if answers else []),
        *_build_charts(report),
        *section("Models", members_grid(report)),
        *section("Server", server_grid(report)),
        *section("Server metrics", metrics_grid(report)),
        *section("Errors", errors_grid(report)),
        *section("Remarks", bullets(_list_remarks(levels))),
        Section(
            title="Where these figures come from",
            blocks=(
                code(shlex.join(["tpx", "perf", *argv]), command=True),
                *_list_facts(report),
                Note(text=_METHOD, style="small"),
            ),
        ),
    ]
    when = report.started.replace("T", " ").partition(".")[0]
    requests = sum(w.requests + w.failed for r in levels for w in r.windows)
    measured = f"{len(levels)} level{'s' * (len(levels) != 1)}, {requests:,} requests"
    return Document(
        product="perf",
        title=f"Load test: {report.model.name}",
        subtitle=f"{when} UTC \u00b7 {config.address} \u00b7 {measured}",
        notice="This run was interrupted: the last level is not complete." if report.interrupted else "",
        sections=tuple(sections),
    )


def brief(report: Report) -> Document:
    """Return the summary of a run for the page of a CI job: verdict, levels and failures."""
    config, server = report.config, report.server
    known = [r for r in report.levels if r.latency is not None]
    through = sparkline([r.throughput_infer_per_s for r in known])
    tails = sparkline([r.latency.at(99.0) for r in known if r.latency is not None])
    curves = Note(text=f"Throughput `{through}` \u00b7 p99 `{tails}`") if len(known) > 1 else None
    return Document(
        product="perf",
        title=f"Load test: {report.model.name}",
        subtitle=f"{config.address}, {server.name} {server.version}, batch {config.inputs.batch_size}, "
        f"{report.started}",
        sections=(
            Section(title=report.model.name, blocks=(conclude(report),)),
            *section("", levels_grid(report), curves),
            *section("Objectives", objectives_grid(report)),
            *section("Failed requests", errors_grid(report)),
        ),
    )


def conclude(report: Report) -> Statement:
    """Return the verdict of a run on its objectives, its limit, or its figures alone."""
    if not any(r.requests for r in report.levels):
        errors = [e for r in report.levels for e in r.errors]
        reason = report.error or "no request ended while it was measured"
        if errors:
            reason = f"no request succeeded; the first failure: {errors[0].code}: {errors[0].message}"
        return Statement(badge="Nothing measured", tone="bad", sentence=reason)
    detail, best = _describe_problems(report), report.best
    objectives = ", ".join(o.text for o in report.config.answers.slo)
    if objectives:
        headline = f"no load meets {objectives}"
        if best is not None:
            met = f"{load_name(best.level)}: {throughput(best)}, {_describe_percentiles(best)}"
            headline = f"{objectives} met up to {met}"
        doubts = _describe_doubts(report)
        return Statement(
            badge="Objectives missed" if best is None else "Objectives met",
            tone="bad" if best is None else "warn" if doubts else "good",
            sentence=headline,
            detail=" ".join(filter(None, (detail, doubts))),
        )
    if best is None:
        reasons = {r.verdict.words for r in report.levels}
        return Statement(
            badge="No load met the limits",
            tone="warn" if report.only_unstable else "bad",
            sentence=f"no load met the limits ({', '.join(sorted(reasons))})",
            detail=detail,
        )
    bound = best.verdict is Verdict.CLIENT_BOUND
    return Statement(
        badge="Client-bound" if bound else "Measured",
        tone="warn" if bound or detail else "good",
        sentence=f"{throughput(best)} at {load_name(best.level)}, {_describe_percentiles(best)}",
        detail=best.reason if bound else detail,
    )


def _describe_percentiles(result: LevelResult) -> str:
    if result.latency is None:
        return "no latency"
    p50, p99 = (latency(result.latency.at(percentile)) for percentile in (50.0, 99.0))
    return f"p50 {p50}, p99 {p99}"


def _describe_doubts(report: Report) -> str:
    """Return which levels do not tell on which side of the objectives they lie; empty if all do."""
    unsure = (Verdict.UNSTABLE, Verdict.BORDERLINE)
    doubtful = {load_name(r.level): r.verdict.words for r in report.levels if r.verdict in unsure}
    for result in report.levels:
        if any(a.outcome is Compliance.UNDECIDED for a in result.slo):
            doubtful.setdefault(load_name(result.level), Compliance.UNDECIDED.value)
    listed = ", ".join(f"{name} ({why})" for name, why in doubtful.items())
    return f"Not certain: {listed}." if listed else ""


def _describe_problems(report: Report) -> str:
    parts = []
    if report.interrupted:
        parts.append("The run was interrupted: the last level is not complete.")
    if report.error:
        parts.append(f"The run ended early: {report.error}")
    flagged = [r for r in report.levels if not r.meets_limits and not r.interrupted]
    if flagged and not report.config.answers.slo:
        names = ", ".join(f"{load_name(r.level)} ({r.verdict.words})" for r in flagged)
        parts.append(f"Excluded: {names}.")
    return " ".join(parts)


def _build_charts(report: Report) -> list[Section]:
    levels = report.levels
    points = curve(levels, report.config.windows.latency_threshold, report.config.answers.slo)
    load = points.label_name if points else ""
    sections = section(
        "Latency and throughput",
        chart_picture(points),
        lead=f"One point per level, in the order of load; the numbers beside the points are the {load}. The "
        "bars through the points are 95 % confidence intervals. Better is down and to the right.",
    )
    sections += section("Levels", levels_grid(report))
    speed = chart_picture(speeds(levels))
    sections += section("Tokens", speed, tokens_grid(report), token_times_grid(report))
    bars = breakdown_picture("breakdown", [(level_name(r.level), r) for r in levels])
    sections += section("Where the time goes", bars, lead=_PARTS)
    sections += section("Percentiles", chart_picture(spectrum(levels)), lead=_SPECTRUM)
    for what in ("throughput", "p99"):
        chart = timeline(levels, what)
        if chart is not None:
            lead = "Each point is a window, in the time of the run."
            sections += section(chart.title, chart_picture(chart), lead=lead)
    return sections


def _build_tiles(best: LevelResult) -> tuple[Tile, ...]:
    reach = None if best.estimates is None else best.estimates.throughput
    tiles = [
        Tile(
            label="Throughput",
            figure=rounded(best.throughput_infer_per_s),
            unit="infer/s",
            note=_describe_interval(reach, rounded) if reach else "",
            tone="good" if best.meets_limits else "",
        )
    ]
    if best.latency is not None:
        for percentile in (50.0, 99.0, 99.9):
            figure, unit = latency(best.latency.at(percentile)).split()
            found = None if best.estimates is None else best.estimates.at(percentile)
            note = ""
            if found is not None and found.interval.high is None:
                note = found.note.partition(" (")[0]
            elif found is not None:
                note = _describe_interval(found.interval, latency)
            label = f"{percentile_name(percentile)} latency"
            tiles.append(Tile(label=label, figure=figure, unit=unit, note=note))
    if best.server is not None and best.server.execution_count:
        batch = rounded(best.server.mean_batch)
        tiles.append(Tile(label="Mean batch", figure=batch, unit="", note="in the server"))
    note, tone = (
        f"of {sum(w.requests + w.failed for w in best.windows):,} requests",
        "bad" * bool(best.failed),
    )
    tiles.append(Tile(label="Failed", figure=f"{best.failed:,}", unit="", note=note, tone=tone))
    return tuple(tiles)


def _describe_interval(interval: Interval, shown: Callable[[float], str]) -> str:
    """Return `95 %: 520 to 560`; empty for one that begins at zero, which says nothing."""
    if interval.low <= 0:
        return ""
    return f"95 %: {shown(interval.low)} to {shown(interval.high or interval.value)}"


def _list_remarks(levels: Sequence[LevelResult]) -> tuple[str, ...]:
    out = []
    for result in levels:
        name = level_name(result.level)
        out += [f"{name}: {text}" for text in (result.reason, *result.warnings) if text]
        pace, whole = result.open_loop, result.latency
        if pace is not None and whole is not None and waited_before(pace, whole):
            service = pace.service_latency
            out.append(
                f"{name}: latency counts from when a request was due; from when it was sent, p99 is "
                f"{latency(service.at(99.0))} instead of {latency(whole.at(99.0))}"
            )
    return tuple(out)


def _list_facts(report: Report) -> tuple[Group, ...]:
    """Return the target, the client's machine, and the options that differ from their defaults."""
    model, config = report.model, report.config
    target = {
        "Server": f"{report.server.name} {report.server.version}",
        "Address": f"{config.address}, {config.target.protocol}",
        "Model": f"{model.name} {config.target.model_version}".strip(),
        "Platform": model.platform,
        "Scheduler": model.scheduler,
        "Max batch": str(model.max_batch_size or ""),
    }
    client = {
        "Host": platform.node(),
        "Cores": str(os.cpu_count()),
        "Kernel": platform.release(),
        "Python": platform.python_version(),
        "tpx": __version__,
    }
    changed = {
        field.flag: _format_value(value)
        for field in fields_of(SessionSpec)
        if (value := field.of(config)) != field.default and field.name not in ("model", "url")
    }
    known = {name: value for name, value in target.items() if value}
    return fact_groups({"Target": known, "Client": client, "Options": changed})


def _format_value(value: object) -> str:
    if isinstance(value, Objective):
        return value.text
    return ", ".join(map(_format_value, value)) if isinstance(value, tuple | list) else str(value)


_LOAD: TableField[tuple[LevelResult, object]] = count("Load", lambda pair: pair[0].level.value)


def levels_grid(report: Report) -> DataTable | None:
    """Return one row per level, with its verdict."""
    if not report.levels:
        return None
    inside = report.config.service.service_kind == "inprocess"
    shown = (None, 50.0, 90.0, 95.0, 99.0, 99.9)
    latencies: list[TableField[LevelResult]] = [_make_latency_field(p, lambda r: r.latency) for p in shown]

    def verdict(result: LevelResult) -> str:
        return result.verdict.words + (", interrupted" if result.interrupted else "")

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
        return lambda r: None if (found := r[1].figure(name)) is None else found.summary.mean_ns

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
