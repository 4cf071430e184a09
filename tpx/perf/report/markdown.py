"""A run for the page of a CI job: what came out in a sentence, a table, a line that shows the curve."""

from collections.abc import Sequence

from tpx.perf.report.figures import level_name, percentile_name, rate
from tpx.perf.report.model import Report, conclude
from tpx.perf.results import LevelResult, Verdict

BARS = "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
_MARKS = {
    Verdict.OK: "\u2705",
    Verdict.UNSTABLE: "\u26a0\ufe0f unstable",
    Verdict.OVER_LIMIT: "\u274c over the limit",
    Verdict.BORDERLINE: "\u26a0\ufe0f borderline",
    Verdict.ERRORS: "\u274c errors",
    Verdict.CLIENT_BOUND: "\u26a0\ufe0f client-bound",
}


def markdown_text(report: Report) -> str:
    """The document."""
    conclusion = conclude(report)
    sign = {"good": "\u2705", "bad": "\u274c"}.get(conclusion.tone, "\u26a0\ufe0f")
    lines = [f"### {sign} {escaped(report.model.name)}: {escaped(conclusion.sentence)}", ""]
    if conclusion.detail:
        lines += [escaped(conclusion.detail), ""]
    if report.levels:
        lines += [*_table(report.levels), ""]
    if len(report.levels) > 1:
        lines += [_curves(report.levels), ""]
    lines += _objectives(report)
    lines += _errors(report.levels)
    config = report.config
    lines.append(
        f"<sub>{escaped(config.address)}, {escaped(report.server.name)} {escaped(report.server.version)}, "
        f"batch {config.inputs.batch_size}, {report.started}</sub>"
    )
    return "\n".join(lines) + "\n"


def sparkline(values: Sequence[float]) -> str:
    """A bar for each value, from the lowest of all to the highest."""
    if not values:
        return ""
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    return "".join(BARS[min(len(BARS) - 1, int((v - low) / span * len(BARS)))] for v in values)


def _table(levels: Sequence[LevelResult]) -> list[str]:
    shown = levels[0].percentile
    extra = [] if shown is None or shown in (50.0, 90.0, 99.0) else [shown]
    percentiles = sorted([50.0, 90.0, 99.0, *extra])
    head = ["Load", "infer/s", "mean", *map(percentile_name, percentiles), "errors", ""]
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 2) + "---|"]
    for result in levels:
        latency = result.latency
        times = ["", *[""] * len(percentiles)]
        if latency is not None:
            times = [milliseconds(latency.mean_ns), *(milliseconds(latency.at(p)) for p in percentiles)]
        mark = _MARKS[result.verdict] + (", interrupted" if result.interrupted else "")
        cells = [level_name(result.level), rate(result.throughput_infer_per_s), *times]
        lines.append("| " + " | ".join([*cells, str(result.failed), mark]) + " |")
    return lines


def milliseconds(duration_ns: float) -> str:
    """`0.212 ms`, `12.3 ms`: three digits that say something."""
    value = duration_ns / 1e6
    return f"{value:.3f} ms" if value < 10 else f"{value:.1f} ms" if value < 1000 else f"{value:,.0f} ms"


def _curves(levels: Sequence[LevelResult]) -> str:
    known = [r for r in levels if r.latency is not None]
    through = sparkline([r.throughput_infer_per_s for r in known])
    tails = sparkline([r.latency.at(99.0) for r in known if r.latency is not None])
    return f"Throughput `{through}` \u00b7 p99 `{tails}`"


def _objectives(report: Report) -> list[str]:
    if not report.config.answers.slo or not report.levels:
        return []
    chosen = report.best or min(report.levels, key=lambda r: r.level.value)
    lines = [f"Objectives at {level_name(chosen.level)}:", ""]
    lines += [
        f"- {_MARKS[Verdict.OK] if a.met else _MARKS[Verdict.ERRORS].split()[0]} `{a.objective.text}`: "
        f"{a.outcome.value}"
        for a in chosen.slo
    ]
    return [*lines, ""]


def _errors(levels: Sequence[LevelResult]) -> list[str]:
    lines = [
        f"- {level_name(r.level)}: {e.count} x {escaped(e.code)}: {escaped(e.message)}"
        for r in levels
        for e in r.errors
    ]
    return ["Failed requests:", "", *lines, ""] if lines else []


def escaped(text: str) -> str:
    """A server's words are no markup."""
    for sign in "\\`*_|<>[]":
        text = text.replace(sign, f"\\{sign}" if sign not in "<>" else {"<": "&lt;", ">": "&gt;"}[sign])
    return " ".join(text.split())
