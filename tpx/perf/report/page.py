"""The report of a run as a `Document`."""

import os
import platform
import shlex
from collections.abc import Sequence

from tpx import __version__
from tpx.options import fields_of
from tpx.perf.levels import LevelRange
from tpx.perf.objectives import Objective
from tpx.perf.options import SessionSpec
from tpx.perf.report.breakdown import breakdown_of_levels
from tpx.perf.report.console import answers_text
from tpx.perf.report.figures import level_name, percentile_name, usec
from tpx.perf.report.level_text import waited_before
from tpx.perf.report.markdown import milliseconds
from tpx.perf.report.model import Report, conclude
from tpx.perf.report.plots import curve, histogram, spectrum, timeline
from tpx.perf.results import LevelResult, ServerBreakdown, Verdict
from tpx.report.document import (
    Cell,
    Column,
    Document,
    Fact,
    Grid,
    Note,
    Row,
    Section,
    Statement,
    Tile,
    bullets,
    code,
    fact_groups,
    section,
)
from tpx.report.html import chart_picture

_FLAGS = {
    Verdict.OK: "ok",
    Verdict.CLIENT_BOUND: "warn",
    Verdict.UNSTABLE: "warn",
    Verdict.BORDERLINE: "warn",
}
_NO_VALUE = "\u2013"
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
    """Return the report of a run that was started with these words."""
    levels, config = report.levels, report.config
    best = report.best or max(levels, key=lambda r: r.throughput_infer_per_s, default=None)
    sections = [
        Section(blocks=(_statement(report, best),)),
        *section("Objectives", _objectives_grid(levels)),
        *_answers(report),
        *_charts(report, best),
        *section("Models", _members_grid(levels)),
        *section("Server", _server_grid(levels)),
        *section("Server metrics", _metrics_grid(levels)),
        *section("Errors", _errors_grid(levels)),
        *section("Remarks", bullets(_remarks(levels))),
        Section(
            title="Where these figures come from",
            blocks=(
                code(shlex.join(["tpx", "perf", *argv]), command=True),
                *fact_groups(
                    ("Target", _target(report)), ("Client", _host()), ("Options", _settings(config))
                ),
                Note(text=_METHOD, style="small"),
            ),
        ),
    ]
    return Document(
        product="perf",
        title=f"Load test: {report.model.name}",
        subtitle=_subtitle(report),
        notice="This run was interrupted: the last level is not complete." if report.interrupted else "",
        sections=tuple(sections),
    )


def _statement(report: Report, best: LevelResult | None) -> Statement:
    found = conclude(report)
    return Statement(
        badge=found.badge,
        tone=found.tone,
        sentence=found.sentence,
        detail=found.detail,
        tiles=() if best is None else _tiles(best),
    )


def _answers(report: Report) -> list[Section]:
    """Return what was asked for beside figures: objectives, a scenario, the knee."""
    text = answers_text(report).strip("\n")
    return section("Answers", code(text)) if text else []


def _charts(report: Report, best: LevelResult | None) -> list[Section]:
    levels = report.levels
    points = curve(levels, report.config.windows.latency_threshold)
    load = points.label_name if points else ""
    sections = section(
        "Latency and throughput",
        chart_picture(points),
        lead=f"One point per level, in the order of load; the numbers beside the points are the {load}. The "
        "bars through the points are 95 % confidence intervals. Better is down and to the right.",
    )
    if levels:
        sections += section("Levels", _levels_grid(report))
    sections += section("Where the time goes", breakdown_of_levels(levels), lead=_PARTS)
    sections += section("Percentiles", chart_picture(spectrum(levels)), lead=_SPECTRUM)
    if best is not None:
        drawn = chart_picture(histogram(best), legend=False)
        at = level_name(best.level).lower()
        sections += section(f"Distribution at {at}", drawn, lead="Requests by their latency.")
    for what in ("throughput", "p99"):
        chart = timeline(levels, what)
        if chart is not None:
            lead = "Each point is a window, in the time of the run."
            sections += section(chart.title, chart_picture(chart), lead=lead)
    return sections


def _subtitle(report: Report) -> str:
    when = report.started.replace("T", " ").partition(".")[0] + " UTC"
    requests = sum(w.requests + w.failed for r in report.levels for w in r.windows)
    count = len(report.levels)
    where = report.config.address
    return f"{when} \u00b7 {where} \u00b7 {count} level{'s' * (count != 1)}, {requests:,} requests"


