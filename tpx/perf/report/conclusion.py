"""What came out of a run, in one sentence."""

from dataclasses import dataclass
from typing import Literal

from tpx.perf.report.figures import level_name, rate
from tpx.perf.report.model import Report
from tpx.perf.results import LevelResult, Verdict

Tone = Literal["good", "warn", "bad"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """A badge of a word or two, a sentence, and what qualifies it."""

    badge: str
    tone: Tone
    sentence: str
    detail: str = ""


def conclude(report: Report) -> Conclusion:
    """By what was asked: objectives, a limit, or figures alone."""
    if not any(r.requests for r in report.levels):
        return Conclusion(badge="Nothing measured", tone="bad", sentence=_nothing(report))
    detail = _detail(report)
    if report.config.slo:
        return _objectives(report, detail)
    best = report.best
    if best is None:
        reasons = {r.verdict.value.replace("_", " ") for r in report.levels}
        return Conclusion(
            badge="No load met the limits",
            tone="warn" if report.only_unstable else "bad",
            sentence=f"no load met the limits ({', '.join(sorted(reasons))})",
            detail=detail,
        )
    bound = best.verdict is Verdict.CLIENT_BOUND
    return Conclusion(
        badge="Client-bound" if bound else "Measured",
        tone="warn" if bound or detail else "good",
        sentence=f"{rate(best.throughput_infer_per_s)} infer/s at {_where(best)}, {_latency(best)}",
        detail=best.reason if bound else detail,
    )


def _objectives(report: Report, detail: str) -> Conclusion:
    asked = ", ".join(o.text for o in report.config.slo)
    best = report.best
    if best is None:
        return Conclusion(
            badge="Objectives missed", tone="bad", sentence=f"no load meets {asked}", detail=detail
        )
    return Conclusion(
        badge="Objectives met",
        tone="good",
        sentence=f"{asked} met up to {_where(best)}: {rate(best.throughput_infer_per_s)} infer/s, "
        f"{_latency(best)}",
        detail=detail,
    )


def _where(result: LevelResult) -> str:
    return level_name(result.level).replace(": ", " ").lower()


def _latency(result: LevelResult) -> str:
    if result.latency is None:
        return "no latency"
    p50, p99 = (round(result.latency.at(percentile) / 1000) for percentile in (50.0, 99.0))
    return f"p50 {p50} us, p99 {p99} us"


def _detail(report: Report) -> str:
    parts = []
    if report.interrupted:
        parts.append("The run was interrupted: the last level is not complete.")
    if report.error:
        parts.append(f"The run ended early: {report.error}")
    flagged = [r for r in report.levels if not r.meets_limits and not r.interrupted]
    if flagged and not report.config.slo:
        names = ", ".join(f"{_where(r)} ({r.verdict.value.replace('_', ' ')})" for r in flagged)
        parts.append(f"Not among the results: {names}.")
    return " ".join(parts)


def _nothing(report: Report) -> str:
    errors = [e for r in report.levels for e in r.errors]
    if errors:
        return f"no request succeeded; the first failure: {errors[0].code}: {errors[0].message}"
    return report.error or "no request ended while it was measured"
