"""The report of a run: what its text, files and pages are made from, and its verdict in a sentence."""

from dataclasses import dataclass
from typing import Literal

from tpx.perf.clients.model import ModelDescription, ServerDescription
from tpx.perf.levels import Level
from tpx.perf.options import SessionSpec
from tpx.perf.report.figures import load_name, rate
from tpx.perf.results import LevelResult, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A finished run. Times are ISO 8601 in UTC."""

    config: SessionSpec
    server: ServerDescription
    model: ModelDescription
    levels: tuple[LevelResult, ...]
    started: str
    finished: str
    interrupted: bool = False
    offset_ns: int = 0
    """Added to a window's times gives nanoseconds since 1970."""
    error: str = ""
    """What ended the run before its last level."""
    answer: Level | None = None
    """What a binary search found; None where it found nothing, or nothing was searched."""

    @property
    def best(self) -> LevelResult | None:
        """The level of the highest throughput among those that met the limits; with objectives, the highest
        load that meets them."""
        if self.config.answers.slo:
            return next((r for r in self.levels if r.level == self.answer), None)
        good = [r for r in self.levels if r.meets_limits]
        return max(good, key=lambda r: r.throughput_infer_per_s, default=None)

    @property
    def over_budget(self) -> bool:
        return any(r.over_budget for r in self.levels)

    @property
    def has_valid_requests(self) -> bool:
        return any(r.requests for r in self.levels)

    @property
    def has_dead_level(self) -> bool:
        """Whether in some level a whole window passed without a valid request."""
        return any(r.verdict is Verdict.ERRORS for r in self.levels)

    @property
    def has_invalid_level(self) -> bool:
        """Whether a level broke a rule of its MLPerf scenario."""
        return any(r.validity is not None and not r.validity.valid for r in self.levels)

    @property
    def breaks_slo(self) -> bool:
        """Whether objectives were set, and no measured load meets them."""
        return bool(self.config.answers.slo) and self.answer is None

    @property
    def any_unstable(self) -> bool:
        return any(r.verdict is Verdict.UNSTABLE for r in self.levels)

    @property
    def only_unstable(self) -> bool:
        """Whether levels were measured and none of them was stable."""
        return bool(self.levels) and all(r.verdict is Verdict.UNSTABLE for r in self.levels)


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
    if report.config.answers.slo:
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
        sentence=f"{rate(best.throughput_infer_per_s)} infer/s at {load_name(best.level)}, {_latency(best)}",
        detail=best.reason if bound else detail,
    )


def _objectives(report: Report, detail: str) -> Conclusion:
    asked = ", ".join(o.text for o in report.config.answers.slo)
    best = report.best
    if best is None:
        return Conclusion(
            badge="Objectives missed", tone="bad", sentence=f"no load meets {asked}", detail=detail
        )
    return Conclusion(
        badge="Objectives met",
        tone="good",
        sentence=f"{asked} met up to {load_name(best.level)}: {rate(best.throughput_infer_per_s)} infer/s, "
        f"{_latency(best)}",
        detail=detail,
    )


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
    if flagged and not report.config.answers.slo:
        names = ", ".join(f"{load_name(r.level)} ({r.verdict.value.replace('_', ' ')})" for r in flagged)
        parts.append(f"Not among the results: {names}.")
    return " ".join(parts)


def _nothing(report: Report) -> str:
    errors = [e for r in report.levels for e in r.errors]
    if errors:
        return f"no request succeeded; the first failure: {errors[0].code}: {errors[0].message}"
    return report.error or "no request ended while it was measured"
