"""What is said of a level when its windows are there: perf_analyzer's decisions and messages, made to
explain."""

from collections.abc import Sequence
from dataclasses import dataclass

from tpx.perf.levels import Level
from tpx.perf.objectives import Assessment, Outcome
from tpx.perf.results import ErrorCount, Verdict, Window
from tpx.perf.settings import LevelSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A verdict, and for a person why it is not ok."""

    verdict: Verdict
    stable: bool
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What a level has come to: all its windows, those that count as one, and what was found of them."""

    windows: Sequence[Window]
    merged: Window
    errors: Sequence[ErrorCount] = ()
    stable: bool
    moved: str = ""
    """Why it is not stable."""
    limit: Assessment | None = None
    """What they say about the latency limit; None where there is none."""
    over_budget: bool = False
    lost: str = ""
    """Why nothing more was waited for."""
    interrupted: bool = False
    client_bound: str = ""
    """Why the client limited it; empty where it did not."""


def judge(level: Level, findings: Findings, settings: LevelSettings) -> Judgement:
    """The verdict on a level."""
    windows, merged, errors = findings.windows, findings.merged, findings.errors
    stable = findings.stable and merged.latency is not None
    if findings.over_budget:
        return Judgement(verdict=Verdict.ERRORS, stable=stable, reason=_budget_message(errors, settings))
    if findings.interrupted and merged.latency is None and not errors:
        reason = f"{str(level).capitalize()} was interrupted before a request was answered."
        return Judgement(verdict=Verdict.ERRORS, stable=False, reason=reason)
    if merged.latency is None or is_dead(windows[-1]):
        return Judgement(verdict=Verdict.ERRORS, stable=False, reason=_no_valid_request(windows[-1], errors))
    if findings.lost:
        reason = f"The server does not answer any more: {findings.lost}.{_first(errors)}"
        return Judgement(verdict=Verdict.ERRORS, stable=False, reason=reason)
    limit = findings.limit
    if limit is not None and limit.outcome is Outcome.BROKEN:
        reason = f"Measured latency went over the set limit of {settings.latency_limit_ms} msec."
        return Judgement(verdict=Verdict.OVER_LIMIT, stable=stable, reason=reason)
    if limit is not None and limit.outcome is Outcome.UNDECIDED and not findings.interrupted:
        return Judgement(
            verdict=Verdict.BORDERLINE, stable=stable, reason=_borderline(level, limit, settings)
        )
    if not stable:
        reason = _unstable(level, findings, settings)
        return Judgement(verdict=Verdict.UNSTABLE, stable=False, reason=reason)
    if findings.client_bound:
        reason = f"{str(level).capitalize()} is client-bound: {findings.client_bound}."
        return Judgement(verdict=Verdict.CLIENT_BOUND, stable=True, reason=reason)
    return Judgement(verdict=Verdict.OK, stable=True)


def is_dead(window: Window) -> bool:
    """Whether everything failed in a window: the server has gone, or takes no such request."""
    return window.latency is None and window.failed > 0


def _first(errors: Sequence[ErrorCount]) -> str:
    return f" The first: {errors[0].code}: {errors[0].message}" if errors else ""


def _budget_message(errors: Sequence[ErrorCount], settings: LevelSettings) -> str:
    failed = sum(e.count for e in errors)
    return f"{failed} requests failed, more than --max-errors {settings.max_errors} allows.{_first(errors)}"


def _no_valid_request(window: Window, errors: Sequence[ErrorCount]) -> str:
    if errors:
        return f"No valid requests recorded in a window: all {window.failed} failed.{_first(errors)}"
    return "No valid requests recorded within time interval. Please use a larger time window."


def _borderline(level: Level, limit: Assessment, settings: LevelSettings) -> str:
    longer = "a longer -p or more windows (-r)"
    if settings.request_count:
        longer = "a greater --request-count"
    return (
        f"{str(level).capitalize()} is borderline: its latency may lie on either side of the limit of "
        f"{settings.latency_limit_ms} msec ({limit.reason}). {longer.capitalize()} may settle it."
    )


def _unstable(level: Level, findings: Findings, settings: LevelSettings) -> str:
    if findings.interrupted:
        name, count = str(level).capitalize(), len(findings.windows)
        return f"{name} was interrupted in window {count}, before it was stable. ({findings.moved})"
    option = "request-count" if settings.mode == "count_windows" else "interval"
    return (
        f"Failed to obtain stable measurement within {settings.max_windows} measurement windows "
        f"for {level}. Please try to increase the --measurement-{option}. ({findings.moved})"
    )
