"""The report of a run as a `Document`."""

import os
import platform
import shlex
from collections.abc import Sequence
from dataclasses import replace

from tpx import __version__
from tpx.options import fields_of
from tpx.perf.levels import LevelRange
from tpx.perf.objectives import Objective
from tpx.perf.options import SessionSpec
from tpx.perf.report.breakdown import breakdown_of_levels
from tpx.perf.report.console import answers_text
from tpx.perf.report.grids import (
    errors_grid,
    levels_grid,
    members_grid,
    metrics_grid,
    objectives_grid,
    server_grid,
)
from tpx.perf.report.level_text import waited_before
from tpx.perf.report.model import Report, level_name, load_name, percentile_name
from tpx.perf.report.plots import curve, histogram, spectrum, timeline
from tpx.perf.results import LevelResult, Verdict
from tpx.report.digits import latency, rounded
from tpx.report.document import (
    Document,
    Fact,
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
    levels, config = report.levels, report.config
    best = report.best or max(levels, key=lambda r: r.throughput_infer_per_s, default=None)
    sections = [
        Section(blocks=(replace(conclude(report), tiles=() if best is None else _tiles(best)),)),
        *section("Objectives", objectives_grid(report)),
        *_answers(report),
        *_charts(report, best),
        *section("Models", members_grid(report)),
        *section("Server", server_grid(report)),
        *section("Server metrics", metrics_grid(report)),
        *section("Errors", errors_grid(report)),
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
        return Statement(badge="Nothing measured", tone="bad", sentence=_nothing(report))
    detail = _detail(report)
    if report.config.answers.slo:
        return _objectives(report, detail)
    best = report.best
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
        sentence=f"{_throughput(best)} at {load_name(best.level)}, {_percentiles(best)}",
        detail=best.reason if bound else detail,
    )


def _objectives(report: Report, detail: str) -> Statement:
    asked = ", ".join(o.text for o in report.config.answers.slo)
    best = report.best
    if best is None:
        return Statement(
            badge="Objectives missed", tone="bad", sentence=f"no load meets {asked}", detail=detail
        )
    return Statement(
        badge="Objectives met",
        tone="good",
        sentence=f"{asked} met up to {load_name(best.level)}: {_throughput(best)}, {_percentiles(best)}",
        detail=detail,
    )


def _throughput(result: LevelResult) -> str:
    return f"{rounded(result.throughput_infer_per_s)} infer/s"


def _percentiles(result: LevelResult) -> str:
    if result.latency is None:
        return "no latency"
    p50, p99 = (latency(result.latency.at(percentile)) for percentile in (50.0, 99.0))
    return f"p50 {p50}, p99 {p99}"


def _detail(report: Report) -> str:
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


def _nothing(report: Report) -> str:
    errors = [e for r in report.levels for e in r.errors]
    if errors:
        return f"no request succeeded; the first failure: {errors[0].code}: {errors[0].message}"
    return report.error or "no request ended while it was measured"


def _answers(report: Report) -> list[Section]:
    """Return the requested answers besides figures: objectives, a scenario, the knee."""
    text = answers_text(report).strip("\n")
    return section("Answers", code(text)) if text else []


def _charts(report: Report, best: LevelResult | None) -> list[Section]:
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
            figure=rounded(best.throughput_infer_per_s),
            unit="infer/s",
            note=_throughput_range(best),
            tone="good" if best.meets_limits else "",
        )
    ]
    if best.latency is not None:
        for percentile in (50.0, 99.0, 99.9):
            figure, unit = latency(best.latency.at(percentile)).split()
            tiles.append(
                Tile(
                    label=f"{percentile_name(percentile)} latency",
                    figure=figure,
                    unit=unit,
                    note=_latency_range(best, percentile),
                )
            )
    if best.server is not None and best.server.execution_count:
        batch = rounded(best.server.mean_batch)
        tiles.append(Tile(label="Mean batch", figure=batch, unit="", note="in the server"))
    failed = sum(e.count for e in best.errors)
    note = f"of {sum(w.requests + w.failed for w in best.windows):,} requests"
    tiles.append(Tile(label="Failed", figure=f"{failed:,}", unit="", note=note, tone="bad" if failed else ""))
    return tuple(tiles)


def _throughput_range(result: LevelResult) -> str:
    if result.estimates is None:
        return ""
    interval = result.estimates.throughput
    return f"95 %: {rounded(interval.low)} to {rounded(interval.high or interval.value)}"


def _latency_range(result: LevelResult, percentile: float) -> str:
    found = result.estimates.at(percentile) if result.estimates is not None else None
    if found is None:
        return ""
    if found.interval.high is None:
        return found.note.partition(" (")[0]
    return f"95 %: {latency(found.interval.low)} to {latency(found.interval.high)}"


def _remarks(levels: Sequence[LevelResult]) -> tuple[str, ...]:
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


def _target(report: Report) -> tuple[Fact, ...]:
    model, config = report.model, report.config
    facts = {
        "Server": f"{report.server.name} {report.server.version}",
        "Address": f"{config.address}, {config.target.protocol}",
        "Model": " ".join(part for part in (model.name, config.target.model_version) if part),
        "Platform": model.platform,
        "Scheduler": model.scheduler,
        "Max batch": str(model.max_batch_size or ""),
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
    """Return the options that differ from their defaults."""
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