def _tiles(best: LevelResult) -> tuple[Tile, ...]:
    tiles = [
        Tile(
            label="Throughput",
            figure=f"{best.throughput_infer_per_s:,.1f}",
            unit="infer/s",
            note=_throughput_range(best),
            tone="good" if best.meets_limits else "",
        )
    ]
    if best.latency is not None:
        for percentile in (50.0, 99.0, 99.9):
            text = milliseconds(best.latency.at(percentile)).split()
            tiles.append(
                Tile(
                    label=f"{percentile_name(percentile)} latency",
                    figure=text[0],
                    unit=text[1],
                    note=_latency_range(best, percentile),
                )
            )
    if best.server is not None and best.server.execution_count:
        batch = f"{best.server.mean_batch:,.2f}"
        tiles.append(Tile(label="Mean batch", figure=batch, unit="", note="in the server"))
    failed = sum(e.count for e in best.errors)
    note = f"of {sum(w.requests + w.failed for w in best.windows):,} requests"
    tiles.append(Tile(label="Failed", figure=f"{failed:,}", unit="", note=note, tone="bad" if failed else ""))
    return tuple(tiles)


def _throughput_range(result: LevelResult) -> str:
    if result.estimates is None:
        return ""
    interval = result.estimates.throughput
    return f"95 %: {interval.low:,.1f} to {interval.high or interval.value:,.1f}"


def _latency_range(result: LevelResult, percentile: float) -> str:
    found = result.estimates.at(percentile) if result.estimates is not None else None
    if found is None:
        return ""
    if found.interval.high is None:
        return found.note.partition(" (")[0]
    low, high = milliseconds(found.interval.low).split()[0], milliseconds(found.interval.high).split()[0]
    return f"95 %: {low} to {high}"


def _number(value: float | None, digits: int = 0) -> Cell:
    if value is None:
        return Cell(text=_NO_VALUE, numeric=True)
    return Cell(text=f"{value:,.{digits}f}", sort=repr(round(float(value), 6)), numeric=True)


def _text(text: str, flag: str = "") -> Cell:
    return Cell(text=text, sort=text, flag=flag)


def _numbers(*headers: str) -> tuple[Column, ...]:
    return tuple(Column(header=header, numeric=True) for header in headers)


def _load(result: LevelResult) -> Cell:
    return Cell(text=f"{result.level.value:g}", sort=repr(float(result.level.value)), numeric=True)


def _levels_grid(report: Report) -> Grid:
    kind = report.levels[0].level.kind.text.capitalize()
    rows = []
    for result in report.levels:
        latency = result.latency
        times = [None if latency is None else latency.mean_ns / 1000]
        times += [None if latency is None else latency.at(p) / 1000 for p in (50.0, 90.0, 95.0, 99.0, 99.9)]
        verdict = result.verdict.value.replace("_", " ") + (", interrupted" if result.interrupted else "")
        cells = [
            _load(result),
            _number(result.throughput_infer_per_s, 1),
            *map(_number, times),
            _number(sum(e.count for e in result.errors)),
            _number(result.client_busy * 100),
            _text(verdict, _FLAGS.get(result.verdict, "bad")),
        ]
        rows.append(Row(cells=tuple(cells), emphasis="best" if result is report.best else ""))
    busy = (
        "Client and engine busy %" if report.config.service.service_kind == "inprocess" else "Client busy %"
    )
    names = ("infer/s", "mean \u00b5s", "p50", "p90", "p95", "p99", "p99.9", "Failed", busy)
    columns = (*_numbers(kind, *names), Column(header="Verdict"))
    return Grid(key="levels", caption="Every level; the best one is bold", columns=columns, rows=tuple(rows))


def _server_grid(levels: Sequence[LevelResult]) -> Grid | None:
    rows = [
        Row(cells=(_load(result), *_server_cells(model, depth)))
        for result in levels
        if result.server is not None
        for depth, model in _tree(result.server)
    ]
    if not rows:
        return None
    names = ("Inferences", "Executions", "Mean batch", "Request \u00b5s", "Queue", "Input", "Infer", "Output")
    columns = (*_numbers("Load"), Column(header="Model"), *_numbers(*names))
    caption = "The server's own account, of each successful request; other clients' are in it too"
    return Grid(key="server", caption=caption, columns=columns, rows=tuple(rows))


def _tree(server: ServerBreakdown, depth: int = 0) -> list[tuple[int, ServerBreakdown]]:
    return [(depth, server), *(pair for part in server.composing for pair in _tree(part, depth + 1))]


def _server_cells(model: ServerBreakdown, depth: int) -> list[Cell]:
    def each(total_ns: int, count: int) -> Cell:
        return _number(total_ns / count / 1000 if count else None, 1)

    return [
        _text("\u2007\u2007" * depth + f"{model.model} {model.version}"),
        _number(model.inference_count),
        _number(model.execution_count),
        _number(model.mean_batch, 2),
        each(model.success_ns, model.success_count),
        each(model.queue_ns, model.queue_count),
        each(model.compute_input_ns, model.compute_count),
        each(model.compute_infer_ns, model.compute_count),
        each(model.compute_output_ns, model.compute_count),
    ]


