"""What is said of a level when its windows are there: perf_analyzer's decisions and messages, made to
explain."""

from collections.abc import Sequence
from dataclasses import dataclass

from tpx.perf.results import ErrorCount, Verdict, Window
from tpx.perf.settings import Level, LevelSettings
from tpx.perf.stability import STABILITY_WINDOWS, describe_spread, is_over_limit, is_stable

NANOSECONDS_PER_MS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A verdict, and for a person why it is not ok."""

    verdict: Verdict
    stable: bool
    reason: str = ""


def is_done(windows: Sequence[Window], settings: LevelSettings) -> bool:
    """Whether a level needs no further window: it is stable, over the limit, dead, or has had them all."""
    if settings.request_count or len(windows) >= settings.max_windows or _is_dead(windows[-1]):
        return True
    observed = [w.observation for w in windows]
    return is_stable(observed, settings.stability) or is_over_limit(observed, settings.latency_limit_ms)


def judge(
    level: Level,
    windows: Sequence[Window],
    merged: Window,
    errors: Sequence[ErrorCount],
    settings: LevelSettings,
    *,
    over_budget: bool,
) -> Judgement:
    """The verdict on a level; `merged` are its last windows as one."""
    observed = [w.observation for w in windows]
    stable = merged.latency is not None and (
        settings.request_count > 0 or is_stable(observed, settings.stability)
    )
    if over_budget:
        return Judgement(verdict=Verdict.ERRORS, stable=stable, reason=_budget_message(errors, settings))
    if merged.latency is None or _is_dead(windows[-1]):
        return Judgement(verdict=Verdict.ERRORS, stable=False, reason=_no_valid_request(windows[-1], errors))
    limit = settings.latency_limit_ms
    latency_ns = merged.latency.at(settings.percentile)
    over = limit > 0 and latency_ns // NANOSECONDS_PER_MS >= limit
    if over or (not stable and is_over_limit(observed, limit)):
        reason = f"Measured latency went over the set limit of {limit} msec."
        return Judgement(verdict=Verdict.OVER_LIMIT, stable=stable, reason=reason)
    if not stable:
        return Judgement(verdict=Verdict.UNSTABLE, stable=False, reason=_unstable(level, windows, settings))
    return Judgement(verdict=Verdict.OK, stable=True)


def _first(errors: Sequence[ErrorCount]) -> str:
    return f" The first: {errors[0].code}: {errors[0].message}" if errors else ""


def _budget_message(errors: Sequence[ErrorCount], settings: LevelSettings) -> str:
    failed = sum(e.count for e in errors)
    return f"{failed} requests failed, more than --max-errors {settings.max_errors} allows.{_first(errors)}"


def _is_dead(window: Window) -> bool:
    """Whether everything failed in a window: the server has gone, or takes no such request."""
    return window.latency is None and window.failed > 0


def _no_valid_request(window: Window, errors: Sequence[ErrorCount]) -> str:
    if errors:
        return f"No valid requests recorded in a window: all {window.failed} failed.{_first(errors)}"
    return "No valid requests recorded within time interval. Please use a larger time window."


def _unstable(level: Level, windows: Sequence[Window], settings: LevelSettings) -> str:
    option = "request-count" if settings.mode == "count_windows" else "interval"
    text = (
        f"Failed to obtain stable measurement within {settings.max_windows} measurement windows "
        f"for {level.mode} {level.value}. Please try to increase the --measurement-{option}."
    )
    if len(windows) < STABILITY_WINDOWS:
        return text + f" ({STABILITY_WINDOWS} windows are needed, there were {len(windows)})"
    return text + f" ({describe_spread([w.observation for w in windows])})"
