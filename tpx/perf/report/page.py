"""The report of a run as a `Document`."""

import os
import platform
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from tpx import __version__
from tpx.options import fields_of
from tpx.perf.objectives import Compliance, Objective
from tpx.perf.options import SessionSpec
from tpx.perf.report.grids import (
    errors_grid,
    levels_grid,
    members_grid,
    metrics_grid,
    objectives_grid,
    server_grid,
    token_times_grid,
    tokens_grid,
)
from tpx.perf.report.level_text import waited_before
from tpx.perf.report.model import Report, answers_text, level_name, load_name, percentile_name, throughput
from tpx.perf.report.plots import breakdown, curve, requests_chart, spectrum, speeds, timeline
from tpx.perf.results import LevelResult, Verdict
from tpx.perf.statistics.intervals import Interval
from tpx.report.digits import latency, rounded
from tpx.report.document import Document, Note, Section, Statement, Tile, bullets, code, provenance, section
from tpx.report.text import sparkline

_PARTS = (
    "The mean latency of each level in parts that add up to it. The server's parts are its own statistics."
)
_SPECTRUM = "Latency over a logarithmic percentile axis. A line ends where too few requests lie beyond it."
_SPANS = "Each line is a request, from when it was due to its last token; the dot on it is the first."
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
        Section(blocks=(replace(conclude(report), tiles=() if best is None else tuple(_build_tiles(best))),)),
        *section("Objectives", objectives_grid(report)),
        *(section("Findings", code(answers)) if answers else []),
        *_build_charts(report),
        *section("Models", members_grid(report)),
        *section("Server", server_grid(report)),
        *section("Server metrics", metrics_grid(report)),
        *section("Errors", errors_grid(report)),
        *section("Remarks", bullets(_list_remarks(levels))),
        provenance(shlex.join(["tpx", "perf", *argv]), _list_facts(report), _METHOD),
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
        uncertain = _describe_uncertainty(report)
        return Statement(
            badge="Objectives missed" if best is None else "Objectives met",
            tone="bad" if best is None else "warn" if uncertain else "good",
            sentence=headline,
            detail=" ".join(filter(None, (detail, uncertain))),
        )
    if best is None:
        reasons = {r.verdict.text for r in report.levels}
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


def _describe_uncertainty(report: Report) -> str:
    """Return which levels do not tell on which side of the objectives they lie; empty if all do."""
    unsure = (Verdict.UNSTABLE, Verdict.BORDERLINE)
    doubtful = {load_name(r.level): r.verdict.text for r in report.levels if r.verdict in unsure}
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
        names = ", ".join(f"{load_name(r.level)} ({r.verdict.text})" for r in flagged)
        parts.append(f"Excluded: {names}.")
    return " ".join(parts)


def _build_charts(report: Report) -> list[Section]:
    levels = report.levels
    points = curve(levels, report.config.windows.latency_threshold, report.config.answers.slo)
    load = points.label_name if points else ""
    spans = requests_chart(levels)
    sections = [
        *section(
            "Latency and throughput",
            points,
            lead=f"One point per level, in the order of load; the numbers beside the points are the {load}. "
            "The bars through the points are 95 % confidence intervals. Better is down and to the right.",
        ),
        *section("Levels", levels_grid(report)),
        *section("Tokens", speeds(levels), tokens_grid(report), token_times_grid(report)),
        *section(spans.title if spans else "", spans, lead=_SPANS),
        *section("Where the time goes", breakdown([(level_name(r.level), r) for r in levels]), lead=_PARTS),
        *section("Percentiles", spectrum(levels), lead=_SPECTRUM),
    ]
    for what in ("throughput", "p99"):
        chart = timeline(levels, what)
        lead = "Each point is a window, in the time of the run."
        sections += section(chart.title if chart else "", chart, lead=lead)
    return sections


def _build_tiles(best: LevelResult) -> Iterator[Tile]:
    reach = None if best.estimates is None else best.estimates.throughput
    yield Tile(
        label="Throughput",
        figure=rounded(best.throughput_infer_per_s),
        unit="infer/s",
        note=_describe_interval(reach, rounded) if reach else "",
        tone="good" if best.meets_limits else "",
    )
    summary = best.latency
    times = [] if summary is None else [(p, latency(summary.at(p))) for p in (50.0, 99.0, 99.9)]
    for percentile, time in times:
        figure, unit = time.split()
        found = None if best.estimates is None else best.estimates.at(percentile)
        note = ""
        if found is not None:
            unbounded = found.interval.high is None
            note = found.note.partition(" (")[0] if unbounded else _describe_interval(found.interval, latency)
        yield Tile(label=f"{percentile_name(percentile)} latency", figure=figure, unit=unit, note=note)
    if best.server is not None and best.server.execution_count:
        yield Tile(label="Mean batch", figure=rounded(best.server.mean_batch), note="in the server")
    note = f"of {sum(w.requests + w.failed for w in best.windows):,} requests"
    yield Tile(label="Failed", figure=f"{best.failed:,}", note=note, tone="bad" if best.failed else "")


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


def _list_facts(report: Report) -> Mapping[str, Mapping[str, str]]:
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
        "Requests sent by": config.client,
    }
    changed = {
        field.flag: _format_value(value)
        for field in fields_of(SessionSpec)
        if (value := field.of(config)) != field.default and field.name not in ("model", "url")
    }
    known = {name: value for name, value in target.items() if value}
    return {"Target": known, "Client": client, "Options": changed}


def _format_value(value: object) -> str:
    if isinstance(value, Objective):
        return value.text
    return ", ".join(map(_format_value, value)) if isinstance(value, tuple | list) else str(value)