def _members_grid(levels: Sequence[LevelResult]) -> Grid | None:
    """Of several models at once, each one's share."""
    rows = []
    for result in levels:
        for member in result.members:
            times = [None if member.latency is None else member.latency.at(p) / 1000 for p in (50.0, 99.0)]
            counts = (member.requests, member.failed)
            cells = (
                _number(member.weight, 2),
                _number(member.throughput_infer_per_s, 1),
                *map(_number, times),
            )
            rows.append(Row(cells=(_load(result), _text(member.model), *cells, *map(_number, counts))))
    if not rows:
        return None
    names = ("Weight", "infer/s", "p50 \u00b5s", "p99 \u00b5s", "Requests", "Failed")
    columns = (*_numbers("Load"), Column(header="Model"), *_numbers(*names))
    return Grid(key="models", caption="Each model by itself", columns=columns, rows=tuple(rows))


def _metrics_grid(levels: Sequence[LevelResult]) -> Grid | None:
    rows = []
    for result in levels:
        if result.metrics is None:
            continue
        metrics = result.metrics
        known = [
            ("server's processor %", metrics.cpu_utilization, 100.0),
            ("server's memory MiB", metrics.memory_used_bytes, 2.0**-20),
            ("mean batch", metrics.mean_batch, 1.0),
        ]
        for gpu in metrics.gpus:
            known.append((f"{gpu.uuid} utilization %", gpu.utilization, 100.0))
            known.append((f"{gpu.uuid} power W", gpu.power_w, 1.0))
            known.append((f"{gpu.uuid} memory MiB", gpu.memory_used_bytes, 2.0**-20))
        for series in metrics.series:
            counted = series.per_s is not None
            known.append((series.name + " per s" * counted, series.per_s if counted else series.mean, 1.0))
        rows += [
            Row(cells=(_load(result), _text(name), _number(value * factor, 2)))
            for name, value, factor in known
            if value is not None
        ]
    if not rows:
        return None
    columns = (*_numbers("Load"), Column(header="Metric"), *_numbers("Value"))
    return Grid(
        key="metrics",
        caption="Scraped from the server while it was measured",
        columns=columns,
        rows=tuple(rows),
    )


def _objectives_grid(levels: Sequence[LevelResult]) -> Grid | None:
    rows = [
        Row(
            cells=(
                _load(result),
                _text(found.objective.text),
                _text(found.outcome.value, "ok" if found.met else "bad"),
                _text(found.reason),
            )
        )
        for result in levels
        for found in result.slo
    ]
    if not rows:
        return None
    columns = (
        *_numbers("Load"),
        *(Column(header=h, wraps=h == "Why") for h in ("Objective", "Outcome", "Why")),
    )
    return Grid(key="objectives", caption="Objectives, at every level", columns=columns, rows=tuple(rows))


def _errors_grid(levels: Sequence[LevelResult]) -> Grid | None:
    rows = [
        Row(cells=(_load(r), _number(e.count), _text(e.code), _text(e.message)))
        for r in levels
        for e in r.errors
    ]
    if not rows:
        return None
    columns = (
        *_numbers("Load", "Requests"),
        Column(header="Code"),
        Column(header="The first one's words", wraps=True),
    )
    return Grid(key="errors", caption="Failed requests", columns=columns, rows=tuple(rows))


def _remarks(levels: Sequence[LevelResult]) -> tuple[str, ...]:
    out = []
    for result in levels:
        name = level_name(result.level)
        out += [f"{name}: {text}" for text in (result.reason, *result.warnings) if text]
        pace, latency = result.open_loop, result.latency
        if pace is not None and latency is not None and waited_before(pace, latency):
            service = pace.service_latency
            out.append(
                f"{name}: latency counts from when a request was due; from when it was sent, p99 is "
                f"{usec(service.at(99.0)):,} \u00b5s instead of {usec(latency.at(99.0)):,} \u00b5s"
            )
    return tuple(out)


def _target(report: Report) -> tuple[Fact, ...]:
    model, config = report.model, report.config
    facts = {
        "Server": f"{report.server.name} {report.server.version}",
        "Address": f"{config.address}, {config.target.protocol}",
        "Model": " ".join(part for part in (model.name, config.target.model_version) if part),
        "Platform": model.platform,
        "Scheduler": model.scheduler,
        "Greatest batch": str(model.max_batch_size or ""),
    }
    return tuple(Fact(label=label, value=value) for label, value in facts.items() if value)


def _host() -> tuple[Fact, ...]:
    return (
        Fact(label="Host", value=platform.node()),
        Fact(label="Cores", value=str(os.cpu_count())),
        Fact(label="Kernel", value=platform.release()),
        Fact(label="Python", value=platform.python_version()),
        Fact(label="tpx", value=__version__),
    )


def _settings(config: SessionSpec) -> tuple[Fact, ...]:
    """What differs from the defaults."""
    out = []
    for field in fields_of(SessionSpec):
        value = field.of(config)
        if value != field.default and field.name not in ("model", "url"):
            shown = str(value) if isinstance(value, LevelRange) else _as_text(value)
            out.append(Fact(label=field.flag, value=shown))
    return tuple(out)


def _as_text(value: object) -> str:
    if isinstance(value, Objective):
        return value.text
    return ", ".join(map(_as_text, value)) if isinstance(value, tuple | list) else str(value)
